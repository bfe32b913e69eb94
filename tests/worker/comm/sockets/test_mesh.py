"""Rendezvous of ranks, and errors for late and missing ones."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dbelief.errors import Unavailable
from dbelief.process.clock import ManualClock
from dbelief.process.terminal.console import host_and_port
from dbelief.security import TOKEN_BYTES, Loopback
from tests.worker.comm.sockets.joined import elsewhere, meet
from worker.comm import Communicator
from worker.comm.sockets import Listener, connect_mesh
from worker.comm.sockets.handshake import ANSWER, HELLO, MAGIC, NEWS, digest

pytestmark = pytest.mark.processes


@pytest.fixture
def listeners() -> Iterator[list[Listener]]:
    made = [Listener() for _ in range(3)]
    yield made
    for listener in made:
        listener.close()


def test_ranks_of_another_run_of_the_job_do_not_meet(listeners: list[Listener]) -> None:
    addresses = [listener.address for listener in listeners[:2]]

    def come(rank: int) -> str:
        with pytest.raises(Unavailable) as caught:
            connect_mesh(listeners[rank], "a job", 1, rank, addresses, 0.3, run_id=rank)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        reasons = list(pool.map(come, range(2)))
    assert all("waited 0.3 s for" in reason for reason in reasons)
    for engine in meet(listeners[:2], generation=2):
        engine.close()


def closed(listener: Listener) -> str:
    listener.close()
    return listener.address


def test_ranks_on_one_host_need_no_route_to_their_address() -> None:
    """192.0.2.0/24 is nobody's, and so is `.invalid`: whoever meets there has not gone through the network."""
    names = ["192.0.2.7", "[2001:db8::8]", f"{'long.' * 40}invalid"]
    listeners = [Listener(known_as=f"{name}:0") for name in names]
    assert [listener.address.rpartition(":")[0] for listener in listeners] == names
    for engine in meet(listeners):
        engine.close()
    for listener in listeners:
        listener.close()


def test_name_of_a_closed_listener_is_free_again() -> None:
    first, second = Listener(), Listener()
    host, _, port = closed(first).rpartition(":")
    first = Listener(host, int(port), known_as=f"192.0.2.7:{port}")
    for engine in meet([first, second]):
        engine.close()
    other = Listener(known_as=closed(first))
    assert other.address == f"192.0.2.7:{port}"
    with pytest.raises(OSError, match="in use"):
        Listener(known_as=other.address)
    for engine in meet([other, second], generation=2):
        engine.close()
    for listener in (second, other):
        listener.close()


def test_early_caller_waits_for_the_listener() -> None:
    first, second = Listener(), Listener()
    host, _, port = closed(first).rpartition(":")
    addresses = [first.address, second.address]
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(connect_mesh, second, "a job", 1, 1, addresses, 20.0)
        first = Listener(host, int(port))
        engines = [connect_mesh(first, "a job", 1, 0, addresses, 20.0), late.result(60)]
    assert [engine.rank for engine in engines] == [0, 1]
    for engine in engines:
        engine.close()
    for listener in (first, second):
        listener.close()


def test_missing_rank_is_named(listeners: list[Listener]) -> None:
    addresses = [closed(listeners[0]), listeners[1].address, listeners[2].address]
    reason = f"a job, generation 1: rank 1 waited 3 s for rank 0 at {addresses[0]}, rank 2 at {addresses[2]}"
    with pytest.raises(Unavailable, match=reason):
        connect_mesh(listeners[1], "a job", 1, 1, addresses, 3.0, ManualClock(autojump=True))


def test_listening_but_absent_rank_is_named(listeners: list[Listener]) -> None:
    addresses = [listener.address for listener in listeners[:2]]
    with pytest.raises(Unavailable, match=f"rank 1 waited 1 s for rank 0 at {addresses[0]}"):
        connect_mesh(listeners[1], "a job", 1, 1, addresses, 1.0, ManualClock(autojump=True))


def test_late_rank_is_refused_at_once(listeners: list[Listener]) -> None:
    addresses = [listener.address for listener in listeners[:2]]
    connect_mesh(listeners[0], "a job", 7, 0, addresses[:1], 20.0).close()
    with pytest.raises(Unavailable, match=f"rank 0 at {addresses[0]} is in generation 7, not in 6 any more"):
        connect_mesh(listeners[1], "a job", 6, 1, addresses, 20.0)


def test_wait_for_a_past_generation_ends_at_once(listeners: list[Listener]) -> None:
    addresses = [listener.address for listener in listeners[:2]]
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(connect_mesh, listeners[1], "a job", 2, 1, addresses, 20.0)
        with pytest.raises(Unavailable, match=f"rank 1 at {addresses[1]} is in generation 2, not in 1 any"):
            connect_mesh(listeners[0], "a job", 1, 0, addresses, 20.0)
        engines = [connect_mesh(listeners[0], "a job", 2, 0, addresses, 20.0), ahead.result(60)]
    for engine in engines:
        engine.close()


