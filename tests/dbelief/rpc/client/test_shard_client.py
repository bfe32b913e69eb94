"""The client against a server that anybody could have written from the protos alone."""

import dataclasses
import functools
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected, Unavailable
from dbelief.rpc.client.shard_call import PullCall
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server

pytestmark = pytest.mark.processes

A = Pusher(1, 11)
SPANS = tuple(SegmentSpan(index, 10 * index, 10) for index in range(40))


class Stranger(stubs.ParametersServicer):
    """Keeps w -= g in plain Python, one small message at a time, and one push or pull to a stream."""

    def __init__(self) -> None:
        self.w = np.zeros((40, 10), np.float32)
        self.version = 0
        self.openings: list[wire.PushOpening] = []
        self.asked: list[wire.PullRequest] = []

    def Pull(self, requests: Any, context: grpc.ServicerContext) -> Iterator[wire.PullReply]:
        request = next(requests)
        self.asked.append(request)
        for number, index in enumerate(request.segments):
            segment = segments.Segment(index=index, version=self.version, length=10, data=self.w[index].tobytes())
            if request.if_newer_than and request.if_newer_than[number] == self.version:
                segment = segments.Segment(index=index, version=self.version, unchanged=True)
            yield wire.PullReply(segments=[segment])

    def Push(self, requests: Any, context: grpc.ServicerContext) -> Iterator[wire.PushReply]:
        done = 0
        for request in requests:
            if request.HasField("opening"):
                self.openings.append(request.opening)
            for segment in request.segments:
                self.w[segment.index] -= np.frombuffer(segment.data, np.float32)
                done += 1
                if done == self.openings[-1].segments:
                    break
                if done % 16 == 0:
                    yield wire.PushReply(acknowledgement=wire.PushAcknowledgement(acknowledged=done, staleness=16))
            if done == self.openings[-1].segments:
                break
        self.version += 1
        yield wire.PushReply(acknowledgement=wire.PushAcknowledgement(acknowledged=done, lost=3))


def test_client_works_with_a_server_made_from_the_protos() -> None:
    stranger = Stranger()  # type: ignore[abstract]
    server = Server("127.0.0.1:0", lambda it: stubs.add_ParametersServicer_to_server(stranger, it))
    placement = Placement(1, SPANS, (ShardPlacement(0, server.address, 1, ((0, 40),)),))
    client = ShardedParameterClient("job", placement, ("sgd", {}), A, 10.0)
    out, versions = np.full(400, np.nan, np.float32), np.full(40, -1)
    gradient = np.random.default_rng(0).standard_normal(400, dtype=np.float32)
    try:
        for number in (1, 2, 3):
            client.pull(out, versions)
            np.testing.assert_array_equal(versions, number - 1)
            pushed = client.push(gradient, versions, Push(A, number, np.float32(0.5), samples=7, clock=number))
            assert (pushed.staleness, pushed.duplicates, pushed.lost) == (32 / 40, 0, 3)
        client.pull(out, versions)
        np.testing.assert_array_equal(out, stranger.w.ravel())
        out[:] = 5.0
        client.pull(out, versions)
        np.testing.assert_array_equal(out, 5.0)  # nothing was newer
    finally:
        client.close()
        server.close()
    assert [list(request.segments) for request in stranger.asked] == [list(range(40))] * 5
    last = stranger.openings[-1]
    assert (last.sequence, last.segments, last.samples, last.clock, last.rate) == (3, 40, 7, 3, 0.5)
    assert (last.rule.name, last.vector, last.target.job) == ("sgd", "w", "job")


def test_rank_sends_its_segments_to_their_shards_only() -> None:
    strangers = [Stranger() for _ in range(3)]  # type: ignore[abstract]
    servers = [
        Server("127.0.0.1:0", functools.partial(stubs.add_ParametersServicer_to_server, stranger))
        for stranger in strangers
    ]
    runs = ((0, 10), (10, 20), (30, 10))
    places = tuple(
        ShardPlacement(n, server.address, 1, (run,)) for n, (server, run) in enumerate(zip(servers, runs, strict=True))
    )
    client = ShardedParameterClient("job", Placement(1, SPANS, places), ("sgd", {}), A, 10.0, part=(250, 370))
    values, out = np.arange(120, dtype=np.float32), np.empty(120, np.float32)
    versions = np.full(40, -1)
    try:
        pushed = client.push(values, versions, Push(A, 1, np.float32(1.0)))
        assert pushed.staleness == 0, "none of its twelve segments took one of the answers that tell of sixteen"
        client.pull(out, versions)
    finally:
        client.close()
        for server in servers:
            server.close()
    np.testing.assert_array_equal(out, -values)
    assert [[list(request.segments) for request in stranger.asked] for stranger in strangers] == [
        [],
        [list(range(25, 30))],
        [list(range(30, 37))],
    ]
    assert [len(stranger.openings) for stranger in strangers] == [0, 1, 1]
    np.testing.assert_array_equal(np.flatnonzero(versions >= 0), range(25, 37))


