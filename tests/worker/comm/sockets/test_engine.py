"""Rules of one engine, over pairs of sockets that need no port: order, what is kept aside, misfits, ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dbelief.errors import RankFailure, Unavailable
from dbelief.process.clock import Clock, ManualClock
from worker.comm import Communicator, Message
from worker.comm.sockets import SocketEngine

ADDRESSES = ["here:1", "there:2", "elsewhere:3"]
LARGE = 300_000
"""Numbers of 8 bytes that no kernel keeps for a reader."""


def group(size: int = 2, clock: Clock | None = None) -> list[SocketEngine]:
    """Engines whose every two ranks are joined by two pairs of sockets."""
    links: list[dict[int, tuple[socket.socket, socket.socket]]] = [{} for _ in range(size)]
    for a in range(size):
        for b in range(a):
            (here, there), (news_here, news_there) = socket.socketpair(), socket.socketpair()
            for one in (here, there, news_here, news_there):
                one.setblocking(False)
            links[a][b], links[b][a] = (here, news_here), (there, news_there)
    return [SocketEngine(rank, ADDRESSES[:size], links[rank], clock) for rank in range(size)]


@contextmanager
def comms(size: int = 2, clock: Clock | None = None) -> Iterator[list[Communicator]]:
    engines = group(size, clock)
    yield [Communicator(engine, 30.0) for engine in engines]
    for engine in engines:
        engine.close()


@contextmanager
def meanwhile(function: Callable[[], Any]) -> Iterator[list[BaseException]]:
    """Run it in a thread of its own, to its end; gives what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield raised
    thread.join(60)
    assert not thread.is_alive()


def test_unrequested_data_is_not_read() -> None:
    clock = ManualClock(autojump=True)
    with comms(clock=clock) as (left, right):
        with pytest.raises(Unavailable, match=r"nothing came for 30 s; rank 0 waited for rank 1 to take 2,400,000"):
            left.send(np.arange(LARGE), 1, tag=4)
        right.engine.check()


@pytest.mark.parametrize("asked_first", [True, False])
def test_mismatched_sides_are_reported_and_recoverable(asked_first: bool) -> None:
    with comms() as (left, right):
        if asked_first:
            wrong = right.irecv(np.empty(2, np.float64), 0)
            left.send(np.ones(4, np.float32), 1)
        else:
            left.send(np.ones(4, np.float32), 1)
            left.send(np.ones(1), 1, tag=2)
            right.recv(np.empty(1), 0, tag=2)  # and so the first one is kept aside
            wrong = right.irecv(np.empty(2, np.float64), 0)
        reason = r"rank 1 wants rank 0 to send 16 bytes \(tag 0\) as 2 float64, and there it is 4 float32"
        with pytest.raises(ValueError, match=reason):
            wrong.wait()
        taken = np.empty(4, np.float32)
        right.recv(taken, 0)
        assert taken.tolist() == [1] * 4


def test_unresponsive_rank_is_named_at_the_timeout() -> None:
    clock = ManualClock()
    with comms(clock=clock) as (left, _):
        pending = left.irecv(np.empty(2), 1, tag=4)
        with meanwhile(pending.wait) as raised:
            assert clock.until_waiting(1)
            clock.advance(29.0)
            assert not raised
            clock.advance(1.0)
        assert str(raised[0]) == "nothing came for 30 s; rank 0 waited for rank 1 to send 16 bytes (tag 4)"


def test_death_ends_all_waits_with_its_first_cause() -> None:
    with comms(3) as (left, right, third):
        pending = left.irecv(np.empty(2), 1)
        with meanwhile(pending.wait) as raised:
            third.abort(ValueError("no"))
            third.abort(ValueError("the first death counts"))
        death = "rank 2 at elsewhere:3 died of ValueError: no"
        assert str(raised[0]) == f"{death}; rank 0 waited for rank 1 to send 16 bytes (tag 0)"
        left.abort(raised[0])
        for comm in (right, third):
            with pytest.raises(RankFailure, match=f"{death}; reported to rank {comm.rank}"):
                comm.engine.check()
            with pytest.raises(RankFailure, match=death):
                comm.isend(np.ones(1), 0)


def test_any_thread_can_end_a_wait_of_its_own_rank() -> None:
    clock = ManualClock()
    with comms(clock=clock) as (left, right):
        with meanwhile(left.irecv(np.empty(2), 1).wait) as raised:
            assert clock.until_waiting(1)
            left.abort(TimeoutError("told to stop"))
        assert str(raised[0]).startswith("rank 0 at here:1 died of TimeoutError: told to stop; rank 0 waited for")
        with pytest.raises(RankFailure, match="rank 0 at here:1 died of TimeoutError: told to stop"):
            right.recv(np.empty(2), 0)


def test_a_rank_that_is_gone_without_a_word_is_named() -> None:
    left, right, third = group(3)
    with meanwhile(Communicator(right).irecv(np.empty(2), 2).wait) as raised:
        for peer in left._peers.values():  # as the kernel does when a process is killed
            peer.close()
    assert str(raised[0]).startswith("rank 0 at here:1 died of ConnectionError: it is gone without a word; rank 1 wait")
    with pytest.raises(RankFailure, match="rank 0 at here:1 died of ConnectionError"):
        third.check()
    for engine in (left, right, third):
        engine.close()


def test_broken_connection_is_a_death() -> None:
    clock = ManualClock(autojump=True)
    left, right = group(clock=clock)
    left._peers[1].messages.close()
    with pytest.raises(RankFailure, match="rank 0 at here:1 died of ConnectionError: it closed the connection"):
        Communicator(right).recv(np.empty(2), 0)
    for engine in (left, right):
        engine.close()


def test_goodbye_is_no_death_and_sent_data_arrives() -> None:
    with comms(3) as (left, right, third):
        left.send(np.arange(5), 1)
        left.close()
        third.engine.check()
        taken = np.empty(5, np.int64)
        right.recv(taken, 0)
        assert taken.tolist() == [0, 1, 2, 3, 4]
        third.send(taken, 1)
        right.recv(taken, 2)
        with pytest.raises(RankFailure, match="rank 0 at here:1 died of ConnectionError: it has left the group"):
            right.recv(taken, 0)


def test_closed_engine_cannot_fail() -> None:
    left, right = group()
    left.close()
    left.close()
    left.abort(ValueError("too late"))
    right.check()
    right.close()


def test_any_sizes_and_tags_arrive_as_they_were_sent() -> None:
    draw = np.random.default_rng(0)
    sizes = [0, 1, 3, 70_000, 400_000]
    sent = [
        (int(tag), draw.integers(0, 99, int(size)))
        for tag, size in zip(draw.integers(0, 4, 60), draw.choice(sizes, 60), strict=True)
    ]
    with comms() as both:

        def exchange(comm: Communicator) -> None:
            peer = 1 - comm.rank
            order = np.random.default_rng(comm.rank).permutation(4)
            taken = {tag: [np.empty_like(array) for one, array in sent if one == tag] for tag in range(4)}
            sends = comm.start([Message(True, array, peer, tag) for tag, array in sent])
            for tag in map(int, order):
                for array in taken[tag]:
                    comm.recv(array, peer, tag)
                for found, array in zip(taken[tag], (array for one, array in sent if one == tag), strict=True):
                    np.testing.assert_array_equal(found, array)
            sends.wait()

        with meanwhile(lambda: exchange(both[0])) as raised:
            exchange(both[1])
        assert not raised
