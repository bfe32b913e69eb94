"""Types and constants of pushes that client and shard share, independent of the wire format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dbelief.core.absent import Ranges

PARAMETERS = "w"
"""The named vector that holds the model's parameters."""
TRIAL, ACCRUED = "trial", "accrued"
"""Vectors of a batch method: the point at which a pass computes gradients, and the sum of the bundles' gradients."""


MOST_AHEAD = 256
"""Bundles of an ordered pass that a shard may buffer before their predecessor: no bundle further ahead is leased."""
EXCHANGE_WINDOW = 16
"""Maximum number of unanswered messages of an exchange, of up to 1 MiB each; a shard caches as many replies for each
pusher."""
EXCHANGE_COMBINED = 8
"""Messages of an exchange that are sent as one where all numbers are in shared memory. A multiple of what a thread of
a shard takes at a time, so that several threads share the work; a divisor of the window."""

_ZERO = np.float32(0)


class Pusher(NamedTuple):
    """One incarnation of a replica, and the rank inside it."""

    replica: int
    incarnation: int
    rank: int = 0


class LedgerRow(NamedTuple):
    """What a ledger keeps of the last push of one pusher on one vector; rows of a pusher are ordered by time.

    Attributes
    ----------
    sequence
        Its number; 0: none yet.
    lease, position
        See `Push`.
    """

    sequence: int = 0
    lease: int = 0
    position: int = 0


NO_PUSH = LedgerRow()
"""The row of a pusher that has not pushed."""


@dataclass(frozen=True)
class Push:
    """Header of a push, common to all its segments.

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
        Of its last mini-batch: every earlier one is pushed. Used only with a staleness bound. Of a bundle: its pass,
        from 1.
    base
        After a shard's restart: sequence number at which the ledger continues.
    bundle
        Number of a bundle within its pass: it is added once, whichever replica pushes it, and has no sequence. None: no
        bundle.
    lease, position
        The lease that it belongs to, and how many of its samples are done with this push. All earlier leases of the
        pusher are done too, but for what it has reported as skipped. 0: of no lease.
    absent
        Ranges of the flat vector that took no part: the rule leaves them as they are. Numbers that are sent for them
        are 0. `EVERYTHING`: nothing took part.
    row_factor
        Factor of the tables' own learning rates.
    received_s
        Whole seconds since 1970 when the leading shard received it, for rows that are removed by their age; else 0.
    packed
        Of a bundle: whether each segment's numbers are packed (`dbelief.sparse.table`): keys are positions within it,
        and rows have one number. Its other numbers are 0.
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
    lease: int = 0
    position: int = 0
    absent: Ranges = ()
    row_factor: float = 1.0
    received_s: int = 0
    packed: bool = False

    def at(self, rate: np.float32) -> Push:
        """The push with this learning rate."""
        return self if rate == self.rate else replace(self, rate=rate)

    @property
    def row(self) -> LedgerRow:
        """What a ledger keeps of it."""
        return LedgerRow(self.sequence, self.lease, self.position)


@dataclass(kw_only=True)
class PushStats:
    """Statistics of the mini-batches behind one push.

    `sequence`, `lease`, `position`: as in `Push`; a step of a group has no sequence.
    """

    sequence: int = 0
    lease: int = 0
    position: int = 0
    samples: int = 0
    steps: int = 0
    loss_sum: float = 0.0


@dataclass(frozen=True)
class PushResult:
    """Outcome of a push, over all its segments.

    Attributes
    ----------
    staleness
        Mean over the segments that applied it of (version found - version computed from), or of the rounds that it is
        late.
    duplicates
        Segments that had applied it before.
    lost
        Pushes of this pusher that were lost with a shard's earlier incarnation.
    clock
        With a quorum: the latest open round of its segments; else 0.
    """

    staleness: float
    duplicates: int = 0
    lost: int = 0
    clock: int = 0


def together(results: Sequence[PushResult]) -> PushResult:
    """Outcome of pushes of different segments, which are one push of a replica to its shards; at least one."""
    mean = sum(one.staleness for one in results) / len(results)
    lost, clock = max(one.lost for one in results), max(one.clock for one in results)
    return PushResult(mean, sum(one.duplicates for one in results), lost, clock)


class AppliedPush(NamedTuple):
    """One push that one segment applied.

    Attributes
    ----------
    rate
        At which it was applied.
    round, weight
        The segment's round that it took part in, and its weight there; None: it was applied as it arrived.
    """

    segment: int
    pusher: Pusher
    sequence: int
    rate: float
    round: int | None = None
    weight: float | None = None


STALENESS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
"""Upper bounds of the classes of a `StalenessHistogram`, in versions; one more class has all larger values."""


class StalenessHistogram:
    """Histogram of pushes by staleness.

    Attributes
    ----------
    counts
        Number of pushes in each class.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(STALENESS) + 1)

    def add(self, staleness: float) -> None:
        """Count a push."""
        self.counts[bisect_left(STALENESS, staleness)] += 1