class Wrong(Stranger):
    """Answers other segments than were asked for."""

    def Pull(self, requests: Any, context: grpc.ServicerContext) -> Iterator[wire.PullReply]:
        next(requests)
        yield wire.PullReply(segments=[segments.Segment(index=3, length=10, data=bytes(40))])


class Short(Stranger):
    """Answers fewer numbers than the segment has."""

    def Pull(self, requests: Any, context: grpc.ServicerContext) -> Iterator[wire.PullReply]:
        next(requests)
        yield wire.PullReply(segments=[segments.Segment(index=0, length=9, data=bytes(36))])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(Wrong, "segment 3, which was not the next one"), (Short, "segment 0 of 9 numbers, not 10")],
)
def test_an_answer_to_something_else_is_refused(kind: type[Stranger], reason: str) -> None:
    server = Server("127.0.0.1:0", lambda it: stubs.add_ParametersServicer_to_server(kind(), it))
    client = ShardedParameterClient(
        "job", Placement(1, SPANS, (ShardPlacement(0, server.address, 1, ((0, 40),)),)), deadline_s=10.0
    )
    out = np.zeros(400, np.float32)
    try:
        with pytest.raises(Rejected, match=rf"^pull: shard 0 at {server.address}: .*{reason}"):
            client.pull(out, np.full(40, -1))
    finally:
        client.close()
        server.close()


@pytest.mark.parametrize(("life", "asked"), [(1, [1, 2]), (2, [0, 1, 2])])
def test_pull_restarts_at_a_new_shard_epoch(life: int, asked: list[int]) -> None:
    """With the dial a shard that came back waits for who has not told, of each segment, how far it is."""
    place, versions = ShardPlacement(0, "127.0.0.1:1", 1, ((0, 3),)), np.full(len(SPANS), -1, np.int64)
    call = PullCall("job", place, SPANS[:3], np.empty(SPANS[2].stop, np.float32), versions, "w", clock=5)
    call.done = 1
    placement = Placement(2, SPANS, (dataclasses.replace(place, shard_epoch=life),))
    (further,) = call.continued_at(placement)
    assert list(wire.PullRequest.FromString(next(further.requests())).segments) == asked


def test_locate_waits_for_a_placement_that_is_new_enough() -> None:
    placements = [Placement(epoch, SPANS, ()) for epoch in (1, 2, 2, 5)]
    given = iter(placements[1:])
    client = ShardedParameterClient("job", placements[0], ("sgd", {}), A, 10.0, refresh=lambda: next(given))
    try:
        client.locate(1)
        assert client.placement.epoch == 1, "it is new enough, and nobody is asked"
        client.locate(3)
        assert client.placement.epoch == 5
    finally:
        client.close()
    fixed = ShardedParameterClient("job", placements[0], ("sgd", {}), A, 0.0)
    with closing(fixed), pytest.raises(Unavailable, match="no placement of epoch 3, only of 1"):
        fixed.locate(3)


SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1


def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 about the connection (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + bytes(4) + payload


def refuse_and_leave(door: socket.socket) -> None:
    """A server that ends when a stream has arrived, and reports that it has not seen it; its port is closed by then."""
    connection, _ = door.accept()
    with connection, connection.makefile("rb") as received:

        def read_until(kind: int) -> None:
            while True:
                head = received.read(9)
                received.read(int.from_bytes(head[:3]))
                if head[3] == SETTINGS and not head[4] & ACK:
                    connection.sendall(frame(SETTINGS, ACK))
                if head[3] == kind:
                    return

        received.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        connection.sendall(frame(SETTINGS))
        read_until(kind=0)  # DATA
        for number in range(20):  # time for the client to begin its read
            connection.sendall(frame(PING, payload=number.to_bytes(8)))
            read_until(PING)
        door.close()
        connection.sendall(frame(GOAWAY, payload=bytes(8)))  # the last stream seen is 0: none
        received.read()


def test_a_pull_ends_where_its_shard_ends_before_it_has_seen_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, ThreadPoolExecutor(2) as pool:
        shard = pool.submit(refuse_and_leave, door)
        place = ShardPlacement(0, f"127.0.0.1:{door.getsockname()[1]}", 1, ((0, 40),))
        with closing(ShardedParameterClient("job", Placement(1, SPANS, (place,)), deadline_s=0.2)) as client:
            pull = pool.submit(client.pull, np.zeros(400, np.float32), np.full(40, -1))
            assert isinstance(pull.exception(timeout=10), Unavailable)
        shard.result()
