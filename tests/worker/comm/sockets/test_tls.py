"""Ranks that meet over TLS, and refused peers."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dbelief.errors import RankFailure, Unavailable
from dbelief.process.terminal.console import host_and_port
from dbelief.security import Credentials
from tests.histories.proxy import Proxy
from tests.worker.comm.group import BODIES
from tests.worker.comm.sockets.joined import elsewhere, joined, meet, run_joined
from worker.comm import Communicator
from worker.comm.sockets import Listener, TlsContexts, connect_mesh, handshake, listener
from worker.comm.sockets.tls import NonBlockingTlsSocket
from worker.rendezvous import _tls_contexts

pytestmark = pytest.mark.processes

Roles = Callable[[str], Credentials]


@contextlib.contextmanager
def listening(seals: Sequence[TlsContexts | None]) -> Iterator[list[Listener]]:
    made = [Listener(seal=seal) for seal in seals]
    yield made
    for one in made:
        one.close()


@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__name__))
def test_a_sealed_group(body: Callable[[Communicator], None], ours: Roles) -> None:
    run_joined(3, body, True, seal=_tls_contexts(ours("worker")))


def test_tcp_links_use_tls_and_local_links_do_not(ours: Roles) -> None:
    for by_tcp, kind in ((True, NonBlockingTlsSocket), (False, socket.socket)):
        with joined(2, by_tcp, _tls_contexts(ours("worker"))) as engines:
            assert {type(peer.messages) for engine in engines for peer in engine._peers.values()} == {kind}


@pytest.mark.parametrize("size", [1, 5_000, 700_001])
def test_sealed_ranks_sum_as_plain_ones_do(size: int, ours: Roles) -> None:
    """Messages of part of a record, of one and of many, both ways at once."""
    rows = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)

    def add(comm: Communicator) -> np.ndarray:
        total: np.ndarray = rows[comm.rank].copy()
        comm.allreduce(total)
        return total

    sealed, plain = (run_joined(3, add, True, seal=seal) for seal in (_tls_contexts(ours("worker")), None))
    assert all(np.array_equal(one, other) for one, other in zip(sealed, plain, strict=True))


def test_records_that_come_in_pieces_arrive(ours: Roles) -> None:
    """As between hosts, where a record is many packets: what TLS has begun to read, poll does not count."""
    seals = [_tls_contexts(ours("worker"))] * 2
    with listening(seals) as (called, caller), contextlib.closing(InPieces(host_and_port(called.address)[1])) as link:
        addresses = [f"127.0.0.1:{link.port}", elsewhere(caller.address)]
        # The callee is known by its own name: only who calls goes by the relay.
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(connect_mesh, called, "a job", 1, 0, addresses, 20.0, seal=seals[0])
            other = pool.submit(connect_mesh, caller, "a job", 1, 1, addresses, 20.0, seal=seals[1])
            first, second = Communicator(one.result(), 20.0), Communicator(other.result(), 20.0)
        sent, got = np.arange(10_000, dtype=np.float32), np.empty(10_000, np.float32)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(second.send, sent, 0)
            first.recv(got, 1)
            sending.result()
        assert np.array_equal(got, sent)
        for comm in (first, second):
            comm.close()


class InPieces(Proxy):
    """Passes on what comes, the last bytes of whatever has come after the rest."""

    def _forward(self, piece: bytes, sink: socket.socket) -> None:
        for part in (piece[:-1_000], piece[-1_000:]):
            super()._forward(part, sink)
            threading.Event().wait(0.05)  # so that it is read in between


def test_data_sent_before_close_arrives(ours: Roles) -> None:
    with joined(2, True, _tls_contexts(ours("worker"))) as (called, caller):
        sent, got = np.arange(100_000, dtype=np.float32), np.empty(100_000, np.float32)
        Communicator(caller, 20.0).send(sent, 0)  # as far as the kernel takes it, and no one reads
        caller.close()
        Communicator(called, 20.0).recv(got, 1)
        assert np.array_equal(got, sent)


def test_failure_of_a_tls_rank_reaches_the_others(ours: Roles) -> None:
    with joined(2, True, _tls_contexts(ours("worker"))) as (first, second):
        first.abort(ValueError("no such number"))
        with pytest.raises(RankFailure, match=r"rank 0 at .*ValueError: no such number"):
            Communicator(second, 20.0).total(1.0)


@pytest.mark.parametrize("who", ["plain", "another job's worker", "this job's coordinator"])
def test_only_a_worker_of_the_job_is_admitted(who: str, ours: Roles, folders: dict[str, Path]) -> None:
    mine = _tls_contexts(ours("worker"))
    strange = {
        "plain": None,
        "another job's worker": _tls_contexts(Credentials.read(folders["others"] / "worker")),
        "this job's coordinator": _tls_contexts(ours("coordinator")),
    }[who]
    for seals in ([mine, strange], [strange, mine]):  # who is called, and who calls
        with listening(seals) as listeners, pytest.raises(Unavailable, match=r"waited 0\.4 s for rank"):
            meet(listeners, True, seals, deadline_s=0.4)


def test_a_caller_must_show_a_workers_certificate(ours: Roles) -> None:
    """A coordinator's would do for a handshake."""
    mine = _tls_contexts(ours("worker"))
    with listening([mine]) as (called,), socket.create_connection(host_and_port(called.address), 5.0) as plain:
        context = ours("coordinator").context(ssl.Purpose.SERVER_AUTH)
        with context.wrap_socket(plain, server_hostname=mine.name) as sealed:
            sealed.sendall(handshake.HELLO.pack(handshake.MAGIC, b"", b"", 1, 1, handshake.NEWS))
            with contextlib.suppress(ConnectionResetError):
                assert sealed.recv(1) == b""


def test_another_users_unix_socket_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not this user is hung up on, and the ranks meet by TCP instead."""
    for user, family in ((os.geteuid(), socket.AF_UNIX), (54_321, socket.AF_INET)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with joined(2, False) as engines:
            assert {peer.messages.family for engine in engines for peer in engine._peers.values()} == {family}


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_strangers_do_not_prevent_the_rendezvous(sealed: bool, ours: Roles) -> None:
    """They say nothing, or hello for jobs that nobody knows: the oldest of them are hung up on."""
    seals = [_tls_contexts(ours("worker")) if sealed else None] * 2
    with listening(seals) as listeners, contextlib.ExitStack() as stack:
        where = host_and_port(listeners[0].address)
        silent = [stack.enter_context(socket.create_connection(where, 5.0)) for _ in range(listener.STRANGERS + 20)]
        for one in silent[:20]:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        for number in range(100):
            caller = stack.enter_context(socket.create_connection(where, 5.0))
            with contextlib.suppress(OSError):
                caller.send(handshake.HELLO.pack(handshake.MAGIC, bytes([number]), b"", 1, 1, handshake.NEWS))
        for engine in meet(listeners, True, seals):
            engine.close()
        assert len(listeners[0]._heard) <= listener.STRANGERS
