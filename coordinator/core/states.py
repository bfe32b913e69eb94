"""State of a job, and the assignments and reports of replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from dbelief.core.lease import DataLease


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
    VALIDATE = 1
    TEST = 2
    SNAPSHOT = 3
    EXPORT = 4
    DONE = 5


@dataclass(frozen=True)
class DatasetSizes:
    """Samples in each data set; zeros where the job has no data."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class EvaluationLease:
    """An evaluation lease."""

    id: int
    set: str
    vector: str
    samples: int


@dataclass(frozen=True)
class Wait:
    """No work now; the replica retries after `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Stop:
    """No more work."""

    reason: str


@dataclass(frozen=True)
class BundleLease:
    """A bundle of a batch method's pass, to be computed at the vector "trial".

    Attributes
    ----------
    turn, bundle
        Numbers of the pass and of the bundle within it.
    epoch, start, stop
        Samples: positions in an epoch's permutation.
    portion
        Samples that are computed at a time.
    """

    turn: int
    bundle: int
    epoch: int
    start: int
    stop: int
    portion: int


@dataclass(frozen=True)
class GroupLease:
    """A lease, and the group with which it is trained.

    Attributes
    ----------
    members
        Replica number and samples of each, by rank.
    samples_before
        Samples leased before the first of these leases: the place of all of them in the learning-rate schedule.
    written
        Steps that are contained in the parameters on the shards.
    """

    lease: DataLease
    generation: int
    members: tuple[tuple[int, int], ...]
    samples_before: int
    written: int


WAYS = ("sent", "received", "shared_sent", "shared_received")
"""Names of the byte counts in `ResourceUsage.wire`."""

Assignment = DataLease | GroupLease | EvaluationLease | BundleLease | Wait | Stop


@dataclass(frozen=True)
class ResourceUsage:
    """Cumulative resource usage of an incarnation, since its start.

    Attributes
    ----------
    seconds
        Of its computing thread, by phase; empty: not reported, as for the other fields.
    staleness
        Pushes by staleness, as `StalenessHistogram` counts them.
    wire
        Bytes of segments' payloads "sent" to shards in messages and "received", the same through shared memory
        ("shared_sent", "shared_received"), and the "residual" that its codec keeps for later pushes: a sum of
        magnitudes.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    staleness: Sequence[int] = ()
    wire: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgressReport:
    """Progress report of a replica: totals since its lease began (for a client: since it joined).

    Attributes
    ----------
    lease
        0 for a client without leases.
    loss_sum
        Mean loss of each mini-batch times its samples, summed.
    staleness_sum
        Mean staleness of each push over its segments, in versions, summed.
    lost
        Pushes lost with a failed shard, as its next incarnation reported.
    """

    lease: int
    pushes: int = 0
    samples: int = 0
    steps: int = 0
    loss_sum: float = 0.0
    staleness_sum: float = 0.0
    lost: int = 0

    def since(self, before: ProgressReport) -> ProgressReport:
        """The increment after `before`, a report on the same lease."""
        return ProgressReport(
            self.lease,
            self.pushes - before.pushes,
            self.samples - before.samples,
            self.steps - before.steps,
            self.loss_sum - before.loss_sum,
            self.staleness_sum - before.staleness_sum,
            self.lost - before.lost,
        )
