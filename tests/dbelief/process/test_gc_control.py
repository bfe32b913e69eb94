"""Reference cycles are freed after a worker left, and loaded modules are frozen."""

from __future__ import annotations

import gc
import weakref

import pytest

from dbelief.process.gc_control import collect, freeze
from dbelief.rpc.pb import segments_pb2 as segments
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


def test_loaded_objects_are_frozen() -> None:
    freeze()
    before = gc.get_freeze_count()
    assert before > 10_000
    kept = [Ring() for _ in range(100)]
    freeze()  # once is enough: what is made later may be rings that go
    assert gc.get_freeze_count() <= before
    assert len(kept) == 100


@pytest.mark.processes
def test_shard_frees_garbage_when_it_forgets_an_incarnation() -> None:
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
