"""Push and pull over real gRPC, and what becomes of a stream that breaks."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.arrays.push_source import DeviceSource
from dbelief.core.placement import Placement
from dbelief.core.push import Push
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from ps_server.rpc.servicer import ShardService
from tests.device.standin.cupy import standing_in
from tests.ps_server.servers import A, B, Job

pytestmark = pytest.mark.processes

# -- push and pull -------------------------------------------------------------------------------------------


def test_pushed_values_are_pulled(job: Job) -> None:
    values = np.random.default_rng(0).standard_normal(job.placement.size, dtype=np.float32)
    client, out, versions = job.client(A), job.full(np.nan), job.held()
    client.pull(out, versions)
    pushed = client.push(values, versions, Push(A, 1, np.float32(0.5)))
    assert (pushed.staleness, pushed.duplicates, pushed.lost) == (0, 0, 0)
    client.pull(out, versions)
    assert out.tobytes() == (-np.float32(0.5) * values).tobytes()
    assert set(versions.tolist()) == {1}


def test_reply_has_staleness_duplicates_and_losses(job: Job) -> None:
    client = job.client(A)
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    stale = job.held(1)
    stale[:10] = 0
    assert job.client(B).push(job.full(1.0), stale, Push(B, 1, np.float32(1))).staleness == pytest.approx(10 / 40)
    again = client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    assert (again.staleness, again.duplicates) == (0, 40)
    np.testing.assert_array_equal(job.read(), job.full(-2.0))


def test_calls_and_bytes_are_counted(job: Job) -> None:
    client = job.client(A)
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    job.client(B).push(job.full(1.0), job.held(1), Push(B, 4, np.float32(1), base=4))
    client.pull(job.full(np.nan), job.held())
    assert job.counted("pushes_total", vector="w") == 2 * (1 + 3)  # with the initial values, at each of two shards
    assert job.counted("pulls_total", vector="w") == 2
    assert job.counted("duplicates_total") == 40
    assert job.counted("bytes_total", direction="received") == 4 * 4 * job.placement.size
    around = job.counted("bytes_total", direction="sent") - 4 * job.placement.size
    assert 0 < around < 16 * 40, "a segment's index, version and length"


def test_only_newer_segments_are_sent(job: Job) -> None:
    client, out, versions = job.client(A), job.full(np.nan), job.held()
    client.pull(out, versions)
    list(job.stubs[1].Push(iter([job.opening(Push(B, 1, np.float32(1)), 1), job.part(33)])))
    out[:] = 7.0
    client.pull(out, versions)
    span = job.placement.spans[33]
    np.testing.assert_array_equal(out[span.start : span.stop], np.full(span.length, -1.0))
    assert np.count_nonzero(out == 7.0) == len(out) - span.length
    held, newer = job.pulled(1, segments=[34, 33], if_newer_than=[0, 0])
    assert (held.index, held.unchanged, held.HasField("data")) == (34, True, False)
    assert (newer.index, newer.unchanged, newer.version, newer.length) == (33, False, 1, 8)


def test_named_vectors_are_kept_and_read_segment_by_segment(job: Job) -> None:
    best = np.arange(job.placement.size, dtype=np.float32)
    job.client(A).push(best, job.held(), Push(A, 1, vector="best.0", assign=True))
    np.testing.assert_array_equal(job.read("best.0"), best)
    for span, numbers in job.client(B).each_segment("best.0"):
        np.testing.assert_array_equal(numbers, best[span.start : span.stop])
    assert not job.read().any()


def test_a_gradient_on_a_device_is_fetched_as_it_is_sent(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", 100)
    values = np.random.default_rng(0).standard_normal(job.placement.size, dtype=np.float32)
    with standing_in() as machine:
        xp = select_backend("cuda").xp
        job.client(A).push(DeviceSource(xp, xp.asarray(values)), job.held(0), Push(A, 1, np.float32(1)))
    np.testing.assert_array_equal(job.read(), -values)
    assert len(machine.memory.requests[-1]) == 1 + 4  # one to bring the values there, two for each shard


def test_generated_client_works_with_our_server(job: Job) -> None:
    opening = job.opening(Push(A, 1, np.float32(1)))
    together = wire.PushRequest(opening=opening.opening)
    for index in range(5):
        together.segments.extend(job.part(index, 2.0).segments)
    apart = (job.part(index, 2.0) for index in range(5, 20))
    assert [reply.acknowledgement.acknowledged for reply in job.stubs[0].Push(iter([together, *apart]))] == [16, 20]
    (reply,) = job.stubs[0].Pull(
        iter([wire.PullRequest(target=job.target(0), vector="w", segments=range(20), pusher=segments.Pusher())])
    )
    assert [(segment.index, segment.version, segment.length) for segment in reply.segments] == [
        (index, 1, 8) for index in range(20)
    ]
    assert {value for segment in reply.segments for value in np.frombuffer(segment.data, "<f4")} == {-2.0}
    one_request: Any = job.channels[0].unary_stream(
        "/dbelief.v1.Parameters/Pull", wire.PullRequest.SerializeToString, wire.PullReply.FromString
    )
    assert list(one_request(wire.PullRequest(target=job.target(0), vector="w", segments=range(20)))) == [reply]


def test_accrued_numbers_travel_as_they_are_kept(job: Job) -> None:
    values = np.arange(job.placement.size, dtype=np.float64) / 3
    client, out = job.client(A), np.zeros(job.placement.size)
    client.push(values, job.held(0), Push(A, 1, vector="accrued", assign=True))
    client.pull(out, job.held(), vector="accrued")
    np.testing.assert_array_equal(out, values)


# -- acknowledgements and broken streams ---------------------------------------------------------------------


class Feed:
    """The requests of a stream that the test sends one after another."""

    def __init__(self, *requests: wire.PushRequest) -> None:
        self._queue: queue.SimpleQueue[wire.PushRequest | None] = queue.SimpleQueue()
        self.send(requests)

    def send(self, requests: Iterable[wire.PushRequest]) -> None:
        for request in requests:
            self._queue.put(request)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[wire.PushRequest]:
        return iter(self._queue.get, None)


def applied(job: Job, number: int, segments_applied: int) -> None:
    """Wait until a shard has applied so many segments of pushes by a rule."""
    until_s = time.monotonic() + 5
    while sum(job.stubs[number].Stats(wire.StatsRequest(job="digits")).versions) < segments_applied:
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.mark.parametrize("cut_after", [0, 1, 5, 16, 19])
def test_interrupted_stream_is_applied_once(job: Job, cut_after: int) -> None:
    push = Push(A, 1, np.float32(1))
    feed = Feed(job.opening(push), *(job.part(index) for index in range(cut_after)))
    call = job.stubs[0].Push(iter(feed))
    applied(job, 0, cut_after)
    call.cancel()
    feed.end()
    pushed = job.client(A).push(job.full(1.0), job.held(0), push)
    assert pushed.duplicates == cut_after
    np.testing.assert_array_equal(job.read(), job.full(-1.0))
    assert job.client(A).push(job.full(1.0), job.held(1), Push(A, 2, np.float32(1))).duplicates == 0
    np.testing.assert_array_equal(job.read(), job.full(-2.0))


def test_client_resumes_at_the_first_unacknowledged_segment(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[list[int]] = []

    def breaks_once(service: ShardService) -> None:
        whole = service.Push

        def push(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            first = next(requests)
            training = wire.PushRequest.FromString(first).opening.rule.name != "assign"
            seen: list[int] = []
            if training:
                began.append(seen)

            def watched() -> Iterator[bytes]:
                seen.extend(part.index for part in bulk.decode(first)[1])
                yield first
                for request in requests:
                    seen.extend(part.index for part in bulk.decode(request)[1])
                    yield request

            if not training or len(began) > 2:  # the first stream to each of the two shards breaks
                yield from whole(watched(), context)
                return
            replies = whole(itertools.islice(watched(), 34), context)
            yield next(replies)
            yield next(replies)  # 32 are acknowledged, two more applied
            next(replies)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the network went away")

        service.Push = push  # type: ignore[method-assign]

    monkeypatch.setattr(bulk, "FULL_BYTES", 1)  # a message for each segment
    job = start(count=80, prepare=breaks_once)
    asked: list[int] = []

    def refresh() -> Placement:
        asked.append(1)
        return job.placement

    client = job.client(A, refresh=refresh)
    pushed = client.push(job.full(1.0), job.held(0), Push(A, 1, np.float32(1)))
    assert pushed.duplicates == 4  # two on each shard
    assert sorted(seen[0] for seen in began) == [0, 32, 40, 72]
    assert len(asked) == 2
    np.testing.assert_array_equal(job.read(), job.full(-1.0))
    assert {version for stub in job.stubs for version in stub.Stats(wire.StatsRequest(job="digits")).versions} == {1}


def test_stalled_stream_is_cancelled_and_reopened(start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    stalled: list[int] = []

    def stalls_once(service: ShardService) -> None:
        whole = service.Pull

        def pull(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            answers = whole(requests, context)
            yield next(answers)
            if not stalled:
                stalled.append(service.controller.index)
                cancelled = threading.Event()
                context.add_callback(cancelled.set)
                assert cancelled.wait(60)
                return
            yield from answers

        service.Pull = pull  # type: ignore[method-assign]

    monkeypatch.setattr(bulk, "FULL_BYTES", 1)  # a message for each segment
    job = start(prepare=stalls_once)
    out = job.full(np.nan)
    job.client(A, deadline_s=0.2).pull(out, job.held())
    assert len(stalled) == 1
    np.testing.assert_array_equal(out, job.full(0.0))
