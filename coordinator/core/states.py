"""State of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class State(Enum):
    """State of a job."""

    EMPTY = "empty"
    INITIALISING = "initialising"
    READY = "ready"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class ShutdownPhase(IntEnum):
    """Phase of the shutdown of a job; each waits for the one before."""

    DRAIN = 0  # until no lease is outstanding
    CHOOSE = 1  # the result, by a last validation where the best parameters are kept
    SNAPSHOT = 2
    EXPORT = 3
    EVALUATE = 4  # last: whatever fails in it, the model is written
    DONE = 5


@dataclass(frozen=True)
class DatasetSizes:
    """Samples in each data set; zeros where the job has no data.

    Attributes
    ----------
    block_ends
        By epoch, the places of its order at which a block of data ends that is read as a whole; None: there are none.
    """

    train: int
    validation: int
    test: int
    block_ends: Callable[[int], Sequence[int]] | None = None
