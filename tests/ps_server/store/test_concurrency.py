"""Waits for a segment's lock are measured; threads that share work give what one alone would have."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.optim import make_rule
from dbelief.process.runtime import Runtime, use_runtime
from ps_server.store.concurrency import MIN_BYTES_PER_THREAD, ThreadPool, TimedLock
from ps_server.store.shard import Shard
from tests.threads import at_once


def test_uncontended_acquisition_is_not_counted() -> None:
    lock = TimedLock()
    for _ in range(3):
        with lock:
            pass
    assert (lock.waits, lock.waited_s) == (0, 0.0)


def test_contended_acquisition_is_counted_and_timed() -> None:
    lock, asked, times = TimedLock(), threading.Event(), iter((10.0, 12.5))

    class Watch(Runtime):
        def monotonic(self) -> float:
            asked.set()
            return next(times)

    def wait() -> None:
        with lock:
            assert lock.waits == 1

    other = threading.Thread(target=wait)
    with use_runtime(Watch()):
        with lock:
            other.start()
            assert asked.wait(60)
            assert lock.waits == 0
        other.join()
    assert (lock.waits, lock.waited_s) == (1, 2.5)


def test_lock_is_exclusive() -> None:
    lock, inside, seen = TimedLock(), [0], []

    def work(_: int) -> None:
        for _ in range(2_000):
            with lock:
                inside[0] += 1
                seen.append(inside[0])
                inside[0] -= 1

    at_once(work, range(4))
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


@pytest.fixture
def four() -> Iterator[ThreadPool]:
    pool = ThreadPool(4)
    yield pool
    pool.close()


@given(st.integers(1, 5), st.integers(0, 40))
def test_results_are_in_order(threads: int, count: int) -> None:
    pool = ThreadPool(threads)
    try:
        assert pool.map(lambda thing: 3 * thing, range(count), count * MIN_BYTES_PER_THREAD) == [
            3 * thing for thing in range(count)
        ]
    finally:
        pool.close()


def test_several_are_at_work(four: ThreadPool) -> None:
    together, large = threading.Barrier(4), 8 * MIN_BYTES_PER_THREAD
    assert len(four.map(lambda thing: together.wait(60) if thing % 2 else thing, range(8), large)) == 8


def test_small_things_wake_no_thread(four: ThreadPool) -> None:
    mine = threading.get_ident()
    assert set(four.map(lambda _: threading.get_ident(), range(8), 2 * MIN_BYTES_PER_THREAD - 1)) == {mine}


@pytest.mark.parametrize("fails", ["who asked", "who helps"])
def test_a_failure_is_raised_when_all_have_ended(fails: str) -> None:
    """Else a shard might still write into memory whose owner was told that it has ended."""
    pool, both, ended = ThreadPool(2), threading.Barrier(2), threading.Event()
    who_asked, quiet = threading.current_thread(), threading.Event()

    def work(thing: int) -> None:
        if thing % 2:
            return
        both.wait(60)
        if (threading.current_thread() is who_asked) == (fails == "who asked"):
            raise ValueError("it failed")
        quiet.wait(0.1)  # the other one has long failed
        ended.set()

    with pytest.raises(ValueError, match="it failed"):
        pool.map(work, range(4), 4 * MIN_BYTES_PER_THREAD)
    assert ended.is_set()
    pool.close()


def test_preempted_thread_blocks_no_other(four: ThreadPool) -> None:
    """All the rest is done by others while one is at its first thing."""
    rest = threading.Semaphore(0)

    def work(thing: int) -> None:
        if thing:
            rest.release()
            return
        for _ in range(18):  # all but it and its neighbour, which waits with it
            assert rest.acquire(timeout=60)

    four.map(work, range(20), 20 * MIN_BYTES_PER_THREAD)
