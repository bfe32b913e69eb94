"""A server's local streams: what opens one, what its handler sees, and how it ends."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dbelief.errors import Moved, Rejected
from dbelief.process.runtime import Runtime, runtime, use_runtime
from dbelief.rpc.channel import streams
from dbelief.rpc.server.local_streams import LocalStreams
from dbelief.rpc.server.socket_streams import SocketContext, messages_of
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import PacketSocket
from dbelief.security import named_socket

PEER = "ipv4:127.0.0.1:5000"


class Service:
    """Answers each message twice, until one says what else it does."""

    where = "shard 3: "

    def __init__(self) -> None:
        self.ended = threading.Event()

    @streams
    def Twice(self, messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
        try:
            for message in messages:
                if message == b"moved":
                    raise Moved("it has moved")
                if message == b"stop":
                    return
                yield message
                yield context.peer().encode()
        finally:
            self.ended.set()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def local(service: Service) -> LocalStreams:
    return LocalStreams({"Twice": service.Twice}, most=2)


def opened(opens: Any, method: str = "Twice") -> socket.socket:
    """Ask for a stream as a client does; its socket."""
    name, token = named_socket.new_name(), named_socket.new_token()
    with named_socket.listening(name, frames.KIND) as door:
        opens(name, token, method)
        door.settimeout(60)
        connection, _ = door.accept()
    connection.settimeout(60)
    assert connection.recv(100) == token
    return connection


def test_a_stream_runs_the_handler_of_its_method(local: LocalStreams) -> None:
    with local.connected(PEER) as opens, opened(opens) as connection:
        for message in b"one", b"":
            connection.send(frames.message(message))
            assert connection.recv(100) == frames.message(message)
            assert connection.recv(100) == frames.message(PEER.encode())


def test_an_error_of_the_handler_is_the_last_packet(local: LocalStreams) -> None:
    with local.connected(PEER) as opens, opened(opens) as connection:
        connection.send(frames.message(b"moved"))
        assert connection.recv(100) == frames.status(grpc.StatusCode.ABORTED, "shard 3: it has moved")
        assert connection.recv(100) == b""


def test_a_handler_may_end_the_stream(local: LocalStreams) -> None:
    with local.connected(PEER) as opens, opened(opens) as connection:
        connection.send(frames.message(b"stop"))
        assert connection.recv(100) == b""


def test_a_client_that_has_gone_ends_the_handler(local: LocalStreams, service: Service) -> None:
    with local.connected(PEER) as opens:
        opened(opens).close()
        assert service.ended.wait(60)


def test_a_client_that_goes_with_a_reply_unread_is_no_fault(
    local: LocalStreams, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with local.connected(PEER) as opens:
        connection = opened(opens)
        connection.send(frames.message(b"one"))
        assert connection.recv(100)
        connection.close()
        assert service.ended.wait(60)
    assert not caplog.messages


def test_no_message_is_processed_after_the_call_that_asked_for_the_stream() -> None:
    ended = runtime.event()
    ours, theirs = socket.socketpair(socket.AF_UNIX, frames.KIND)
    with ours, theirs:
        messages = messages_of(PacketSocket(theirs), SocketContext(PEER, ended))
        ours.send(frames.message(b"one"))
        ours.send(frames.message(b"two"))
        assert next(messages) == b"one"
        ended.set()
        with pytest.raises(frames.StreamEnded):
            next(messages)


def test_a_stream_without_a_thread_is_refused(local: LocalStreams) -> None:
    class NoThread(Runtime):
        def spawn(self, *words: Any) -> Any:
            raise RuntimeError("can't start new thread")

    with local.connected(PEER) as opens:
        for _ in range(3):  # it takes no place
            with use_runtime(NoThread()), pytest.raises(Rejected, match="can't start new thread"):
                opened(opens)
        opened(opens).close()


def test_streams_of_a_client_are_limited(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.rpc.server.local_streams.MOST_OF_CLIENT", 1)
    local = LocalStreams({"Twice": service.Twice})
    refused = pytest.raises(Rejected, match="this client has 1 local streams")
    with local.connected(PEER) as opens, local.connected("another") as others, opened(opens), opened(others), refused:
        opened(opens)


def test_streams_end_with_the_call_that_asked_for_them(local: LocalStreams, service: Service) -> None:
    with local.connected(PEER) as opens:
        connection = opened(opens)
    assert connection.recv(100) == b""
    assert service.ended.wait(60)
    connection.close()


def test_streams_end_with_the_server(local: LocalStreams, service: Service) -> None:
    with local.connected(PEER) as opens, opened(opens) as connection:
        local.close()
        assert connection.recv(100) == b""
        assert service.ended.wait(60)
        with pytest.raises(Rejected, match="no local streams any more"):
            opened(opens)


def test_streams_are_limited(local: LocalStreams) -> None:
    with local.connected(PEER) as opens:
        first, second = opened(opens), opened(opens)
        with pytest.raises(Rejected, match="2 local streams already"):
            opened(opens)
        first.close()
        while True:  # until its thread has seen that
            try:
                opened(opens).close()
                break
            except Rejected:
                pass
        second.close()


@pytest.mark.parametrize(
    ("name", "token", "method", "reason"),
    [
        ("../" + 29 * "a", bytes(32), "Twice", "such a name"),
        (32 * "a", bytes(31), "Twice", "such a token"),
        (32 * "a", bytes(32), "Configure", "the method 'Configure'"),
        (32 * "a", bytes(32), "Twice", "no process of this host listens"),
    ],
)
def test_what_opens_no_stream(local: LocalStreams, name: str, token: bytes, method: str, reason: str) -> None:
    with local.connected(PEER) as opens:
        for _ in range(3):  # a refusal takes no place
            with pytest.raises(Rejected, match=reason):
                opens(name, token, method)


def test_another_users_process_is_not_connected(local: LocalStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.rpc.server.local_streams.same_user", lambda connection: False)
    with local.connected(PEER) as opens, pytest.raises(Rejected, match="another user"):
        opened(opens)
