"""The columns of a table that are read as labels, weights and bags of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batch import Bag


@dataclass(frozen=True)
class IdColumns:
    """Names of columns.

    Attributes
    ----------
    label
        The labels; None: they are 0.
    ids
        Whole numbers, which are keys as they are.
    texts
        Texts, whose hashes are keys (see `text_keys`).
    weight
        The weights; None: they are 1.
    """

    label: str | None
    ids: Sequence[str]
    texts: Sequence[str]
    weight: str | None

    @property
    def numbers(self) -> list[str]:
        """Label and weight."""
        return [name for name in (self.label, self.weight) if name is not None]

    def labels(self, numbers: np.ndarray) -> np.ndarray:
        """Labels among the (n, k) numbers of these columns: a copy, float32."""
        return np.zeros(len(numbers), np.float32) if self.label is None else numbers[:, 0].astype(np.float32)

    def check(self) -> None:
        """Check the names.

        Raises
        ------
        ValueError
            No column is of ids or texts, or one is named twice.
        """
        if isinstance(self.ids, str) or isinstance(self.texts, str) or not (*self.ids, *self.texts):
            raise ValueError(f"ids is {self.ids!r} and texts {self.texts!r}, must be lists of columns, one at least")
        named = [*self.numbers, *self.ids, *self.texts]
        if twice := [name for place, name in enumerate(named) if name in named[:place]]:
            raise ValueError(f"column {twice[0]!r} is named twice")


def bag_of(keys: np.ndarray, rows: np.ndarray, n: int) -> Bag:
    """A bag of (m,) int64 keys in the order of their (m,) rows, of n rows in all; values are 1."""
    counts = np.bincount(rows, minlength=n)
    return Bag(keys, np.cumsum(counts) - counts, np.ones(len(keys), np.float32))
