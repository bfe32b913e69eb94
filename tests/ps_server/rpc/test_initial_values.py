"""Initial values that are drawn while they are sent: one push, over shards that fail or give segments away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.push_source import PushSource
from dbelief.core.layout import Layout, Range
from dbelief.core.push import Push, PushResult
from dbelief.nn.initial_values import UniformTensor, UniformValues
from dbelief.rpc.wire import bulk
from dbelief.training.initial_values import DrawnInOrder, HeldTensors
from tests.ps_server.replication.test_migration import give, hold, moved
from tests.ps_server.servers import A, B, Job

pytestmark = pytest.mark.processes
SIZE = 317
"""Numbers of the job's 40 segments."""
TENSORS = [UniformTensor(101, 0.5), UniformTensor(7, None), UniformTensor(SIZE - 108, 0.25)]
VALUES = UniformValues(TENSORS, 3).draw(0, np.empty(SIZE, np.float32))
LAYOUT = Layout.whole({"w": (SIZE,)})


def drawn_in_order() -> PushSource:
    rows = (("w", first, VALUES[first : first + 10]) for first in range(0, SIZE, 10))
    return DrawnInOrder(LAYOUT, rows)


SOURCES: dict[str, Callable[[], PushSource]] = {
    "uniform": lambda: UniformValues(TENSORS, 3),
    "in order": drawn_in_order,
    "tensors": lambda: HeldTensors(LAYOUT, {"w": VALUES}),
}


class Interrupted:
    """A source that stops after some blocks of each shard's ten, until it may go on: none of them has all."""

    def __init__(self, source: PushSource, after: int) -> None:
        self._source, self._after = source, after
        self.stopped, self.may_go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        for number, block in enumerate(self._source.blocks(ranges)):
            if number >= self._after:
                self.stopped.set()
                assert self.may_go_on.wait(60)
                if self.error is not None:
                    raise self.error
            yield block


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PushSource:
    """A source of the values, which are sent in messages of two segments at most."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 64)
    return SOURCES[request.param]()


@pytest.fixture
def empty(job: Job) -> Job:
    """A job whose shards wait for initial values."""
    for number in range(2):
        job.restart(number)
    return job


def read(job: Job) -> np.ndarray:
    """The values, once the shards accept pushes: all of them are there."""
    for number in range(2):
        job.configure(number, ready=True)
    return job.read()


@contextmanager
def under_way(job: Job, source: PushSource, after: int, sequence: int = 1) -> Iterator[Future[PushResult]]:
    """A push of A that stops after so many blocks of a shard; in the block it is stopped, after it the push goes on."""
    client, interrupted = job.client(A, refresh=lambda: job.placement), Interrupted(source, after)
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(client.push, interrupted, job.held(0), Push(A, sequence, assign=True))
        try:
            assert interrupted.stopped.wait(60)
            yield pushing
        finally:
            interrupted.may_go_on.set()


def test_values_arrive(empty: Job, source: PushSource) -> None:
    done = empty.client(A).push(source, empty.held(0), Push(A, 1, assign=True))
    assert (done.duplicates, done.lost) == (0, 0)
    assert read(empty).tobytes() == VALUES.tobytes()


@pytest.mark.parametrize("here", [True, False], ids=["same port", "another port"])
@pytest.mark.parametrize("after", [1, 5, 9])
def test_shard_that_is_replaced_in_the_middle_gets_all_its_values(
    empty: Job, source: PushSource, after: int, here: bool
) -> None:
    with under_way(empty, source, after) as pushing:
        empty.restart(1, here=here)
    assert pushing.result(60).lost == 0
    assert read(empty).tobytes() == VALUES.tobytes()


def test_values_are_pushed_again_where_a_shard_has_failed_since(empty: Job, source: PushSource) -> None:
    """The second push names its own number as base, since the shard's ledger ends before it."""
    client = empty.client(A, refresh=lambda: empty.placement)
    client.push(source, empty.held(0), Push(A, 1, assign=True))
    empty.restart(0)
    client.locate(empty.placement.epoch)
    assert client.push(source, empty.held(0), Push(A, 2, assign=True)).duplicates == 0
    assert read(empty).tobytes() == VALUES.tobytes()


@pytest.mark.parametrize("after", [1, 5, 9])
def test_segments_that_move_in_the_middle_are_complete(empty: Job, source: PushSource, after: int) -> None:
    with under_way(empty, source, after):
        going = [3, 4, 17, 18, 19]
        give(empty, 0, 1, going)
        placement = moved(empty.placement, 0, 1, going)
        hold(empty, 1, list(placement.places[1].segments))
        empty.placement = placement
        hold(empty, 0, list(placement.places[0].segments))
    assert read(empty).tobytes() == VALUES.tobytes()


def test_another_worker_pushes_the_values_where_one_fails_in_the_middle(empty: Job, source: PushSource) -> None:
    class Gone(Exception):
        """The worker's end."""

    failing = Interrupted(UniformValues([UniformTensor(SIZE, None)], 0), 7)
    failing.error = Gone()
    failing.may_go_on.set()
    with pytest.raises(Gone):
        empty.client(A).push(failing, empty.held(0), Push(A, 1, assign=True))
    done: Any = empty.client(B).push(source, empty.held(0), Push(B, 1, assign=True))
    assert done.duplicates == 0
    assert read(empty).tobytes() == VALUES.tobytes()
