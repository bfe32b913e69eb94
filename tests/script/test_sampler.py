"""A sampler over leases: indices in the job's order, and no wait for what only the loop's steps can bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dbelief.core.lease import DataLease
from dbelief.data import permutation
from dbelief.errors import DataError
from dbelief.script.drawn import DrawnBatch, DrawnBatches
from dbelief.script.sampler import Answer, LeasedBatchSampler, Supply

SIZE, SEED = 12, 5
WAIT = Answer(Supply.LATER, 0.0)
DRAINED, OVER = Answer(Supply.DRAINED), Answer(Supply.OVER)


class Leases:
    """A source that answers requests from a list: a lease as (epoch, start, stop), or an answer."""

    def __init__(self, *answers: tuple[int, int, int] | Answer, lockstep: int | None = None) -> None:
        self.drawn = DrawnBatches()
        self.by_epoch = False
        self.lockstep = lockstep
        self.before_compute: Callable[[DrawnBatch], None] = lambda batch: None
        self.pause: Callable[[float], None] = lambda seconds: None
        self.settle: Callable[[], None] = lambda: None
        self.requests = self.replica = self.unguarded = 0
        self._answers = list(answers)

    def request(self) -> Answer:
        """See `Source.request`."""
        self.requests += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Answer):
            return answer
        epoch, start, stop = answer
        self.drawn.receive(DataLease(self.requests, epoch, start, stop, 0))
        return Answer(Supply.RECEIVED)


def sampler(source: Leases, batch: int = 2, accumulate: int = 1) -> LeasedBatchSampler:
    return LeasedBatchSampler(range(SIZE), batch, SIZE, SEED, source, accumulate)


def test_batches_are_the_leased_ranges_of_each_epochs_order() -> None:
    source = Leases((0, 0, 3), (1, 4, 6), OVER)
    batches = []
    for batch in sampler(source):
        batches.append(batch)
        source.drawn.step(len(batch))
    first, second = (permutation(SIZE, SEED, epoch) for epoch in (0, 1))
    assert batches == [first[0:2].tolist(), first[2:3].tolist(), second[4:6].tolist()]


def test_its_length_is_that_of_an_epoch() -> None:
    assert len(sampler(Leases(OVER), batch=5)) == 3


def test_batches_of_a_step_are_of_one_lease() -> None:
    """The last ones of a lease are as many, of fewer samples; none is empty."""
    source = Leases((0, 0, 9), (0, 9, 10), OVER)
    order, batches, keys = permutation(SIZE, SEED, 0).tolist(), list[list[int]](), set[tuple[int, ...]]()
    for batch in sampler(source, 3, accumulate=2):
        batches.append(batch)
        keys.add(batch.key)
        if len(batches) % 2 == 0:
            oldest = source.drawn.next()
            assert oldest is not None
            assert oldest.parts == 2
            source.drawn.step(oldest.stop - oldest.start)
    assert batches == [order[0:3], order[3:6], order[6:7], order[7:9], order[9:10], order[9:10]]
    assert len(keys) == 5, "equal for equal samples alone"
    assert len(sampler(source, 5, accumulate=2)) == 4


def test_without_pending_batches_it_waits_for_samples() -> None:
    source = Leases(WAIT, DRAINED, (0, 0, 2), OVER)
    assert len(next(iter(sampler(source)))) == 2
    assert source.requests == 3


def test_everything_is_leased_and_batches_are_pending() -> None:
    """The loader draws ahead: it is given no more now, and the samples of a failed replica once some are stepped."""
    source = Leases((0, 0, 4), DRAINED, (0, 8, 10), OVER)
    batches = iter(sampler(source))
    assert [next(batches), next(batches)]
    with pytest.raises(StopIteration):
        next(batches)
    source.drawn.step(2)
    assert next(batches) == permutation(SIZE, SEED, 0)[8:10].tolist()


def test_in_lockstep_the_next_lease_is_requested_ahead() -> None:
    source = Leases((0, 0, 4), (0, 4, 8), WAIT, WAIT, WAIT, WAIT, (0, 8, 10), OVER, lockstep=2)
    batches = iter(sampler(source))
    next(batches)
    assert source.requests == 2, "with the first batch of a lease"
    for _ in range(3):
        next(batches)
    with pytest.raises(StopIteration):  # others wait for the steps of the pending batches
        next(batches)
    for _ in range(3):
        source.drawn.step(2)
    assert next(batches) == permutation(SIZE, SEED, 0)[8:10].tolist()


def test_by_epoch_an_iteration_ends_with_it() -> None:
    source = Leases((0, 0, 2), (1, 0, 2), OVER)
    source.by_epoch = True
    batches = list[list[int]]()
    for _ in range(3):
        for batch in sampler(source):
            batches.append(batch)
            source.drawn.step(len(batch))
        batches.append([])
    first, second = (permutation(SIZE, SEED, epoch)[:2].tolist() for epoch in (0, 1))
    assert batches == [first, [], second, [], []]


def test_the_batch_that_is_computed_next_is_announced() -> None:
    source, announced = Leases((0, 0, 6), OVER), list[DrawnBatch]()
    source.before_compute = announced.append
    batches = iter(sampler(source))
    for _ in range(3):
        next(batches)
    assert [batch.start for batch in announced] == [0], "the others are pending behind it"


class Stream:
    """Samples without a length."""


class IterableDataset:
    """A base of this name is torch's; a length does not make it repeatable."""

    def __len__(self) -> int:
        return SIZE


class LongStream(IterableDataset):
    """A stream with a length."""


class Shrinking:
    """A dataset that loses a sample."""

    size = SIZE

    def __len__(self) -> int:
        return self.size


@pytest.mark.parametrize("stream", [Stream(), LongStream()])
def test_a_stream_is_refused(stream: Any) -> None:
    with pytest.raises(DataError, match=r"Stream is a stream: samples are leased by index"):
        LeasedBatchSampler(stream, 2, SIZE, SEED, Leases(OVER))


def test_another_length_is_refused_when_it_is_seen() -> None:
    with pytest.raises(DataError, match=r"has 12 samples, and data\.train in the job file says 13"):
        LeasedBatchSampler(range(SIZE), 2, 13, SEED, Leases(OVER))
    data = Shrinking()
    batches = iter(LeasedBatchSampler(data, 2, SIZE, SEED, Leases((0, 0, 2), (1, 0, 2), OVER)))
    next(batches)
    data.size -= 1
    with pytest.raises(DataError, match="has 11 samples"):
        next(batches)


@pytest.mark.parametrize(("batch", "lockstep"), [(0, None), (3, 4), (8, 4)])
def test_sizes_of_batches_that_do_not_fit(batch: int, lockstep: int | None) -> None:
    with pytest.raises(DataError, match=f"batch_size is {batch}, must"):
        sampler(Leases(OVER, lockstep=lockstep), batch)
