"""Leases of training data, and the schedule by which a replica of the job's own model splits them into pushes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataLease:
    """A range of one epoch's permutation, split into mini-batches in order; the last one may be short.

    Attributes
    ----------
    id, epoch, start, stop
        Half-open range [start, stop) of the permutation of epoch `epoch`.
    samples_before
        Samples leased before it: its position in the learning-rate schedule.
    clock, member_epoch
        With a staleness bound: clock of its first mini-batch, of DiLoCo of its first round, and the membership epoch.
    stride
        Difference between successive clocks: more than 1 where replicas alternate.
    """

    id: int
    epoch: int
    start: int
    stop: int
    samples_before: int
    clock: int = 0
    member_epoch: int = 0
    stride: int = 1

    @property
    def samples(self) -> int:
        """Number of samples of the lease."""
        return self.stop - self.start


@dataclass(frozen=True)
class FetchPushSchedule:
    """Frequency of a replica's fetches and pushes (DistBelief, section 4.1 and Algorithm 7.1).

    `step` counts mini-batches from the start of a lease. The aligned order pushes when (step + 1) mod n_push == 0, so
    that a fetch includes all that was computed before it; the paper's literal order pushes when step mod n_push == 0.
    """

    batch: int
    n_fetch: int = 1
    n_push: int = 1
    literal: bool = False

    def steps(self, samples: int) -> int:
        """Number of mini-batches in `samples` samples."""
        return -(-samples // self.batch)

    @property
    def fetches_after_every_push(self) -> bool:
        """Whether every push within a lease is followed by a fetch before the next mini-batch."""
        return self.n_fetch == 1 or (not self.literal and self.n_push % self.n_fetch == 0)

    @property
    def needs_own_gradient(self) -> bool:
        """Whether a mini-batch's gradient is needed beside the push's: to be added to it, or for a local step."""
        return self.n_push > 1 or self.n_fetch > 1

    def fetches_at(self, step: int) -> bool:
        """Whether parameters are fetched before mini-batch `step`."""
        return step % self.n_fetch == 0

    def pushes_after(self, step: int, steps: int) -> bool:
        """Whether a push follows mini-batch `step` of `steps`; the last one always flushes."""
        due = step if self.literal else step + 1
        return due % self.n_push == 0 or step == steps - 1
