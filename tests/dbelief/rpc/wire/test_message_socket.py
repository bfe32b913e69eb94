"""Messages over TCP connections, plain and with TLS: whole, in order, and never another's or half of one."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dbelief.errors import Rejected
from dbelief.rpc.wire import bulk, frames, message_socket
from dbelief.rpc.wire.message_socket import ByteSocket, TlsSocket
from dbelief.security import Credentials

Pair = tuple[ByteSocket, ByteSocket]


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        one = socket.create_connection(door.getsockname(), 60)
        other, _ = door.accept()
    other.settimeout(60)
    return one, other


def with_tls(ours: Callable[[str], Credentials]) -> tuple[TlsSocket, TlsSocket]:
    one, other = connected()
    served: list[TlsSocket] = []
    incoming = ours("ps").context(ssl.Purpose.CLIENT_AUTH)
    incoming.num_tickets = 0  # as a server does
    until_s = time.monotonic() + 60
    handshake = threading.Thread(target=lambda: served.append(TlsSocket(other, incoming, None, until_s)))
    handshake.start()
    client = TlsSocket(one, ours("worker").context(ssl.Purpose.SERVER_AUTH), "ps.dbelief", until_s)
    handshake.join(60)
    return client, served[0]


@pytest.fixture(params=["plain", "tls"])
def pair(request: pytest.FixtureRequest, ours: Callable[[str], Credentials]) -> Iterator[Pair]:
    made: Pair
    if request.param == "tls":
        made = with_tls(ours)
    else:
        plain = connected()
        made = ByteSocket(plain[0]), ByteSocket(plain[1])
    yield made
    for end in made:
        end.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.sampled_from([0, 1, 4, 5, 16_383, 16_384, 16_385, 300_000]), min_size=1, max_size=6))
def test_messages_arrive_whole_and_in_order(pair: Pair, sizes: list[int]) -> None:
    one, other = pair
    messages = [bytes([number + 1]) * size for number, size in enumerate(sizes)]

    def send() -> None:
        for message in messages:
            one.send(message)

    sender = threading.Thread(target=send)
    sender.start()
    assert [other.receive() for _ in messages] == messages
    sender.join(60)


def test_a_received_message_is_not_written_to(pair: Pair) -> None:
    """A shard applies a gradient from where it was received, and gives it to its follower."""
    one, other = pair
    part = bulk.part_of(3, 7, np.arange(5, dtype=np.float32))
    one.send(bulk.head(b"opening") + bulk.encode(part))
    message = other.receive()
    assert message is not None
    assert memoryview(message).readonly
    opening, (received,) = bulk.decode(message)
    assert opening == b"opening"
    assert isinstance(opening, bytes)
    numbers = bulk.numbers(received)
    np.testing.assert_array_equal(numbers, np.arange(5))
    assert not numbers.flags.writeable


def test_a_message_without_room_is_sent_later(pair: Pair) -> None:
    one, other = pair
    large = bytes(range(256)) * 80_000
    one.queue(large)
    assert not one.flush()
    assert one.wait(room=True, timeout_s=0.0) == (False, False)
    received: list[frames.Received | None] = []
    reader = threading.Thread(target=lambda: received.append(other.receive()))
    reader.start()
    while not one.flush():
        readable, _ = one.wait(room=True)
        assert not readable
    reader.join(60)
    assert received == [large]
    assert one.flush(), "nothing is left"


def test_a_status_ends_the_stream(pair: Pair) -> None:
    one, other = pair
    for message in b"unread", b"unread as well":
        one.send(message)
    ended = threading.Thread(target=lambda: other.send_status(grpc.StatusCode.ABORTED, "shard 3: moved"))
    ended.start()
    with pytest.raises(frames.StreamEnded, match="shard 3: moved") as caught:
        one.receive()
    assert caught.value.code() is grpc.StatusCode.ABORTED
    one.close()
    ended.join(60)
    assert not ended.is_alive()


def test_the_end_of_a_connection_between_messages(pair: Pair) -> None:
    one, other = pair
    one.send(b"the last one")
    one.close()
    assert other.receive() == b"the last one"
    assert other.receive() is None


@pytest.mark.parametrize("cut", [1, 4, 5, 8])
def test_the_end_of_a_connection_within_a_message(pair: Pair, cut: int) -> None:
    one, other = pair
    one.send_bytes((struct.pack("<IB", 10, frames.MESSAGE) + b"123456789")[:cut])
    one.close()
    with pytest.raises(ConnectionResetError, match="within a message"):
        other.receive()


@pytest.mark.parametrize("head", [(0, 0), (1 + (64 << 20), 0), (3, 7)], ids=["nothing", "too large", "kind"])
def test_other_packets_are_refused(pair: Pair, head: tuple[int, int]) -> None:
    one, other = pair
    one.send_bytes(struct.pack("<IB", *head) + b"12")
    with pytest.raises(frames.StreamEnded) as caught:
        other.receive()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@settings(max_examples=50, deadline=None)
@given(sent=st.binary(max_size=40))
def test_any_bytes_are_messages_a_status_or_an_error(sent: bytes) -> None:
    one, other = connected()
    receiver = ByteSocket(other)
    one.sendall(sent)
    one.close()
    taken = 0
    with suppress(frames.StreamEnded, ConnectionResetError):
        while (message := receiver.receive()) is not None:
            assert message == sent[taken + 5 : taken + 5 + len(message)]
            taken += 5 + len(message)
        assert taken == len(sent)
    receiver.close()


def test_a_message_that_is_too_large_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "_LONGEST", 10)
    one, other = pair
    with pytest.raises(Rejected, match="10 bytes is too large"):
        one.send(bytes(10))
    one.send(bytes(9))
    assert other.receive() == bytes(9)


def test_another_thread_ends_a_wait(pair: Pair) -> None:
    """With TLS too: what is received then is the end, not the bytes of an encrypted record."""
    one, other = pair
    other.send(b"first")
    assert one.receive() == b"first"
    received: list[frames.Received | None] = []

    def receive() -> None:
        with suppress(OSError):
            received.append(one.receive())

    waiting = threading.Thread(target=receive)
    waiting.start()
    one.shut_down()
    waiting.join(60)
    assert not waiting.is_alive()
    with suppress(OSError):
        other.send(b"not received")
    with suppress(OSError):
        received.append(one.receive())
    assert set(received) <= {None}
    one.shut_down()  # again, and after the peer has gone
    other.close()
    one.shut_down()


def test_what_tls_has_decrypted_already_can_be_received(ours: Callable[[str], Credentials]) -> None:
    sender, receiver = with_tls(ours)
    sender.send_bytes(b"".join(struct.pack("<IB", 2, frames.MESSAGE) + letter for letter in (b"a", b"b")))  # a record
    assert receiver.receive() == b"a"
    assert receiver.wait(room=False, timeout_s=0.0) == (True, False)
    assert receiver.receive() == b"b"
    sender.close()
    receiver.close()