def test_connected_rank_may_enter_the_next_generation_early(listeners: list[Listener]) -> None:
    addresses = [listener.address for listener in listeners]
    sizes = [3, 2, 1, 3, 2] * 6

    def come_and_go(rank: int) -> int:
        engines = [
            connect_mesh(listeners[rank], "a job", generation, rank, addresses[:size], 20.0)
            for generation, size in enumerate(sizes)
            if rank < size
        ]
        for engine in engines:
            engine.close()
        return len(engines)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(come_and_go, range(3))) == [30, 24, 12]


def test_strangers_and_other_jobs_are_not_let_in(listeners: list[Listener]) -> None:
    host, _, port = listeners[0].address.rpartition(":")
    with socket.create_connection((host, int(port)), 20.0) as stranger:
        stranger.sendall(b"GET / HTTP/1.1")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""
    silent = socket.create_connection((host, int(port)), 20.0)
    addresses = [listener.address for listener in listeners[:2]]
    connect_mesh(listeners[0], "a job", 1, 0, addresses[:1], 20.0).close()
    with pytest.raises(Unavailable, match="another job, generation 1: rank 1 waited 1 s for rank 0"):
        connect_mesh(listeners[1], "another job", 1, 1, addresses, 1.0, ManualClock(autojump=True))
    silent.close()
    for engine in meet(listeners, generation=2):
        engine.close()


def test_a_link_of_a_group_that_did_not_come_together_ends(listeners: list[Listener]) -> None:
    """Rank 1 waits for rank 2 in vain; rank 0, which has them both, hears of that."""
    addresses = [listener.address for listener in listeners]
    with ThreadPoolExecutor(2) as pool:
        pair = pool.submit(connect_mesh, listeners[0], "a job", 1, 0, addresses[:2], 20.0)
        with pytest.raises(Unavailable, match=r"rank 1 waited 0\.5 s for rank 2"):
            connect_mesh(listeners[1], "a job", 1, 1, addresses, 0.5)
        engine = pair.result(60)
    with pytest.raises(Exception, match=f"rank 1 at {addresses[1]} died of ConnectionError"):
        Communicator(engine, 20.0).recv(np.empty(1), 1)
    engine.close()


@pytest.mark.parametrize(("rank", "addresses"), [(2, ["a:1", "b:2"]), (-1, ["a:1"]), (1, ["nowhere", "b:2"])])
def test_invalid_arguments_are_refused(rank: int, addresses: list[str], listeners: list[Listener]) -> None:
    with pytest.raises(ValueError, match=r"is none of|invalid literal"):
        connect_mesh(listeners[0], "a job", 1, rank, addresses, 1.0)


def call_by_tcp(listener: Listener, kind: int, token: bool) -> socket.socket:
    """Say hello as rank 1 would, with or without the token of this user."""
    host, port = host_and_port(listener.address)
    one = socket.create_connection((host, port), 60.0)
    said = HELLO.pack(MAGIC, digest("a job"), digest("127.0.0.1:9"), 1, 1, kind)
    one.sendall(said + (Loopback(listener.address).token() if token else bytes(TOKEN_BYTES)))
    return one


def hung_up(one: socket.socket) -> bool:
    with one, contextlib.suppress(ConnectionResetError):
        return one.recv(1) == b""
    return True


def test_unknown_hello_is_refused(listeners: list[Listener]) -> None:
    for kind in (2, 7, 255):
        assert hung_up(call_by_tcp(listeners[0], kind, token=True))
    for engine in meet(listeners):
        engine.close()


def test_on_loopback_another_users_process_is_no_rank(listeners: list[Listener]) -> None:
    """Neither as the one that calls, nor as the one that is called."""
    assert hung_up(call_by_tcp(listeners[0], NEWS, token=False))
    mine = elsewhere(listeners[1].address)
    squatter = socket.create_server(("127.0.0.1", 0))
    with squatter, ThreadPoolExecutor(1) as pool:
        address = elsewhere(f"127.0.0.1:{squatter.getsockname()[1]}")
        waiting = pool.submit(connect_mesh, listeners[1], "a job", 1, 1, [address, mine], 1.0)
        squatter.settimeout(60.0)
        calls = [squatter.accept()[0] for _ in range(2)]
        for one in calls:  # who has the port answers, and cannot make the token
            with contextlib.suppress(OSError):
                one.sendall(ANSWER.pack(1) + bytes(TOKEN_BYTES))
        with pytest.raises(Unavailable, match="waited 1 s for rank 0"):
            waiting.result(60.0)
        for one in calls:
            one.close()
