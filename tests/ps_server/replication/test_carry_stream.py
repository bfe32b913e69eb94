"""A stream to another shard: how far it runs ahead, and how it ends where the receiver does not play its part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from dbelief.errors import Rejected, Unavailable
from dbelief.process.clock import ManualClock
from dbelief.rpc.channel import streams
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.replication.carry_stream import WINDOW, CarryStream
from ps_server.rpc.servicer import ShardService

pytestmark = pytest.mark.processes

LARGE = bytes(1 << 20)
"""A message that does not fit into what a connection buffers."""

Receive = Callable[[Iterator[bytes]], Iterator[wire.CarryReply]]


class Opened:
    """A stream to a shard that receives in a given way."""

    def __init__(self, receive: Receive) -> None:
        class Receiver(ShardService):
            @streams
            def Carry(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
                yield from receive(messages)

        self.clock = ManualClock()
        self.server = Server("127.0.0.1:0", Receiver(Metrics("ps")).register)
        self.stream = CarryStream(self.server.address, "carry", 8.0, self.clock)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stream.close()
        self.server.close(0.0)


def counted(messages: Iterator[bytes]) -> Iterator[wire.CarryReply]:
    yield wire.CarryReply(received=sum(1 for _ in messages))


def give_all(stream: CarryStream, batches: int) -> None:
    for _ in range(batches):
        stream.give([LARGE] * 8)
    stream.finish()


def test_all_that_was_given_is_received_when_it_is_finished() -> None:
    with Opened(counted) as opened:
        for size in (1, 3, 0, 5, 2):
            opened.stream.give([LARGE] * size)
        opened.stream.finish()
        assert opened.stream.sent == 11


def test_stalled_receiver_ends_the_stream() -> None:
    held = threading.Event()

    def deaf(messages: Iterator[bytes]) -> Iterator[wire.CarryReply]:
        held.wait(60)
        yield wire.CarryReply()

    with Opened(deaf) as opened:

        def passes() -> None:
            while not held.wait(0.005):
                opened.clock.advance(0.5)

        threading.Thread(target=passes, daemon=True).start()
        with pytest.raises(Unavailable, match=r"^carry: no progress for 8 s$"):
            give_all(opened.stream, WINDOW + 2)
        held.set()


def test_one_that_refuses_or_ends_early_is_reported() -> None:
    def refuses(messages: Iterator[bytes]) -> Iterator[wire.CarryReply]:
        next(messages)
        raise Rejected("it is full")
        yield

    def ends(messages: Iterator[bytes]) -> Iterator[wire.CarryReply]:
        next(messages)
        yield wire.CarryReply(received=1)

    for receive, kind, why in ((refuses, Rejected, "it is full"), (ends, Unavailable, "before all messages")):
        with Opened(receive) as opened, pytest.raises(kind, match=why):
            give_all(opened.stream, 10)
