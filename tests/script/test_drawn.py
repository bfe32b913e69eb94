"""The account of drawn batches: every sample of every lease is stepped or given back, once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.lease import DataLease
from dbelief.errors import UserError
from dbelief.script.drawn import DrawnBatches, LockstepBlock


def lease(number: int, samples: int, before: int = 0) -> DataLease:
    return DataLease(number, 0, before, before + samples, before)


def received(*sizes: int) -> DrawnBatches:
    drawn = DrawnBatches()
    before = 0
    for number, samples in enumerate(sizes, 1):
        drawn.receive(lease(number, samples, before))
        before += samples
    return drawn


def test_batches_end_with_their_lease() -> None:
    drawn = received(5, 3)
    batches = [drawn.draw(4) for _ in range(3)]
    assert [(batch.lease.id, batch.start, batch.stop) for batch in batches] == [(1, 0, 4), (1, 4, 5), (2, 0, 3)]
    assert (drawn.pending, drawn.pending_samples, drawn.undrawn) == (3, 8, 0)


def test_a_lease_that_is_received_again_is_not_drawn_again() -> None:
    drawn = received(4)
    drawn.receive(lease(1, 4))
    assert (drawn.undrawn, drawn.last_lease) == (4, 1)


def test_a_step_completes_the_oldest_batches() -> None:
    drawn = received(4, 4)
    for _ in range(4):
        drawn.draw(2)
    stepped = drawn.step(2)
    assert (stepped.lease.id, stepped.position, stepped.samples_before) == (1, 2, 0)
    stepped = drawn.step(4)  # accumulated over the end of a lease
    assert (stepped.lease.id, stepped.position, stepped.samples_before) == (2, 2, 2)
    following = drawn.next()
    assert following is not None
    assert (following.lease.id, following.start) == (2, 2)


@pytest.mark.parametrize("samples", [0, -2, 1, 3, 6])
def test_a_step_is_of_whole_batches(samples: int) -> None:
    drawn = received(4)
    for _ in range(2):
        drawn.draw(2)
    with pytest.raises(UserError, match=rf"sync.step with samples={samples}, and the batches .* have 2"):
        drawn.step(samples)
    assert drawn.pending == 2, "nothing is completed"


def test_without_a_batch_there_is_no_step() -> None:
    with pytest.raises(
        UserError, match=r"no batch of the job is drawn: make the loader with batch_sampler=job\.sampler"
    ):
        received(4).step(2)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    batch=st.integers(1, 4),
    ahead=st.integers(1, 5),
    data=st.data(),
)
def test_every_sample_is_stepped_or_given_back_once(
    sizes: list[int], batch: int, ahead: int, data: st.DataObject
) -> None:
    drawn, accounted, skipped = received(*sizes), list[tuple[int, int]](), set[tuple[int, int]]()
    reached = (0, 0)
    while drawn.undrawn or drawn.pending:
        while drawn.undrawn and drawn.pending < ahead:
            drawn.draw(batch)
        count = data.draw(st.integers(1, drawn.pending))
        oldest = list(drawn._drawn)[:count]
        samples = sum(one.stop - one.start for one in oldest)
        accounted += [(one.lease.id, place) for one in oldest for place in range(one.start, one.stop)]
        if data.draw(st.booleans()):
            stepped = drawn.step(samples)
            assert (stepped.lease.id, stepped.position) > reached
            reached = stepped.lease.id, stepped.position
            done = {place for place in accounted if place < reached}
            assert done == {(one, p) for one, size in enumerate(sizes, 1) for p in range(size) if (one, p) < reached}
        else:
            given_back = drawn.skip(samples)
            skipped |= {(one.lease.id, place) for one in given_back for place in range(one.start, one.stop)}
    assert accounted == [(number, place) for number, size in enumerate(sizes, 1) for place in range(size)]
    assert skipped <= set(accounted)


def test_in_lockstep_a_step_comes_after_the_samples_of_all_replicas() -> None:
    """As in one process with their joint batches, for the learning rate."""
    drawn = DrawnBatches()
    drawn.receive(lease(4, 6, 106), LockstepBlock(100, (6, 6, 3)))
    drawn.receive(lease(7, 4, 115), LockstepBlock(115, (4, 4)))
    for _ in range(5):
        drawn.draw(2)
    assert [drawn.step(2).samples_before for _ in range(5)] == [100, 106, 111, 115, 119]


def test_what_is_pending_is_one_step_or_several() -> None:
    """A step is of one lease; its last one may be smaller."""
    drawn = received(7, 2)
    found = list[bool]()
    for _ in range(5):
        drawn.draw(2)
        found.append(drawn.are_one_step(4))
    assert found == [True, True, False, False, False]
    drawn.step(4)
    assert not drawn.are_one_step(4), "the ends of two leases, of 3 and 2 samples"
    drawn.step(3)
    assert drawn.are_one_step(4)
