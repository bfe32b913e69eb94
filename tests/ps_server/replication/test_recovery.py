"""A shard dies and recovers: the client's resends, and the losses it reports."""

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.placement import Placement
from dbelief.core.push import Push, PushResult
from dbelief.errors import Rejected, Unavailable
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.client.stream_pool import Stream
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import bulk
from ps_server.rpc.servicer import ShardService
from tests.ps_server.replication.test_migration import give, hold, moved
from tests.ps_server.servers import A, B, Job, status, wait_until

pytestmark = pytest.mark.processes
ONE = np.float32(1)
everywhere = pytest.mark.parametrize("here", [True, False], ids=["same port", "another port"])


class Dying:
    """Makes a service of shard 1 stop in the middle of its n-th stream of pushes by A, and tell so."""

    def __init__(self, pushes: int, messages: int) -> None:
        self.pushes, self.messages = pushes, messages
        self.stopped = threading.Event()

    def __call__(self, service: ShardService) -> None:
        whole, opened = service.Push, itertools.count(1)

        def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            return whole(self.until(messages, opened, service, context), context)

        service.Push = push  # type: ignore[method-assign]

    def until(
        self, messages: Iterator[bytes], opened: Iterator[int], service: ShardService, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        left = -1
        for message in messages:
            opening = wire.PushRequest.FromString(message).opening
            if opening.pusher.replica == A.replica and service.controller.index == 1 and next(opened) == self.pushes:
                left = self.messages
            if left == 0:
                ended = threading.Event()
                context.add_callback(ended.set)
                self.stopped.set()
                assert ended.wait(60)
                return
            left -= 1
            yield message


def pushes(client: ShardedParameterClient, job: Job, numbers: range) -> list[PushResult]:
    versions = job.held()
    out = job.full(np.nan)
    done = []
    for number in numbers:
        client.pull(out, versions)
        done.append(client.push(job.full(1.0), versions, Push(A, number, ONE)))
    return done


@everywhere
def test_push_to_a_recovered_shard_reports_the_loss(job: Job, tmp_path: Path, here: bool) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    pushes(client, job, range(1, 3))
    job.snapshot(tmp_path)
    pushes(client, job, range(3, 6))
    job.restart(1, tmp_path, here)
    assert [one.lost for one in pushes(client, job, range(6, 9))] == [3, 0, 0]
    shared, kept = job.full(-8.0), job.placement.spans[20].start
    shared[kept:] = -5.0
    np.testing.assert_array_equal(job.read(), shared)
    stats = job.stubs[1].Stats(wire.StatsRequest(job="digits"))
    assert list(stats.lost) == [3] * 20
    assert list(job.stubs[0].Stats(wire.StatsRequest(job="digits")).lost) == [0] * 20


def test_client_drops_channels_of_former_addresses(job: Job, tmp_path: Path) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    former = {place.address for place in job.placement.places}
    pushes(client, job, range(1, 3))
    assert client._streams._channels.keys() == former
    job.snapshot(tmp_path)
    for number in (0, 1):
        job.restart(number, tmp_path, here=False)
    pushes(client, job, range(3, 4))
    now = {place.address for place in job.placement.places}
    assert client._streams._channels.keys() == now
    assert {address for address, _ in client._streams._methods} == now
    assert client._sharing._peers.keys() <= now


@everywhere
@pytest.mark.parametrize("messages", [0, 1, 7, 18], ids=lambda n: f"after {n} segments")
def test_interrupted_push_is_resent_to_the_recovered_shard(
    start: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int, here: bool
) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)  # a message for each segment
    dying = Dying(4, messages)
    job = start(prepare=dying)
    client = job.client(A, refresh=lambda: job.placement)
    pushes(client, job, range(1, 2))
    job.snapshot(tmp_path)
    pushes(client, job, range(2, 4))
    with ThreadPoolExecutor(1) as pool:
        fourth = pool.submit(client.push, job.full(1.0), job.held(3), Push(A, 4, ONE))
        assert dying.stopped.wait(60)
        job.restart(1, tmp_path, here)
        pushed = fourth.result(60)
    assert (pushed.lost, pushed.duplicates) == (2, 0)
    shared = job.full(-4.0)
    shared[job.placement.spans[20].start :] = -2.0
    np.testing.assert_array_equal(job.read(), shared)
    assert pushes(client, job, range(5, 6)) == [PushResult(0.0, 0, 0)]


