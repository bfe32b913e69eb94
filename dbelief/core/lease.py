"""Leases of training data as mini-batches and pushes, defined once for coordinator and replica.

A push always belongs to exactly one lease: at a lease's end the accumulated gradient is flushed. So the coordinator can
convert a ledger's sequence numbers to samples without a report of the replica.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataLease:
    """A range of one epoch's permutation, split into mini-batches in order; the last one may be short.

    Attributes
    ----------
    id, epoch, start, stop
        Half-open range [start, stop) of the permutation of epoch `epoch`.
    first_sequence
        Sequence number of its first push.
    samples_before
        Samples leased before it: its position in the learning-rate schedule.
    clock, member_epoch
        With a staleness bound: clock of its first mini-batch, and the membership epoch.
    stride
        Difference between the clocks of successive mini-batches: more than 1 where replicas alternate.
    """

    id: int
    epoch: int
    start: int
    stop: int
    first_sequence: int
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

    def pushes(self, samples: int) -> int:
        """Number of pushes of a lease of `samples` samples."""
        steps = self.steps(samples)
        whole, rest = divmod(steps, self.n_push)
        if not self.literal:
            return whole + (rest > 0)
        return whole + (rest > 0) + (steps > 0 and (steps - 1) % self.n_push > 0)

    def samples_in(self, samples: int, pushes: int) -> int:
        """Samples behind the first `pushes` pushes of a lease of `samples`."""
        if pushes <= 0:
            return 0
        if pushes >= self.pushes(samples):
            return samples
        steps = (pushes - 1) * self.n_push + 1 if self.literal else pushes * self.n_push
        return min(samples, steps * self.batch)
