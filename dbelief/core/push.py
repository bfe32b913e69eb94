"""The words that client and shard share about pushes, without a wire."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

PARAMETERS = "w"
"""The named vector that holds the model's parameters."""
TRIAL, ACCRUED = "trial", "accrued"
"""Of a batch method: where a pass computes gradients, and their sum, which bundles are added to."""


MOST_AHEAD = 256
"""Bundles of an ordered pass that may wait at a shard for the one before them: no bundle further ahead is given out."""
EXCHANGE_WINDOW = 16
"""Messages that an exchange may be ahead of its answers; a shard keeps so many of each pusher."""

_ZERO = np.float32(0)


class Pusher(NamedTuple):
    """A replica in one of its lives, and the rank inside it."""

    replica: int
    incarnation: int
    rank: int = 0


@dataclass(frozen=True)
class Push:
    """What holds for all segments of a push.

    Attributes
    ----------
    sequence
        Number of this push on this vector by this pusher, from 1 without gaps.
    rate
        Learning rate.
    samples
        Samples behind the gradient.
    vector
        Named vector that is updated.
    assign
        Whether values are overwritten instead of the job's rule being applied.
    clock
        Of the last mini-batch behind it: every earlier one is pushed. Counts with the staleness dial only. Of a
        bundle: its pass, from 1.
    base
        After a shard came back to life: number that the ledger goes on from.
    bundle
        Number of a bundle within its pass: it is added once, whoever pushes it, and has no sequence. None: no bundle.
    """

    pusher: Pusher
    sequence: int
    rate: np.float32 = _ZERO
    samples: int = 1
    vector: str = PARAMETERS
    assign: bool = False
    clock: int = 0
    base: int | None = None
    bundle: int | None = None


@dataclass(frozen=True)
class PushResult:
    """What became of a push, over all its segments.

    Attributes
    ----------
    staleness
        Mean over the segments that applied it of (version found - version computed from).
    duplicates
        Segments that had applied it before.
    lost
        Pushes of this pusher that died with a shard's earlier life.
    """

    staleness: float
    duplicates: int = 0
    lost: int = 0


STALENESS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
"""Versions up to which a push is counted in a class of a `Spread`; one class more has all others."""


class StalenessHistogram:
    """Pushes by staleness.

    Attributes
    ----------
    counts
        Pushes of each class.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(STALENESS) + 1)

    def add(self, staleness: float) -> None:
        """Count a push."""
        self.counts[bisect_left(STALENESS, staleness)] += 1
