"""What a segment's lock knows of those who waited for it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.optim import make_rule
from ps_server.store import lock as module
from ps_server.store.lock import TimedLock
from ps_server.store.shard import Shard


def test_who_finds_it_free_is_not_counted() -> None:
    lock = TimedLock()
    for _ in range(3):
        with lock:
            pass
    assert (lock.waits, lock.waited_s) == (0, 0.0)


def test_who_finds_it_held_is_counted_with_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, asked, times = TimedLock(), threading.Event(), iter((10.0, 12.5))

    class Watch:
        @staticmethod
        def perf_counter() -> float:
            asked.set()
            return next(times)

    monkeypatch.setattr(module, "time", Watch)

    def wait() -> None:
        with lock:
            assert lock.waits == 1

    other = threading.Thread(target=wait)
    with lock:
        other.start()
        assert asked.wait(60)
        assert lock.waits == 0
    other.join()
    assert (lock.waits, lock.waited_s) == (1, 2.5)


def test_nobody_is_let_in_beside_another() -> None:
    lock, inside, seen = TimedLock(), [0], []

    def work() -> None:
        for _ in range(2_000):
            with lock:
                inside[0] += 1
                seen.append(inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {1}
    assert len(seen) == 8_000


def test_a_shard_adds_up_its_segments() -> None:
    shard = Shard([SegmentSpan(0, 0, 2), SegmentSpan(1, 2, 2)], make_rule("sgd", {}))
    for segment in shard.segments.values():
        segment.lock.waits, segment.lock.waited_s = segment.span.index + 1, 0.25
    assert shard.waits() == (3, 0.5)
    for index in (0, 1):
        shard.push(Push(Pusher(0, 1), 1, assign=True), index, np.zeros(2, np.float32))
    shard.make_ready()
    for sequence in (2, 3):
        shard.push(Push(Pusher(0, 1), sequence), 1, np.ones(2, np.float32))
    shard.pull(PARAMETERS, 1)
    assert shard.taken() == {0: 1, 1: 3}
