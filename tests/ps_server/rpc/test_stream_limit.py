"""Streams that are kept from call to call: what they carry, what they cost the server, and how they end."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected
from dbelief.rpc.channel import open_channel
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.keepalive import KEEPALIVE, Keepalive
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.rpc.servicer import ShardService
from tests.ps_server.rpc.test_streams import Feed
from tests.ps_server.servers import SGD, A, B, Job, status

pytestmark = pytest.mark.processes
ONE = np.float32(1)


class Counted:
    """Counts the streams that are opened to services, by method."""

    def __init__(self) -> None:
        self.opened = {"Pull": 0, "Push": 0}

    def __call__(self, service: ShardService) -> None:
        for name in self.opened:
            setattr(service, name, self._counting(name, getattr(service, name)))

    def _counting(self, name: str, whole: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def method(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            self.opened[name] += 1
            return whole(messages, context)

        return method


def steps(job: Job, client: ShardedParameterClient, pusher: Pusher, numbers: range) -> None:
    out, versions = job.full(np.nan), job.held()
    for number in numbers:
        client.pull(out, versions)
        client.push(job.full(1.0), versions, Push(pusher, number, ONE))


def test_a_client_keeps_one_stream_per_shard_and_direction(start: Callable[..., Job]) -> None:
    counted = Counted()
    job = start(prepare=counted)
    counted.opened.update(Pull=0, Push=0)
    steps(job, job.client(A), A, range(1, 6))
    assert counted.opened == {"Pull": 2, "Push": 2}
    np.testing.assert_array_equal(job.read(), job.full(-5.0))


def test_pushes_on_one_stream_are_acknowledged_in_order(start: Callable[..., Job]) -> None:
    job = start(count=80)
    feed = Feed()
    call = job.stubs[0].Push(iter(feed))
    for number in (1, 2):
        opening = job.opening(Push(A, number, ONE))
        opening.opening.segments = 40
        feed.send([opening, *(job.part(index) for index in range(40))])
        assert [next(call).acknowledgement.acknowledged for _ in range(3)] == [16, 32, 40]
    feed.end()
    assert list(call) == []


def test_a_push_that_does_not_keep_to_its_count_is_refused(job: Job) -> None:
    def opening(count: int) -> wire.PushRequest:
        message = job.opening(Push(A, 1, ONE))
        message.opening.segments = count
        return message

    together = opening(1)
    together.MergeFrom(job.part(0))
    together.MergeFrom(job.part(1))
    for requests, reason in (
        ([opening(2), job.part(0), opening(2)], "a push was opened before the one before it was complete"),
        ([opening(0), job.part(0), opening(0)], "a push was opened before the one before it was complete"),
        ([together], "a push of 1 segments went on with segment 1"),
        ([opening(1), job.part(0), job.part(1)], "a push begins with its opening"),
    ):
        code, details = status(lambda requests=requests: list(job.stubs[0].Push(iter(requests))))  # type: ignore[misc]
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert reason in details


def test_bytes_that_are_no_message_are_refused(job: Job) -> None:
    for method, message in itertools.product(("Push", "Pull"), (b"\x12\x05\x08", b"\x0a\x02\xff\xff", b"\xff")):
        call: Any = job.channels[0].stream_stream(f"/dbelief.v1.Parameters/{method}", None, None)
        code, details = status(lambda call=call, message=message: list(call(iter([message]))))  # type: ignore[misc]
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert details.startswith("job 'digits', shard 0: ")
        assert "bytes that" in details


# -- room on the server --------------------------------------------------------------------------------------


class Small:
    """One shard with a segment of 4 numbers, initialised, on a server of few threads."""

    def __init__(self, handlers: int, staleness: int | None = None, keepalive: Keepalive = KEEPALIVE) -> None:
        self.service = ShardService(Metrics("ps"), 20.0, handlers=handlers)
        self.server = Server("127.0.0.1:0", self.service.register, handlers=handlers, keepalive=keepalive)
        self.channel = open_channel(self.server.address)
        self.stub = stubs.ParametersStub(self.channel)
        self.commands = itertools.count(1)
        table = [segments.SegmentSpan(index=0, start=0, length=4)]
        assignment = wire.Assignment(segments=table, rule=SGD, staleness=staleness)
        self.configure(job="small", shard_epoch=1, assignment=assignment)
        self.service.controller.require_shard().push(Push(Pusher(0, 1), 1, assign=True), 0, np.zeros(4, np.float32))
        self.configure(ready=True)

    def configure(self, **fields: Any) -> None:
        command = wire.Command(leader_epoch=1, id=next(self.commands))
        self.stub.Configure(wire.ConfigureRequest(command=command, **fields), timeout=60)

    def client(self, pusher: Pusher) -> ShardedParameterClient:
        spans = (self.service.controller.require_shard().segments[0].span,)
        placement = Placement(1, spans, (ShardPlacement(0, self.server.address, 1, ((0, 1),)),))
        return ShardedParameterClient("small", placement, ("sgd", {}), pusher, 20.0)

    def close(self) -> None:
        self.channel.close()
        self.server.close()


def test_more_clients_than_threads_are_all_served() -> None:
    small = Small(handlers=8)
    pushers = [Pusher(number, 10 + number) for number in range(1, 41)]
    clients = [small.client(pusher) for pusher in pushers]
    try:
        for number in (1, 2):
            for client, pusher in zip(clients, pushers, strict=True):
                out, versions = np.empty(4, np.float32), np.full(1, -1)
                client.pull(out, versions)
                client.push(np.ones(4, np.float32), versions, Push(pusher, number, ONE))
        clients[0].pull(out, versions)
        np.testing.assert_array_equal(out, -80)
    finally:
        for client in clients:
            client.close()
        small.close()


def test_waiting_calls_leave_threads_for_the_last_push() -> None:
    small = Small(handlers=16, staleness=0)
    rounds = [wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])]
    small.configure(membership=wire.Membership(member_epoch=1, rounds=rounds))
    first, second = small.client(A), small.client(B)
    readers = [small.client(Pusher(number, number)) for number in range(20, 32)]

    def read(client: ShardedParameterClient) -> str:
        try:
            client.pull(np.empty(4, np.float32), np.full(1, -1), clock=1)
        except Rejected as error:
            return str(error)
        return "read"

    try:
        with ThreadPoolExecutor(20) as pool:
            pulls = [pool.submit(read, reader) for reader in readers]
            refused = [pull.result() for pull in itertools.islice(as_completed(pulls, 20), 8)]
            assert all("too many pulls wait for a round already" in one for one in refused)
            ends = [
                pool.submit(client.push, np.ones(4, np.float32), np.zeros(1), Push(pusher, 1, ONE))
                for client, pusher in ((first, A), (second, B))
            ]
            assert [end.result(60).duplicates for end in ends] == [0, 0]
            assert [pull.result(60) for pull in pulls].count("read") == 4  # a quarter of the threads
    finally:
        for client in (first, second, *readers):
            client.close()
        small.close()


# -- ends ----------------------------------------------------------------------------------------------------


def test_an_idle_stream_does_not_keep_a_server_from_ending(job: Job) -> None:
    client = job.client(A)
    steps(job, client, A, range(1, 2))
    for server in job.servers:
        server.close(0.0)
    handlers = [thread for thread in threading.enumerate() if thread.name.startswith("handler")]
    assert handlers
    until_s = time.monotonic() + 20.0
    while any(service._streams._open for service in job.services):  # the handlers hear of the end on their own threads
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_request_error_is_raised_to_the_caller(job: Job) -> None:
    client = job.client(A)
    with pytest.raises(IndexError):  # versions for fewer segments than there are
        client.push(job.full(1.0), np.zeros(3, np.int64), Push(A, 1, ONE))
    steps(job, client, A, range(1, 2))
