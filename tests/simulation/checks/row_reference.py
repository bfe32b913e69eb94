"""Reference of a table, independent of it: the bucket of a key, its row at first, and its row after each push.

Hashes are those of splitmix64, in Python's whole numbers, and the rules are formulas in float64:

    sgd           w <- w - rate g
    row-adagrad   A <- A + mean(g^2) ;  w <- w - rate g / sqrt(A)
    lazy-adam     m <- b m + (1 - b) g ;  v <- c v + (1 - c) g^2
                  w <- w - rate m sqrt(1 - c^t) / ((1 - b^t) (sqrt(v) + eps)) ;  t: pushes to the bucket
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dbelief.core.push import Pusher
from dbelief.sparse.table import SparseTable

ALL = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Made = tuple[int, Pusher, int]
"""A push: the run that it belongs to, its pusher and its number."""


def _mixed(x: int) -> int:
    x = (x ^ (x >> 30)) * FIRST & ALL
    x = (x ^ (x >> 27)) * SECOND & ALL
    return x ^ (x >> 31)


def _words(key: int, salt: int, count: int) -> Iterator[int]:
    start = _mixed((key + salt) & ALL)
    return (_mixed((start + j * GOLDEN) & ALL) for j in range(count))


@dataclass(frozen=True, eq=False)
class Contents:
    """What a bucket has in one version.

    Attributes
    ----------
    pushes
        All that it has.
    counts
        How many of each pusher, by its run.
    steps
        How often its rule has stepped.
    keys, numbers
        (n,) int64 keys, rising, and (n, stride) float64 rows with the rule's state.
    """

    pushes: frozenset[Made] = frozenset()
    counts: Mapping[tuple[int, Pusher], int] = field(default_factory=dict)
    steps: int = 0
    keys: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    numbers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


class TableReference:
    """One table.

    Parameters
    ----------
    rule
        Name and options of its rule.
    """

    def __init__(self, table: SparseTable, rule: Mapping[str, Any]) -> None:
        self.table, self._rule = table, rule
        extra = {"sgd": 0, "row-adagrad": 1, "lazy-adam": 2 * table.width}
        self.stride = table.width + extra[rule["name"]]
        self._buckets: dict[int, int] = {}
        self._initial: dict[int, np.ndarray] = {}

    def bucket_of(self, key: int) -> int:
        """Index of the bucket of a key."""
        if key not in self._buckets:
            (word,) = _words(key, self.table.salt, 1)
            self._buckets[key] = self.table.first + ((word >> 32) * self.table.count >> 32)
        return self._buckets[key]

    def split(self, keys: np.ndarray) -> dict[int, np.ndarray]:
        """By bucket, places of its keys."""
        own = np.array([self.bucket_of(key) for key in keys.tolist()], np.int64)
        return {index: np.flatnonzero(own == index) for index in np.unique(own).tolist()}

    def _new(self, keys: np.ndarray) -> np.ndarray:
        """(n, stride) rows of keys that have none."""
        rows = np.zeros((keys.size, self.stride))
        for row, key in zip(rows, keys.tolist(), strict=True):
            if key not in self._initial:
                words = _words(key, self.table.salt ^ FIRST, self.table.width)
                self._initial[key] = np.array([(word >> 40) * 2.0**-23 - 1 for word in words]) * self.table.limit
            row[: self.table.width] = self._initial[key]
        return rows

    def rows(self, contents: Contents, keys: np.ndarray) -> np.ndarray:
        """(n, width) rows of (n,) keys, as a read returns them."""
        rows = self._new(keys)
        for row, key in zip(rows, keys.tolist(), strict=True):
            at = int(np.searchsorted(contents.keys, key))
            if at < contents.keys.size and contents.keys[at] == key:
                row[:] = contents.numbers[at]
        return rows[:, : self.table.width]

    def after(
        self, before: Contents, pushed: Mapping[Made, float], keys: np.ndarray, gradients: np.ndarray
    ) -> Contents:
        """Contents after a step by (n,) rising keys and (n, width) gradients of some pushes."""
        counts = dict(before.counts)
        for run, pusher, _ in pushed:
            counts[run, pusher] = counts.get((run, pusher), 0) + 1
        pushes, steps = before.pushes | pushed.keys(), before.steps + 1
        if not keys.size:
            return Contents(pushes, counts, steps, before.keys, before.numbers)
        held = np.union1d(before.keys, keys)
        numbers = np.empty((held.size, self.stride))
        new = ~np.isin(held, before.keys)
        numbers[~new], numbers[new] = before.numbers.reshape(-1, self.stride), self._new(held[new])
        at = np.searchsorted(held, keys)
        rows = numbers[at]
        self._step(rows, gradients.astype(np.float64), steps)
        numbers[at] = rows
        return Contents(pushes, counts, steps, held, numbers)

    def _step(self, rows: np.ndarray, g: np.ndarray, t: int) -> None:
        width, rate, rule = self.table.width, self.table.rate, self._rule
        w = rows[:, :width]
        if rule["name"] == "sgd":
            w -= rate * g
        elif rule["name"] == "row-adagrad":
            rows[:, width] += (g**2).mean(axis=1)
            w -= rate * g / np.sqrt(rows[:, width, None])
        else:
            m, v = rows[:, width : 2 * width], rows[:, 2 * width :]
            b, c = rule["beta1"], rule["beta2"]
            m[:], v[:] = b * m + (1 - b) * g, c * v + (1 - c) * g**2
            w -= rate * m * np.sqrt(1 - c**t) / ((1 - b**t) * (np.sqrt(v) + rule["eps"]))
