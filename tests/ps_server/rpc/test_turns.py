"""Small messages of a shard are processed one at a time, unless they may wait, or are lock-free."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import Push, Pusher
from dbelief.rpc.wire import bulk
from ps_server.rpc import upload
from ps_server.store.shard import Shard
from tests.ps_server.rpc.test_shared_memory import Latch
from tests.ps_server.servers import A, B, Job
from tests.threads import at_once

pytestmark = pytest.mark.processes
ONE = np.float32(1)
PUSHERS, PUSHES = 3, 4


class Overlaps:
    """Counts the calls of `Shard.push` that begin while another call of the same shard's is in progress."""

    def __init__(self) -> None:
        self.found = 0
        self._inside: Counter[int] = Counter()
        self._lock = threading.Lock()

    def around(self, push: Callable[..., Any]) -> Callable[..., Any]:
        def counted(shard: Shard, *words: Any) -> Any:
            with self._lock:
                self.found += self._inside[id(shard)] > 0
                self._inside[id(shard)] += 1
            try:
                time.sleep(2e-4)  # the others run meanwhile, if nothing keeps them
                return push(shard, *words)
            finally:
                with self._lock:
                    self._inside[id(shard)] -= 1

        return counted


def push_from_threads(job: Job, shares_memory: bool) -> None:
    """Push vectors of 1 from several clients at the same time."""

    def pushes(pusher: Pusher) -> None:
        client = clients[pusher]
        values = client.array(job.placement.size)
        values[:] = 1.0
        for number in range(1, PUSHES + 1):
            client.push(values, job.held(0), Push(pusher, number, ONE))

    clients = {
        pusher: job.client(pusher, shares_memory=shares_memory) for pusher in map(Pusher, range(3), range(11, 14))
    }
    at_once(pushes, clients)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_one_at_a_time(job: Job, monkeypatch: pytest.MonkeyPatch, shares_memory: bool) -> None:
    overlaps = Overlaps()
    monkeypatch.setattr(upload, "TURN_S", 60.0)
    monkeypatch.setattr(Shard, "push", overlaps.around(Shard.push))
    push_from_threads(job, shares_memory)
    assert overlaps.found == 0
    out = np.empty(job.placement.size, np.float32)
    job.client(A).pull(out, job.held())
    np.testing.assert_array_equal(out, job.full(-PUSHERS * PUSHES))


def test_a_stuck_one_does_not_stop_the_others(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    latch = Latch(1)
    monkeypatch.setattr(Shard, "push", latch.around(Shard.push))
    stuck = threading.Thread(
        target=lambda: job.client(A).push(job.full(1.0), job.held(0), Push(A, 1, ONE)),
    )
    stuck.start()
    assert latch.held.wait(60)
    assert job.client(B).push(job.full(1.0), job.held(0), Push(B, 1, ONE)).duplicates == 0
    latch.let_go()
    stuck.join()


def test_which_take_turns(start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [bulk.SegmentPayload(0, shared=True)]
    free = start().services[0].controller
    assert upload._is_short(free, parts)
    assert free.shard is not None
    free.shard.lock_free = True
    assert not upload._is_short(free, parts), "lock-free pushes are concurrent on purpose"
    free.shard.lock_free = False
    monkeypatch.setattr(upload, "MIN_BYTES_PER_THREAD", free.shard.segment(0).nbytes)
    assert not upload._is_short(free, parts), "a large one is worth a thread of its own"
    assert not upload._is_short(start(staleness=1).services[0].controller, parts), "it may wait for its round"
