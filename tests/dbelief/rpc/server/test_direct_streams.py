"""A server's direct streams: who gets one, and what remains of those that nothing connects to."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from dbelief.errors import Rejected
from dbelief.process.runtime import Runtime, use_runtime
from dbelief.rpc.server import direct_streams
from dbelief.rpc.server.direct_streams import DirectStreamServer
from dbelief.rpc.token_connection import TokenListener
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import ByteSocket, TlsSocket
from dbelief.security import Credentials

from .test_local_streams import PEER, Service


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def direct(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectStreamServer]:
    monkeypatch.setattr(direct_streams, "ACCEPT_S", 60.0)
    made = DirectStreamServer("127.0.0.1", {"Twice": service.Twice}, most=2)
    yield made
    made.close()


def called(offer: tuple[int, bytes]) -> ByteSocket:
    """Connect as a client does."""
    port, token = offer
    connection = socket.create_connection(("127.0.0.1", port), 60)
    connection.sendall(token)
    return ByteSocket(connection)


def open_when_free(direct: DirectStreamServer) -> tuple[int, bytes]:
    """Open a stream as soon as another has ended."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return direct.open(PEER, "Twice")
        except Rejected:
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_a_stream_runs_the_handler_of_its_method(direct: DirectStreamServer, service: Service) -> None:
    connection = called(direct.open(PEER, "Twice"))
    for message in b"one", b"", bytes(200_000):
        connection.send(message)
        assert connection.receive() == message
        assert connection.receive() == PEER.encode()
    connection.send(b"moved")
    with pytest.raises(frames.StreamEnded, match="shard 3: it has moved") as caught:
        connection.receive()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert service.ended.wait(60)
    connection.close()


def test_only_the_client_that_shows_the_token_is_served(direct: DirectStreamServer) -> None:
    port, token = direct.open(PEER, "Twice")
    for shown in b"", bytes(32), token[:-1] + bytes([token[-1] ^ 1]):
        with socket.create_connection(("127.0.0.1", port), 60) as stranger:
            stranger.sendall(shown)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", "closed without a word"
    connection = called((port, token))
    connection.send(b"one")
    assert connection.receive() == b"one"
    with pytest.raises(ConnectionRefusedError):
        called((port, token))
    connection.close()


def test_a_port_is_closed_where_no_client_connects(direct: DirectStreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_streams, "ACCEPT_S", 0.05)
    ports = [direct.open(PEER, "Twice")[0] for _ in range(2)]
    open_when_free(direct)
    open_when_free(direct)  # each took a place until then
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]), 60)


def test_a_client_that_sends_no_token_is_dropped(direct: DirectStreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_streams, "ACCEPT_S", 2.0)
    port, _ = direct.open(PEER, "Twice")
    with socket.create_connection(("127.0.0.1", port), 60) as silent:
        assert silent.recv(1) == b""


def test_streams_are_limited(direct: DirectStreamServer) -> None:
    first, second = (called(direct.open(PEER, "Twice")) for _ in range(2))
    with pytest.raises(Rejected, match="2 direct streams already"):
        direct.open(PEER, "Twice")
    first.close()
    third = called(open_when_free(direct))
    third.send(b"one")
    assert third.receive() == b"one"
    second.close()
    third.close()


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("host", ["", "::", "0.0.0.0", "127.0.0.1"])
def test_it_listens_where_grpc_does(host: str, both: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not both:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    listener = TokenListener(host, None)
    with socket.create_connection(("127.0.0.1", listener.port), 60) as connection:
        connection.sendall(bytes(32))
        accepted = listener.accept(bytes(32), 60.0)
    assert accepted is not None
    accepted.close()
    listener.close()


def test_what_opens_no_stream(direct: DirectStreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(Runtime):
        def spawn(self, *words: Any) -> Any:
            raise RuntimeError("can't start new thread")

    for _ in range(3):  # a refusal takes no place
        with pytest.raises(Rejected, match="no direct stream has the method 'Configure'"):
            direct.open(PEER, "Configure")
        with use_runtime(NoThread()), pytest.raises(Rejected, match="can't start new thread"):
            direct.open(PEER, "Twice")
    direct._host = "192.0.2.1"  # of no host
    with pytest.raises(Rejected, match=r"no port at 192\.0\.2\.1"):
        direct.open(PEER, "Twice")


def test_streams_end_with_the_server(direct: DirectStreamServer, service: Service) -> None:
    connection, offered = called(direct.open(PEER, "Twice")), direct.open(PEER, "Twice")
    connection.send(b"one")
    assert connection.receive() == b"one"
    direct.close()
    assert service.ended.wait(60)
    assert connection.receive() in (None, PEER.encode())
    with pytest.raises(Rejected, match="no direct streams any more"):
        direct.open(PEER, "Twice")
    late = called(offered)  # it was offered before
    assert late.receive() is None
    connection.close()
    late.close()


def test_tls_shows_a_certificate_of_the_job(
    service: Service, ours: Callable[[str], Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_streams, "current", lambda: ours("ps"))
    monkeypatch.setattr(direct_streams, "ACCEPT_S", 60.0)
    direct = DirectStreamServer("127.0.0.1", {"Twice": service.Twice})
    port, token = direct.open(PEER, "Twice")
    plain = socket.create_connection(("127.0.0.1", port), 60)
    plain.sendall(token)  # without TLS
    with suppress(ConnectionResetError):
        while plain.recv(100):  # what TLS has against it
            pass
    plain.close()
    bare = ssl.create_default_context(cadata=ours("worker").authority.decode())
    bare.maximum_version = ssl.TLSVersion.TLSv1_2  # where the handshake itself reports it
    with socket.create_connection(("127.0.0.1", port), 60) as stranger, pytest.raises((ssl.SSLError, OSError)):
        bare.wrap_socket(stranger, server_hostname="ps.dbelief")
    connection = socket.create_connection(("127.0.0.1", port), 60)
    context = ours("worker").context(ssl.Purpose.SERVER_AUTH)
    stream = TlsSocket(connection, context, "ps.dbelief", time.monotonic() + 60)
    stream.send_bytes(token)
    reader = threading.Thread(target=lambda: stream.send(bytes(300_000)))
    reader.start()
    assert stream.receive() == bytes(300_000)
    reader.join(60)
    stream.close()
    direct.close()
    assert service.ended.wait(60)
