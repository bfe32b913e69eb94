"""Distinct keys of tables in a job's training data, which is in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dbelief.data.bags.split import BagSplit
from dbelief.nn import BagRows

BATCHES = 32
"""Mini-batches that keys are counted in, at most."""


class DistinctKeys(NamedTuple):
    """Of one table: in all training samples, and in a mini-batch, the mean over some, rounded up."""

    all: int
    batch: int


def distinct_keys(train: BagSplit, reads: Mapping[str, Sequence[str]], samples: int) -> dict[str, DistinctKeys]:
    """Count the keys of tables.

    The same data give the same counts. Cost: a sort of all keys for each table.

    Parameters
    ----------
    reads
        Columns by table.
    samples
        Of a mini-batch, at most as many as there are. Mini-batches are drawn without replacement, as for training.
    """
    bags = train.inputs
    batches = min(BATCHES, len(train) // samples)
    drawn = np.random.default_rng(0).permutation(len(train))[: batches * samples].reshape(batches, samples)
    parts = [bags.taken(rows) for rows in drawn]
    return {
        table: DistinctKeys(_count(bags, columns), -(-sum(_count(part, columns) for part in parts) // batches))
        for table, columns in reads.items()
    }


def _count(bags: BagRows, columns: Sequence[str]) -> int:
    return len(np.unique(np.concatenate([bags.columns[name].keys for name in columns])))
