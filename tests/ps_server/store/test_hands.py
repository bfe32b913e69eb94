"""Threads that share work give what one alone would have."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_server.store.hands import ThreadPool


@pytest.fixture
def four() -> Iterator[ThreadPool]:
    hands = ThreadPool(4)
    yield hands
    hands.close()


@given(st.integers(1, 5), st.integers(0, 40))
def test_what_comes_of_each_is_in_order(threads: int, count: int) -> None:
    hands = ThreadPool(threads)
    try:
        assert hands.map(lambda thing: 3 * thing, range(count)) == [3 * thing for thing in range(count)]
    finally:
        hands.close()


def test_several_are_at_work(four: ThreadPool) -> None:
    together = threading.Barrier(4)
    assert len(four.map(lambda thing: together.wait(60) if thing % 2 else thing, range(8))) == 8


@pytest.mark.parametrize("fails", ["who asked", "who helps"])
def test_a_failure_is_raised_when_all_have_ended(fails: str) -> None:
    """Else a shard might still write into memory whose owner was told that it has ended."""
    hands, both, ended = ThreadPool(2), threading.Barrier(2), threading.Event()
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
        hands.map(work, range(4))
    assert ended.is_set()
    hands.close()


def test_one_whose_core_is_wanted_elsewhere_keeps_nobody_waiting(four: ThreadPool) -> None:
    """All the rest is done by others while one is at its first thing."""
    rest = threading.Semaphore(0)

    def work(thing: int) -> None:
        if thing:
            rest.release()
            return
        for _ in range(18):  # all but it and its neighbour, which waits with it
            assert rest.acquire(timeout=60)

    four.map(work, range(20))