def test_push_is_resent_whole_with_an_outdated_placement(
    start: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The placement that is read first after the break is the old one; 16 segments were acknowledged before."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)
    dying, looked = Dying(1, 18), threading.Event()
    job = start(prepare=dying)
    old = job.placement

    def refresh() -> Placement:
        if looked.is_set():
            return job.placement
        looked.set()
        return old

    client = job.client(A, refresh=refresh)
    job.snapshot(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.push, job.full(1.0), job.held(0), Push(A, 1, ONE))
        assert dying.stopped.wait(60)
        job.restart(1, tmp_path)
        assert first.result(60).duplicates == 0
    np.testing.assert_array_equal(job.read(), job.full(-1.0))


def test_lost_loss_report_is_repeated(job: Job, tmp_path: Path) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    pushes(client, job, range(1, 3))
    job.snapshot(tmp_path)
    pushes(client, job, range(3, 5))
    job.restart(1, tmp_path)
    unheard = Push(A, 5, ONE, base=5)  # applied, but the client never hears of it
    spans = job.placement.run(job.placement.places[1])
    for span in spans:
        job.services[1].controller.require_shard().push(unheard, span.index, job.full(1.0)[span.start : span.stop])
    assert pushes(client, job, range(5, 6)) == [PushResult(0.0, 20, 2)]


def test_newer_snapshot_makes_a_duplicate_without_loss(job: Job, tmp_path: Path) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    pushes(client, job, range(1, 3))
    spans = job.placement.run(job.placement.places[1])
    for span in spans:  # the third push reaches shard 1, and a snapshot, before its answer is lost
        values = job.full(1.0)[span.start : span.stop]
        job.services[1].controller.require_shard().push(Push(A, 3, ONE), span.index, values)
    job.snapshot(tmp_path)
    job.restart(1, tmp_path)
    assert pushes(client, job, range(3, 4)) == [PushResult(0.0, 20, 0)]
    np.testing.assert_array_equal(job.read(), job.full(-3.0))


def test_every_vector_has_its_own_base(job: Job, tmp_path: Path) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    client.push(job.full(7.0), job.held(0), Push(A, 1, vector="best.0", assign=True))
    job.snapshot(tmp_path)
    client.push(job.full(8.0), job.held(0), Push(A, 2, vector="best.0", assign=True))
    pushes(client, job, range(1, 3))
    job.restart(0, tmp_path)
    job.restart(1, tmp_path)
    assert pushes(client, job, range(3, 4))[0].lost == 2
    assert client.push(job.full(9.0), job.held(0), Push(A, 3, vector="best.0", assign=True)).lost == 1
    np.testing.assert_array_equal(job.read("best.0"), job.full(9.0))


def test_pull_continues_at_the_recovered_shard(job: Job, tmp_path: Path) -> None:
    job.snapshot(tmp_path)
    client, out, versions = job.client(B, refresh=lambda: job.placement), job.full(np.nan), job.held()
    client.pull(out, versions)
    job.restart(0, tmp_path, here=False)
    job.restart(1, tmp_path)
    out[:] = np.nan
    versions[:] = -1
    client.pull(out, versions)
    np.testing.assert_array_equal(out, job.full(0.0))
    assert [span.index for span, _ in client.each_segment()] == list(range(40))


def test_streams_to_former_addresses_end(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended, requests = itertools.count(), threading.Semaphore(0), Stream._requests

    def noted(stream: Stream) -> Iterator[bytes]:
        next(begun)
        try:
            yield from requests(stream)
        finally:
            ended.release()

    monkeypatch.setattr(Stream, "_requests", noted)
    job.snapshot(tmp_path)
    client = job.client(A, refresh=lambda: job.placement)
    pushes(client, job, range(1, 2))
    left = job.servers[1].address
    job.restart(1, tmp_path, here=False)
    pushes(client, job, range(2, 3))
    assert {address for address, _ in client._streams._idle} == {server.address for server in job.servers}
    assert left not in {server.address for server in job.servers}
    client.close()
    for _ in range(next(begun)):
        assert ended.acquire(timeout=60), "a thread still waits for what to send"


def test_push_to_an_old_shard_epoch_is_refused_midway(start: Callable[..., Job]) -> None:
    job = start(count=80)
    push = job.opening(Push(A, 1, ONE))
    for change in ({"shard_epoch": 9}, {"assignment": job.assignment(0)}):
        taken = job.services[0].controller.require_shard().taken
        before = taken()[0]

        def requests(
            change: dict[str, Any] = change, taken: Callable[[], dict[int, int]] = taken, before: int = before
        ) -> Iterator[wire.PushRequest]:
            yield push
            yield job.part(0)
            wait_until(lambda: taken()[0] > before, "the first segment at the shard")  # else all of it comes later
            job.configure(0, **change)
            yield job.part(1)

        code, details = status(lambda requests=requests: list(job.stubs[0].Push(requests())))  # type: ignore[misc]
        assert code is grpc.StatusCode.ABORTED
        assert "epoch" in details
        push.opening.target.shard_epoch = 9


@pytest.mark.parametrize("asks", [True, False])
def test_giving_up_names_the_shard_that_is_away(start: Callable[..., Job], asks: bool) -> None:
    job = start()
    client = job.client(A, deadline_s=0.2, refresh=(lambda: job.placement) if asks else None)
    job.servers[1].close(0.0)
    with pytest.raises(Unavailable, match=r"^push: shard 1 at 127.0.0.1:\d+: .*; no segment for \d"):
        client.push(job.full(1.0), job.held(0), Push(A, 1, ONE))
    with pytest.raises(Unavailable, match=r"^pull: shard 1 at 127.0.0.1:\d+: .*; no segment for \d"):
        client.pull(job.full(1.0), job.held())


def test_timeout_names_the_shard_without_a_coordinator(job: Job) -> None:
    def away() -> Placement:
        raise Unavailable("coordinator at localhost:1: nobody there")

    client = job.client(A, deadline_s=0.2, refresh=away)
    job.servers[1].close(0.0)
    with pytest.raises(Unavailable, match=r"^push: shard 1 at \S+: coordinator at localhost:1: .*; no segment for"):
        client.push(job.full(1.0), job.held(0), Push(A, 1, ONE))


def test_a_job_that_is_over_ends_the_wait(job: Job) -> None:
    def over() -> Placement:
        raise Rejected("the job is over: stopped")

    job.servers[1].close(0.0)
    with pytest.raises(Rejected, match="the job is over: stopped"):
        job.client(A, refresh=over).push(job.full(1.0), job.held(0), Push(A, 1, ONE))


@pytest.mark.parametrize("messages", [7, 18], ids=lambda n: f"after {n} segments")
def test_interrupted_push_follows_migrated_segments(
    start: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    """It came back from a snapshot, gave its segments away and left, before the client looked."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)  # a message for each segment
    dying = Dying(3, messages)
    job = start(prepare=dying)
    client = job.client(A, refresh=lambda: job.placement)
    pushes(client, job, range(1, 2))
    job.snapshot(tmp_path)
    pushes(client, job, range(2, 3))
    refreshed = threading.Event()

    def when_it_has_left() -> Placement:
        assert refreshed.wait(60)
        return job.placement

    client._refresh = when_it_has_left
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(client.push, job.full(1.0), job.held(2), Push(A, 3, ONE))
        assert dying.stopped.wait(60)
        job.restart(1, tmp_path)
        every = [span.index for span in job.placement.spans]
        give(job, 1, 0, list(job.placement.places[1].segments))
        hold(job, 0, every)
        after = moved(job.placement, 1, 0, every)
        job.placement = dataclasses.replace(after, places=after.places[:1])
        refreshed.set()
        pushed = third.result(60)
    assert pushed.lost == 1
    shared = job.full(-3.0)
    shared[job.placement.spans[20].start :] = -2.0
    np.testing.assert_array_equal(job.read(), shared)
    assert pushes(client, job, range(4, 5)) == [PushResult(0.0, 0, 0)]
