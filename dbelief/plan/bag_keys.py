"""Distinct keys of tables in a job's training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dbelief.data.samples import Order, Samples
from dbelief.nn import BagRows

BATCHES = 32
"""Mini-batches that keys are counted in, at most."""
_ROWS = 65_536
"""Samples that are read at a time."""


class DistinctKeys(NamedTuple):
    """Of one table: in all training samples, and in a mini-batch, the mean over some, rounded up."""

    all: int
    batch: int


def distinct_keys(train: Samples, reads: Mapping[str, Sequence[str]], samples: int) -> dict[str, DistinctKeys]:
    """Count the keys of tables.

    The same data give the same counts. Cost: a sort of all keys for each table. Memory: the distinct keys, and those of
    65,536 samples.

    Parameters
    ----------
    train
        Samples of bags.
    reads
        Columns by table.
    samples
        Of a mini-batch, at most as many as there are. Mini-batches are those of an epoch.
    """
    batches = min(BATCHES, len(train) // samples)
    keys = {table: np.zeros(0, np.int64) for table in reads}
    for bags in _parts(train, train.source_order(), _ROWS, len(train)):
        keys = {table: np.union1d(found, _keys(bags, reads[table])) for table, found in keys.items()}
    counts = dict.fromkeys(reads, 0)
    for bags in _parts(train, train.order(0, 0), samples, batches * samples):
        counts = {table: count + len(np.unique(_keys(bags, reads[table]))) for table, count in counts.items()}
    return {table: DistinctKeys(len(keys[table]), -(-counts[table] // batches)) for table in reads}


def _parts(train: Samples, order: Order, size: int, stop: int) -> Iterator[BagRows]:
    """The bags of the samples at places [0, stop) of an order, `size` at a time."""
    buffer = train.buffer(min(size, len(train)))
    buffer.expect(order, 0, stop)
    for first in range(0, stop, size):
        yield train.gather(order[first : min(first + size, stop)], buffer).inputs


def _keys(bags: BagRows, columns: Sequence[str]) -> np.ndarray:
    return np.concatenate([bags.columns[name].keys for name in columns])
