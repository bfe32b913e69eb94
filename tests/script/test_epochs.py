"""`job.epochs`: which epochs a loop gets, and when it ends."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dbelief.core.lease import DataLease
from dbelief.script.drawn import DrawnBatch, DrawnBatches
from dbelief.script.job import ScriptJob
from dbelief.script.sampler import Answer, LeasedBatchSampler, Supply

SIZE = 6


class Member:
    """Gets these leases, (epoch, start, stop); then the job is over once all that was leased is stepped."""

    replica = unguarded = 0
    by_epoch = over = False

    def __init__(self, *leases: tuple[int, int, int], lockstep: int | None = None, closes: bool = False) -> None:
        self.drawn, self.lockstep = DrawnBatches(), lockstep
        self._leases, self._closes, self._requests = list(leases), closes, 0

    def settle(self) -> None:
        """Nothing travels."""

    def pause(self, seconds: float) -> None:
        """See `Source`."""

    def before_compute(self, batch: DrawnBatch) -> None:
        """See `Source`."""

    def request(self) -> Answer:
        self._requests += 1
        assert self._requests < 50, f"it asks on, with {self.drawn.pending} batches that are not stepped"
        if self._leases:
            self.drawn.receive(DataLease(self._requests, *self._leases.pop(0), 0))
            return Answer(Supply.RECEIVED)
        if self._closes or not (self.drawn.pending or self.drawn.undrawn):
            self.over = True
            return Answer(Supply.OVER)
        return Answer(Supply.DRAINED)


def epochs_of(member: Member, batch: int = 2, accumulated: int = 1) -> list[tuple[int, int]]:
    """(epoch, samples) of a loop that steps after each so many batches."""
    found = []
    for epoch in ScriptJob(cast(Any, member)).epochs():
        held = samples = 0
        for number, indices in enumerate(LeasedBatchSampler(range(SIZE), batch, SIZE, 1, cast(Any, member)), 1):
            held += len(indices)
            if number % accumulated == 0:
                member.drawn.step(held)
                samples, held = samples + held, 0
        found.append((epoch, samples))
    return found


def test_each_epoch_with_samples_is_given_once() -> None:
    assert epochs_of(Member((0, 0, 4), (0, 4, 6), (1, 0, 2))) == [(0, 6), (1, 2)]


@pytest.mark.parametrize("lockstep", [None, 2])
def test_a_lease_that_was_received_ahead_is_trained_though_the_job_closes(lockstep: int | None) -> None:
    member = Member((0, 0, 6), (1, 0, 6), lockstep=lockstep, closes=True)
    assert epochs_of(member) == [(0, 6), (1, 6)]
    assert not member.drawn.undrawn


def test_it_ends_where_all_that_the_job_waits_for_is_drawn_and_not_stepped() -> None:
    member = Member((0, 0, 6))
    assert epochs_of(member, accumulated=2) == [(0, 4)]
    assert member.drawn.pending_samples == 2, "which `_warn` names"


def test_samples_that_a_loader_has_not_delivered_are_drawn_again() -> None:
    member, found = Member((0, 0, 6)), []
    for epoch in ScriptJob(cast(Any, member)).epochs():
        found.append(epoch)
        batches = iter(LeasedBatchSampler(range(SIZE), 2, SIZE, 1, cast(Any, member)))
        drawn = [len(indices) for indices in batches]
        if epoch == 0 and len(found) == 1:
            member.drawn.step(drawn[0])
            member.drawn.undelivered = lambda: 2  # its loop is left after the first batch
        else:
            assert drawn == [2, 2]
            member.drawn.step(4)
    assert found == [0, 0]
