"""A log of clicks that is drawn from a seed unit by unit: nothing is stored, and each sample's probability is known.

A sample has one id in each of eight columns. The id of rank k = 1 ... V in a column has the probability

    P(k) = integral of x^-s from k to k + 1, over that from 1 to V + 1                      (Zipf's law, bounded)

and its true weight is uniform, by a hash of (seed, key), with mean 0 and standard deviation 0.8 k^-0.25: rare ids
differ less. The logit of a click is a bias plus the weights of the sample's ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dbelief.data.bags import Bag, SparseBatch
from dbelief.sparse.row_hash import table_salt, uniform_rows


class Column(NamedTuple):
    """V ids, and the exponent s of their law."""

    ids: int
    exponent: float


COLUMNS = (
    Column(100, 1.1),
    Column(1_000, 1.1),
    Column(1_000, 1.3),
    Column(10_000, 1.1),
    Column(10_000, 1.2),
    Column(100_000, 1.1),
    Column(100_000, 1.2),
    Column(1_000_000, 1.2),
)
KEYS = sum(column.ids for column in COLUMNS)
"""Keys are 0 ... KEYS - 1: those of a column by rank, column after column."""
BIAS, DEVIATION, FADING = -1.5, 0.8, 0.25

_IDS, _EXPONENTS = (np.array(part) for part in zip(*COLUMNS, strict=True))
_FIRSTS = np.cumsum(_IDS) - _IDS


class Clicks(NamedTuple):
    """Samples.

    Attributes
    ----------
    keys : int64, shape (n, columns)
    logits : float64, shape (n,)
        The true ones.
    labels : float32, shape (n,)
        1: a click; 0: none.
    """

    keys: np.ndarray
    logits: np.ndarray
    labels: np.ndarray

    @property
    def batch(self) -> SparseBatch:
        """The same as a mini-batch with one bag, "features", without the true logits."""
        n, columns = self.keys.shape
        keys = self.keys.reshape(-1)
        bag = Bag(keys, np.arange(0, n * columns, columns), np.ones(keys.size, np.float32))
        return SparseBatch(self.labels, np.ones(n, np.float32), {"features": bag})


class ClickLog:
    """Units `first` to `first + count - 1` of the log of a seed, as a stream for `dbelief.torch.UnitDataset`.

    Parameters
    ----------
    size
        Samples of a unit.
    """

    def __init__(self, seed: int, size: int, first: int, count: int) -> None:
        self._seed, self._size, self._numbers = seed, size, range(first, first + count)
        self._salt = table_salt(seed, "true weights")

    @property
    def units(self) -> Sequence[str]:
        """Their numbers."""
        return tuple(map(str, self._numbers))

    def read(self, unit: str) -> Iterator[SparseBatch]:
        """The mini-batch of a unit."""
        yield self.draw(int(unit)).batch

    def whole(self) -> Clicks:
        """All units, one after the other."""
        return Clicks(*map(np.concatenate, zip(*map(self.draw, self._numbers), strict=True)))

    def draw(self, unit: int) -> Clicks:
        """The samples of a unit: the same in each call. Cost: 1.5 us a sample."""
        rng = np.random.default_rng([self._seed, unit])
        ranks = ranks_of(rng.random((self._size, len(COLUMNS))))
        keys = _FIRSTS + ranks - 1
        first_weights = uniform_rows(keys.reshape(-1), self._salt, 1, DEVIATION * math.sqrt(3)).reshape(keys.shape)
        logits = BIAS + (first_weights * ranks**-FADING).sum(axis=1)
        labels = rng.random(self._size) < 1 / (1 + np.exp(-logits))
        return Clicks(keys, logits, labels.astype(np.float32))


def ranks_of(uniform: np.ndarray) -> np.ndarray:
    """(n, columns) int64 ranks, from 1, of (n, columns) numbers from 0 to below 1, by the inverse of Zipf's law."""
    power = 1 - _EXPONENTS
    x = (1 - uniform * (1 - (_IDS + 1.0) ** power)) ** (1 / power)
    ranks: np.ndarray = np.minimum(x.astype(np.int64), _IDS)
    return ranks
