"""A push whose replies have the parameters: what is read, in which streams, and what a failure between both leaves."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.arrays.shared_memory import Block, block_of
from dbelief.codec.float16 import Float16
from dbelief.core.placement import Fetch
from dbelief.core.push import Push
from dbelief.errors import Moved, Rejected
from dbelief.rpc.client.shard_call import PullCall
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.payloads import Codecs
from ps_server.rpc.servicer import ShardService
from ps_server.store.shard import SegmentResult, Shard
from tests.ps_server.rpc.test_shared_memory import Latch
from tests.ps_server.rpc.test_stream_limit import Counted
from tests.ps_server.servers import A, B, Job, status

pytestmark = pytest.mark.processes
ONE = np.float32(1)


def fetched(client: ShardedParameterClient, job: Job, number: int, clock: int = 0) -> tuple[Fetch, Any]:
    """Push a vector of 1 as push `number` of A, and fetch into an array that the shards may share."""
    values, into = client.array(job.placement.size), Fetch(client.array(job.placement.size), job.held(), clock)
    values[:], into.out[:] = 1.0, np.nan
    return into, client.push(values, job.held(0), Push(A, number, ONE, clock=max(0, clock - 1)), into)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_a_push_is_answered_with_the_parameters(start: Callable[..., Job], shares_memory: bool) -> None:
    counted = Counted()
    job = start(prepare=counted)
    counted.opened.update(Pull=0, Push=0)
    client = job.client(A, shares_memory=shares_memory)
    for number in range(1, 6):
        into, pushed = fetched(client, job, number)
        np.testing.assert_array_equal(into.out, job.full(-number))
        np.testing.assert_array_equal(into.versions, job.held(number))
        assert (pushed.duplicates, pushed.lost) == (0, 0)
    assert counted.opened["Pull"] == 0
    moved = [client.shared_received, client.received]
    assert moved == [20 * job.placement.size, 0][:: 1 if shares_memory else -1]


def test_only_newer_segments_are_answered(job: Job) -> None:
    client = job.client(A)
    values, into = client.array(job.placement.size), Fetch(client.array(job.placement.size), job.held(1))
    into.out[:] = 7.0
    client.push(values, job.held(0), Push(A, 1, ONE), into)
    np.testing.assert_array_equal(into.out, 7.0)
    np.testing.assert_array_equal(into.versions, job.held(1))


@pytest.mark.parametrize("bytes_", [1, 100, 1 << 20])
def test_messages_of_any_size_mean_the_same(job: Job, monkeypatch: pytest.MonkeyPatch, bytes_: int) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", bytes_)
    into, _ = fetched(job.client(A, shares_memory=False), job, 1)
    np.testing.assert_array_equal(into.out, job.full(-1.0))


def test_what_is_fetched_is_encoded_as_pulls_are(job: Job) -> None:
    client = job.client(A, codecs=Codecs(None, Float16()))
    into, _ = fetched(client, job, 1)
    np.testing.assert_array_equal(into.out, job.full(-1.0))
    assert client.received < 4 * job.placement.size


@pytest.mark.parametrize("first", [True, False])
def test_a_fetch_that_breaks_is_repeated_and_its_push_is_not(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The stream ends behind the acknowledgement: before the first segments, or between two messages of them."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)  # a message for each segment
    left = [2]

    def breaks(service: ShardService) -> None:
        whole = service.Push

        def push(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            for reply in whole(requests, context):
                acknowledged, parts = bulk.decode(reply)
                if left[0] and parts and (first or acknowledged is None):
                    left[0] -= 1
                    if acknowledged is not None:
                        yield bulk.head(acknowledged)
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the network went away")
                yield reply

        service.Push = push  # type: ignore[method-assign]

    job = start(prepare=breaks)
    client = job.client(A, shares_memory=False, refresh=lambda: job.placement)
    into, pushed = fetched(client, job, 1)
    assert left == [0]
    assert pushed.duplicates == 0
    np.testing.assert_array_equal(into.out, job.full(-1.0))
    np.testing.assert_array_equal(into.versions, job.held(1))


def test_a_push_that_breaks_is_repeated_with_its_fetch(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    client = job.client(A, deadline_s=0.5, refresh=lambda: job.placement)
    fetched(client, job, 1)
    latch = Latch(4)
    monkeypatch.setattr(Shard, "read", latch.around(Shard.read))  # of a fetch: its push is not acknowledged yet
    into, pushed = fetched(client, job, 2)
    assert latch.held.is_set()
    np.testing.assert_array_equal(into.out, job.full(-2.0))
    here = job.placement.places[0].count
    assert pushed.duplicates in (here, 2 * here)  # the reply of the other shard may not have been read
    into.out[:] = 8.0
    latch.let_go()
    np.testing.assert_array_equal(into.out, 8.0)  # the late fetch writes into memory that is not in use any more


def test_segments_of_a_shard_that_was_replaced_are_fetched_at_the_new_one(job: Job, tmp_path: Any) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    fetched(client, job, 1)
    job.snapshot(tmp_path)
    job.restart(1, tmp_path, here=False)
    into, pushed = fetched(client, job, 2)
    assert pushed.lost == 0
    np.testing.assert_array_equal(into.out, job.full(-2.0))


def test_a_shard_that_was_replaced_and_still_runs_is_not_read(
    start: Callable[..., Job], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the push, and would answer the fetch: the replica would not read its own push."""
    replaced: list[ShardService] = []
    read: list[bool] = []

    def prepare(service: ShardService) -> None:
        whole, pull = service.Push, service.Pull

        def pushed(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            def refused() -> Iterator[bytes]:
                for request in requests:
                    if service in replaced:
                        raise Moved("another process has its segments")
                    yield request

            return whole(refused(), context)

        def pulled(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            read.append(service in replaced)
            return pull(requests, context)

        service.Push, service.Pull = pushed, pulled  # type: ignore[method-assign]

    job = start(prepare=prepare)
    client = job.client(A, shares_memory=False, refresh=lambda: job.placement)
    fetched(client, job, 1)
    job.snapshot(tmp_path)
    earlier = job.servers[1]
    with monkeypatch.context() as patch:
        patch.setattr(earlier, "close", lambda *words: None)
        replaced.append(job.services[1])
        job.restart(1, tmp_path, here=False)
    try:
        into, _ = fetched(client, job, 2)
    finally:
        earlier.close(0.0)
    np.testing.assert_array_equal(into.out, job.full(-2.0))
    assert True not in read


def test_a_push_that_has_moved_leaves_memory_shared(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that says so has finished with the call: it does not write later."""
    client = job.client(A, refresh=lambda: job.placement)
    fetched(client, job, 1)
    whole, left, renewed = Shard.push, [1], list[int]()

    def push(shard: Shard, *words: Any, **named: Any) -> SegmentResult:
        if left[0] and shard is job.services[1].controller.shard:
            left[0] -= 1
            raise Moved("segment 39: is at another shard now")
        return whole(shard, *words, **named)

    monkeypatch.setattr(Shard, "push", push)
    monkeypatch.setattr(Block, "renew", lambda block: renewed.append(block.size))
    port = job.placement.places[1].address.rpartition(":")[2]
    there = dataclasses.replace(job.placement.places[1], address=f"localhost:{port}")
    job.placement = dataclasses.replace(job.placement, epoch=2, places=(job.placement.places[0], there))
    into, _ = fetched(client, job, 2)
    np.testing.assert_array_equal(into.out, job.full(-2.0))
    assert (left, renewed) == ([0], [])


def test_a_push_to_an_incarnation_that_has_ended_is_not_acknowledged(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = job.opening(Push(A, 1, ONE))
    opening.opening.segments = 1
    opening.opening.pull.CopyFrom(wire.PullRequest(target=job.target(0), vector="w", segments=[0]))
    whole = Shard.read

    def read(shard: Shard, *words: Any) -> Any:
        found = whole(shard, *words)
        job.services[0].controller.epoch += 1
        return found

    monkeypatch.setattr(Shard, "read", read)
    replies: list[wire.PushReply] = []
    code, _ = status(lambda: replies.extend(job.stubs[0].Push(iter([opening, job.part(0)]))))
    assert (code, replies) == (grpc.StatusCode.ABORTED, [])


def test_the_gradient_and_the_parameters_do_not_overlap(job: Job) -> None:
    """A follower may still read the gradient when the parameters are written."""
    client = job.client(A)
    both = client.array(job.placement.size + 1)
    with pytest.raises(ValueError, match="the gradient and the array for the parameters overlap"):
        client.push(both[1:], job.held(0), Push(A, 1, ONE), Fetch(both[:-1], job.held(), 1))


def test_a_call_names_no_block_that_has_become_private(job: Job) -> None:
    """Where a block was renewed without a name, its shard would write to memory that was left to it."""
    client = job.client(A)
    out, versions = client.array(job.placement.size), job.held()
    client.pull(out, versions)
    place, run = client._runs()[0]
    call = PullCall("digits", place, run, out, versions, "w")
    client._share([call])
    client._refer(call)
    assert call.names_memory
    block = block_of(out)
    assert block is not None
    block.name = ""
    client._share([call])
    client._refer(call)
    assert not call.names_memory


def test_an_exchange_with_a_pull_is_refused(start: Callable[..., Job]) -> None:
    job = start(rule="elastic")
    opening = job.opening(Push(A, 1, np.float32(0.5)))
    opening.opening.segments = 1
    opening.opening.pull.CopyFrom(wire.PullRequest(target=job.target(0), vector="w", segments=[0]))
    opening.MergeFrom(job.part(0))
    reason = status(lambda: list(job.stubs[0].Exchange(iter([opening]))))[1]
    assert reason.endswith("an exchange is answered with the centre, and its opening names a pull")


def test_a_fetch_that_is_refused_leaves_its_push_acknowledged(job: Job) -> None:
    opening = job.opening(Push(A, 1, ONE))
    opening.opening.segments = 1
    opening.opening.pull.CopyFrom(wire.PullRequest(target=job.target(0), vector="made up", segments=[0]))
    call = job.stubs[0].Push(iter([opening, job.part(0)]))
    assert next(call).acknowledgement.acknowledged == 1
    assert status(lambda: next(call))[1] == "job 'digits', shard 0: segment 0: no vector 'made up' yet"


def test_a_push_is_acknowledged_before_its_fetch_waits(start: Callable[..., Job]) -> None:
    """With a staleness bound a fetch may wait for other replicas, and what they wait for is this push."""
    job = start(staleness=1)
    for number in range(2):
        rounds = [wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])]
        job.configure(number, membership=wire.Membership(member_epoch=1, rounds=rounds))
    opening = job.opening(Push(A, 1, ONE, clock=0))
    opening.opening.segments = 1
    request = wire.PullRequest(target=job.target(0), vector="w", segments=[0], clock=2)
    request.pusher.replica, request.pusher.incarnation = A.replica, A.incarnation
    opening.opening.pull.CopyFrom(request)
    call = job.stubs[0].Push(iter([opening, job.part(0)]))
    assert next(call).acknowledgement.acknowledged == 1
    list(job.stubs[0].Push(iter([job.opening(Push(B, 1, ONE, clock=0)), job.part(0)])))
    (segment,) = [segment for reply in call for segment in reply.segments]
    assert segment.index == 0


def test_a_fetch_needs_a_push_that_counts_its_segments(job: Job) -> None:
    opening = job.opening(Push(A, 1, ONE))
    opening.opening.pull.CopyFrom(wire.PullRequest(target=job.target(0), vector="w", segments=[0]))
    code, reason = status(lambda: list(job.stubs[0].Push(iter([opening, job.part(0)]))))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert reason.endswith("a pull follows a push, whose opening does not count the segments")


def test_replies_that_were_not_requested_are_refused(start: Callable[..., Job]) -> None:
    further: list[bytes] = [b""]

    def adds(service: ShardService) -> None:
        whole = service.Push

        def push(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            for reply in whole(requests, context):
                yield reply + further[0]

        service.Push = push  # type: ignore[method-assign]

    job = start(prepare=adds)
    further[0] = bulk.encode(bulk.SegmentPayload(0, 1, unchanged=True))
    with pytest.raises(Rejected, match="answered with segments that were not requested"):
        job.client(A).push(job.full(1.0), job.held(0), Push(A, 1, ONE))
