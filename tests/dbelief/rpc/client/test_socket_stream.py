"""A local stream's client, with a shard that is the other end of a pair of sockets."""

import errno
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest

from dbelief.errors import Rejected
from dbelief.rpc.client.shared_buffers import _accept as accept
from dbelief.rpc.client.socket_stream import SocketStream
from dbelief.rpc.wire import frames
from dbelief.rpc.wire.message_socket import PacketSocket
from dbelief.security import named_socket


@pytest.fixture
def pair() -> Iterator[tuple[SocketStream, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, frames.KIND)
    stream = SocketStream(PacketSocket(ours))
    theirs.settimeout(60)
    yield stream, theirs
    stream.end()
    theirs.close()


def test_a_message_and_its_reply(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, shard = pair
    stream.stale = True
    stream.give([b"first", b""])
    assert [shard.recv(100), shard.recv(100)] == [frames.message(b"first"), frames.message(b"")]
    shard.send(frames.message(b""))
    assert stream.answer() == b""
    assert not stream.stale


def test_the_status_of_a_shard_is_an_error_of_grpc(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, shard = pair
    shard.send(frames.status(grpc.StatusCode.ABORTED, "shard 3: moved"))
    with pytest.raises(grpc.RpcError) as caught:
        stream.answer()
    assert isinstance(caught.value, frames.StreamEnded)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "shard 3: moved")


@pytest.mark.parametrize("packet", [b"\2?", b"\1", bytes(frames.LARGEST + 1)], ids=["kind", "status", "size"])
def test_a_packet_of_another_kind_is_refused(pair: tuple[SocketStream, socket.socket], packet: bytes) -> None:
    stream, shard = pair
    shard.send(packet)
    with pytest.raises(frames.StreamEnded) as caught:
        stream.answer()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_shard_that_is_gone(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, shard = pair
    shard.send(frames.status(grpc.StatusCode.ABORTED, "moved"))
    shard.close()
    assert stream.give([b"it is not read"])
    with pytest.raises(frames.StreamEnded, match="moved"):
        stream.answer()
    assert stream.answer() is None


def test_a_stream_that_the_shard_has_ended_while_idle_sends_nothing(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, shard = pair
    shard.close()
    stream.stale = True
    assert not stream.give([b"not sent"])


def test_the_status_of_a_shard_that_has_not_read_all_requests(pair: tuple[SocketStream, socket.socket]) -> None:
    """The kernel reports the reset of the connection before what was sent."""
    stream, shard = pair
    stream.give([b"first", b"second"])
    assert shard.recv(100) == frames.message(b"first")
    shard.send(frames.status(grpc.StatusCode.ABORTED, "moved"))
    shard.close()
    with pytest.raises(frames.StreamEnded, match="moved"):
        stream.answer()


def test_a_request_that_cannot_be_sent_is_an_error(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, _ = pair
    with pytest.raises(Rejected, match="65536 bytes is too large"):
        stream.give([bytes(frames.LARGEST)])
    stream._socket._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    assert stream.give([bytes(frames.LARGEST - 1)])
    assert stream.answer() is None


@pytest.mark.parametrize("stale", [True, False])
def test_a_way_that_has_failed_is_the_end_of_the_stream(stale: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the kernel has closed a connection because its peer did not answer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, frames.KIND)
    connection = PacketSocket(ours)

    def timed_out(wait: bool = False) -> bool:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(connection, "flush", timed_out)
    stream = SocketStream(connection)
    stream.stale = stale
    assert stream.give([b"one", b"two"]) != stale, "a stream that was idle says nothing about its shard"
    assert stream.answer() is None
    stream.end()
    theirs.close()


def test_another_thread_ends_a_wait(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, _ = pair
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(stream.answer()))
    waiting.start()
    stream.cancel()
    waiting.join(60)
    assert answers == [None]


def test_only_a_window_of_messages_is_unanswered(pair: tuple[SocketStream, socket.socket]) -> None:
    stream, shard = pair
    made = []

    def requests() -> Iterator[bytes]:
        for number in range(5):
            made.append(number)
            yield bytes([number])

    stream.give(requests(), window=2)
    for number in range(5):
        assert number < len(made) <= number + 2
        assert shard.recv(10) == frames.message(bytes([number]))
        shard.send(frames.message(b""))
        stream.answer()
        stream.credit()
    stream.give([b"the next call has no window"])
    assert shard.recv(100) == frames.message(b"the next call has no window")


def test_both_sides_send_more_than_the_socket_has_room_for(pair: tuple[SocketStream, socket.socket]) -> None:
    """The shard does not read while it waits for room for its replies, nor does a client that only sends."""
    stream, shard = pair
    count, large = 300, bytes(10_000)

    def answers() -> None:
        for _ in range(count):
            shard.recv(frames.LARGEST)
            shard.send(frames.message(large))

    peer = threading.Thread(target=answers)
    stream.give(large for _ in range(count))
    peer.start()
    for _ in range(count):
        assert stream.answer() == large
    peer.join(60)


def test_an_error_while_a_request_is_made_is_raised(pair: tuple[SocketStream, socket.socket]) -> None:
    def requests() -> Iterator[bytes]:
        yield b"first"
        raise ValueError("no second one")

    with pytest.raises(ValueError, match="no second one"):
        pair[0].give(requests())


@pytest.mark.parametrize("shown", [b"", b"\0" * 32, None], ids=["nothing", "another token", "none"])
def test_only_the_shard_that_shows_the_token_is_connected(shown: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.security.named_socket.CONNECT_S", 0.1)
    name, token = named_socket.new_name(), named_socket.new_token()
    with named_socket.listening(name, frames.KIND) as door:
        if shown is None:
            assert accept(door, token) is None
            return
        with named_socket.connect(name, frames.KIND) as stranger:
            if shown:
                stranger.send(shown)
            assert accept(door, token) is None
        with named_socket.connect(name, frames.KIND) as shard:
            shard.send(token)
            connection = accept(door, token)
            assert connection is not None
            assert connection.gettimeout() is None
            connection.close()


def test_another_users_process_is_not_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.rpc.client.shared_buffers.same_user", lambda connection: False)
    name, token = named_socket.new_name(), named_socket.new_token()
    with named_socket.listening(name, frames.KIND) as door, named_socket.connect(name, frames.KIND) as other:
        other.send(token)
        assert accept(door, token) is None
