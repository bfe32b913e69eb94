"""What holds only each other goes when a worker has gone, and what is loaded once is not looked through each time."""

from __future__ import annotations

import gc
import weakref

import pytest

from dbelief.process.gc_control import collect, freeze
from dbelief.rpc import segments_pb2 as segments
from tests.ps_server.servers import A, Job


class Ring:
    """It holds itself."""

    def __init__(self) -> None:
        self.itself = self


def a_ring() -> weakref.ref[Ring]:
    return weakref.ref(Ring())


def test_a_ring_is_freed() -> None:
    freeze()
    ring = a_ring()
    collect()
    assert ring() is None


def test_what_was_loaded_is_left_out() -> None:
    freeze()
    before = gc.get_freeze_count()
    assert before > 10_000
    kept = [Ring() for _ in range(100)]
    freeze()  # once is enough: what is made later may be rings that go
    assert gc.get_freeze_count() <= before
    assert len(kept) == 100


@pytest.mark.processes
def test_a_shard_frees_what_a_life_has_left_when_it_forgets_it() -> None:
    job = Job()
    try:
        gc.disable()
        ring = a_ring()
        assert ring() is not None
        job.configure(0, fenced=[segments.Pusher(incarnation=A.incarnation)])
        assert ring() is not None
        job.configure(0, forgotten=[segments.Pusher(incarnation=A.incarnation)])
        assert ring() is None
    finally:
        gc.enable()
        job.close()
