"""Messages between replicas and the coordinator, as plain values: requests, assignments and reports of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from dbelief.core.lease import DataLease


class Wants(IntEnum):
    """Work that a member requests."""

    ANY = 0
    TRAINING = 1
    EVALUATION = 2


class WorkRequest(NamedTuple):
    """A replica's or client's request for work.

    Attributes
    ----------
    pass_number, held_bundles
        Numbers of a pass, and of its bundles that the replica holds and has not reported yet.
    prefetch
        Whether it still computes one of them, and requests the next in advance.
    last_lease, steps
        The lease that it received last, finished or not, and the steps that its group has made with it.
    broken_generation, broken_reason
        Generation of a group in which it cannot continue, and the reason for display; 0: none.
    wants
        The kind of work that it can do now.
    """

    replica: int
    incarnation: int
    pass_number: int = 0
    held_bundles: tuple[int, ...] = ()
    prefetch: bool = False
    last_lease: int = 0
    steps: int = 0
    broken_generation: int = 0
    broken_reason: str = ""
    wants: Wants = Wants.ANY


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
    pass_number, bundle
        Numbers of the pass and of the bundle within it.
    epoch, start, stop
        Samples: positions in an epoch's permutation.
    portion
        Samples that are computed at a time.
    """

    pass_number: int
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


Assignment = DataLease | GroupLease | EvaluationLease | BundleLease | Wait | Stop


class BundleResult(NamedTuple):
    """A bundle that all shards hold: numbers of its pass and its own, sum of its samples' losses, number of samples.

    `seconds`: the time of its computation; 0: not known.
    """

    pass_number: int
    bundle: int
    loss_sum: float
    samples: int
    seconds: float = 0.0


WAYS = ("sent", "received", "shared_sent", "shared_received")
"""Names of the byte counts in `ResourceUsage.wire`."""


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
    cache_reads, cache_hits
        By table, keys that it has looked for in its cache of rows, and keys whose rows were there.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    staleness: Sequence[int] = ()
    wire: Mapping[str, float] = field(default_factory=dict)
    cache_reads: Mapping[str, int] = field(default_factory=dict)
    cache_hits: Mapping[str, int] = field(default_factory=dict)


_TOTALS = ("pushes", "samples", "steps", "loss_sum", "staleness_sum", "lost", "steps_left_out")


@dataclass(frozen=True)
class ProgressReport:
    """Progress report of a replica or client: totals since it joined.

    Attributes
    ----------
    lease, position, sequence
        Of its last acknowledged push: see `Push`. 0 for a client without leases, and a push without a number.
    loss_sum
        Mean loss of each mini-batch times its samples, summed.
    staleness_sum
        Mean staleness of each push over its segments, in versions, summed.
    lost
        Pushes lost with a failed shard, as its next incarnation reported.
    steps_left_out
        Of the steps: those that a script's loss scaler left out.
    open_round
        With a quorum: the latest open round that it knows of; else 0.
    """

    lease: int = 0
    position: int = 0
    sequence: int = 0
    pushes: int = 0
    samples: int = 0
    steps: int = 0
    loss_sum: float = 0.0
    staleness_sum: float = 0.0
    lost: int = 0
    steps_left_out: int = 0
    open_round: int = 0

    def since(self, before: ProgressReport) -> ProgressReport:
        """The increment of the totals after `before`, an earlier report of the same member."""
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in _TOTALS})
