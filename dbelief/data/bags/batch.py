"""Mini-batches of sparse rows by key, for modules whose rows lie in tables of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ALL = "features"
"""Name of the bags of formats, or of calls, that name no fields."""


@dataclass(frozen=True, eq=False)
class Bag:
    """The keys of one field, as `torch.nn.EmbeddingBag` takes them: sample i has those from offsets[i] to the next one.

    Attributes
    ----------
    keys : int64, shape (m,)
        In the order of the file; a key may be there several times.
    offsets : int64, shape (n,)
        Ascending, from 0.
    values : float32, shape (m,)
        1 where the file names none.
    """

    keys: np.ndarray
    offsets: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class SparseBatch:
    """Samples with bags of keys.

    Attributes
    ----------
    labels : float32, shape (n,)
        As in the file.
    weights : float32, shape (n,)
        1 where the file names none.
    bags : dict of str to Bag
        By field, column or namespace, of n samples each; the same names in all batches of a stream.
    """

    labels: np.ndarray
    weights: np.ndarray
    bags: Mapping[str, Bag]

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.labels)

    def mapped(self, function: Callable[[Any], Any]) -> SparseBatch:
        """The same batch of other arrays.

        Parameters
        ----------
        function
            Called with each array, such as `torch.from_numpy`.

        Returns
        -------
        SparseBatch
            Of what the function returns.
        """
        bags = {
            name: Bag(function(bag.keys), function(bag.offsets), function(bag.values))
            for name, bag in self.bags.items()
        }
        return SparseBatch(function(self.labels), function(self.weights), bags)

    @staticmethod
    def joined(batches: Sequence[SparseBatch]) -> SparseBatch:
        """One batch of the samples of several, at least one, with the same names of bags."""
        bags: dict[str, Bag] = {}
        for name in batches[0].bags:
            own = [batch.bags[name] for batch in batches]
            firsts = np.cumsum([0, *(len(bag.keys) for bag in own[:-1])])
            offsets = [bag.offsets + first for bag, first in zip(own, firsts, strict=True)]
            bags[name] = Bag(
                np.concatenate([bag.keys for bag in own]),
                np.concatenate(offsets),
                np.concatenate([bag.values for bag in own]),
            )
        labels, weights = (np.concatenate([getattr(one, name) for one in batches]) for name in ("labels", "weights"))
        return SparseBatch(labels, weights, bags)


Check = Callable[[SparseBatch, Callable[[int], str]], None]
"""Raises DataError where a mini-batch is not as it is needed; the function names the place of row i in messages."""


def split_bags(
    wanted: Mapping[str, int] | None, fields: np.ndarray, ends: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> dict[str, Bag]:
    """Bags of the fields that are wanted, of rows with features of any fields in any order.

    Parameters
    ----------
    wanted
        Number of each field by the name of its bag; features of other fields are left out. None: all, in one bag.
    fields : int64, shape (m,)
        Number of each feature's field.
    ends : int64, shape (n,)
        Features up to the end of each row.
    keys, values : int64 and float32, shape (m,)
    """
    n = len(ends)
    counts = np.diff(ends, prepend=0)
    if wanted is None:
        return {ALL: Bag(keys, ends - counts, values)}
    rows = np.repeat(np.arange(n), counts)
    numbers = np.fromiter(wanted.values(), np.int64, len(wanted))
    sorter = np.argsort(numbers)
    found = np.minimum(np.searchsorted(numbers, fields, sorter=sorter), len(numbers) - 1)
    places = sorter[found]  # in `wanted`, of each feature
    kept = np.flatnonzero(numbers[places] == fields)
    order = kept[np.argsort(places[kept], kind="stable")]
    each = np.bincount(places[kept] * n + rows[kept], minlength=len(wanted) * n).reshape(len(wanted), n)
    bags, start = dict[str, Bag](), 0
    for name, own in zip(wanted, each, strict=True):
        stop = start + int(own.sum())
        bags[name] = Bag(keys[order[start:stop]], np.cumsum(own) - own, values[order[start:stop]])
        start = stop
    return bags
