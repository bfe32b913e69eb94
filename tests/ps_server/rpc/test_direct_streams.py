"""Calls over direct streams: the same results as over gRPC, which they use where there is no direct stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest

from dbelief.core.placement import Fetch
from dbelief.core.push import Push
from dbelief.errors import Moved, Rejected
from dbelief.rpc.client import shard_calls
from dbelief.rpc.server.socket_streams import SocketContext
from dbelief.rpc.transport import Transport, use_transport
from dbelief.rpc.wire import bulk
from ps_server.rpc.servicer import ShardService
from tests.ps_server.servers import A, B, Job

pytestmark = pytest.mark.processes
ONE, HALF = np.float32(1), np.float32(0.5)
METHODS = "Pull", "Push", "Exchange"


class Ways:
    """Counts the streams of the shards' data, by the way they take; may break those of one method."""

    def __init__(self) -> None:
        self.opened = {"direct": 0, "grpc": 0}
        self.breaks: dict[str, list[int]] = {method: [] for method in METHODS}  # after so many replies

    def __call__(self, service: ShardService) -> None:
        for method in METHODS:
            counted = self._counted(method, getattr(service, method))
            setattr(service, method, counted)
            service._direct._methods[method] = counted  # type: ignore[union-attr,index]

    def _counted(self, method: str, whole: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def stream(messages: Iterator[bytes], context: Any) -> Iterator[Any]:
            self.opened["direct" if isinstance(context, SocketContext) else "grpc"] += 1
            left = self.breaks[method].pop(0) if self.breaks[method] else 10**9
            for answer in whole(messages, context):
                if not left:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "a line that broke")
                left -= 1
                yield answer

        return stream


@pytest.fixture
def ways() -> Ways:
    return Ways()


@pytest.fixture
def job(ways: Ways) -> Iterator[Job]:
    made = Job(prepare=ways)
    ways.opened.update(direct=0, grpc=0)
    yield made
    made.close()


def steps(job: Job, direct: bool, count: int = 5) -> np.ndarray:
    """Push and fetch some times; what was fetched."""
    client, rng = job.client(A, direct=direct, shares_memory=False), np.random.default_rng(7)
    into = Fetch(job.full(np.nan), job.held())
    for number in range(1, count + 1):
        values = rng.standard_normal(job.placement.size).astype(np.float32)
        pushed = client.push(values, job.held(0), Push(A, number, HALF), into)
        assert (pushed.duplicates, pushed.lost) == (0, 0)
        np.testing.assert_array_equal(into.versions, job.held(number))
    return into.out


def test_pushes_and_pulls_have_the_results_of_grpc(job: Job, ways: Ways) -> None:
    fetched = steps(job, direct=True)
    assert ways.opened == {"direct": 2, "grpc": 0}, "one for each shard, used again"
    out, versions = job.full(np.nan), job.held()
    job.client(B, direct=True).pull(out, versions)
    np.testing.assert_array_equal(out, fetched)
    assert ways.opened == {"direct": 4, "grpc": 0}
    other = Job()
    try:
        np.testing.assert_array_equal(fetched, steps(other, direct=False))
    finally:
        other.close()


@pytest.mark.parametrize("full", [32, 100, bulk.FULL_BYTES])
def test_exchanges_have_the_results_of_grpc(monkeypatch: pytest.MonkeyPatch, ways: Ways, full: int) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", full)
    results = []
    for direct in True, False:
        job, rng = Job(rule="elastic", prepare=ways), np.random.default_rng(3)
        try:
            before, client = job.full(np.nan), job.client(A, direct=direct)
            for number in 1, 2, 3:
                values = rng.standard_normal(job.placement.size).astype(np.float32)
                client.exchange(values, before, job.held(0), Push(A, number, HALF))
            results.append((before, job.read()))
        finally:
            job.close()
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert ways.opened["direct"] >= 2


@pytest.mark.parametrize("after", [[0], [1], [0, 0, 0], [2, 1]])
def test_a_push_over_a_stream_that_breaks_is_applied_once(job: Job, ways: Ways, after: list[int]) -> None:
    ways.breaks["Push"] = after
    client = job.client(A, direct=True)
    for number in 1, 2, 3:
        client.push(job.full(1.0), job.held(0), Push(A, number, ONE))
    np.testing.assert_array_equal(job.read(), job.full(-3.0))


def test_streams_that_have_ended_while_idle_are_replaced(job: Job, ways: Ways) -> None:
    client = job.client(A, direct=True)
    for number in 1, 2, 3:
        client.push(job.full(1.0), job.held(0), Push(A, number, ONE))
        for service in job.services:
            assert service._direct is not None
            for connection in list(service._direct._connections):
                connection.shut_down()
    np.testing.assert_array_equal(job.read(), job.full(-3.0))
    assert client.retries == 0, "a stream that was idle says nothing about its shard"
    assert ways.opened["direct"] == 6


def test_large_calls_use_grpc(job: Job, ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_calls, "DIRECT_SIZE", job.placement.size // 4)
    client = job.client(A, direct=True)
    client.push(job.full(1.0), job.held(0), Push(A, 1, ONE))
    assert ways.opened == {"direct": 0, "grpc": 2}


def test_shards_that_open_no_direct_stream(
    job: Job, ways: Ways, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    first, second = job.services
    first._direct = None
    assert second._direct is not None
    monkeypatch.setattr(second._direct, "_most", 0)
    client = job.client(A, direct=True)
    for number in 1, 2, 3:
        client.push(job.full(1.0), job.held(0), Push(A, number, ONE))
    assert ways.opened == {"direct": 0, "grpc": 2}
    lines = [line for line in caplog.messages if "small messages" in line]
    assert len(lines) == 2, "one for each shard"
    assert "it offers no direct streams" in lines[0]
    assert "there are 0 direct streams already" in lines[1]


def test_a_shard_whose_ports_are_out_of_reach(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    class OutOfReach(Transport):
        ports: ClassVar[list[int]] = []

        def connect(self, host: str, port: int, *others: Any) -> Any:
            self.ports.append(port)
            raise ConnectionRefusedError(111, "Connection refused")

    with use_transport(OutOfReach()):
        client = job.client(A, direct=True)
        for number in 1, 2, 3:
            client.push(job.full(1.0), job.held(0), Push(A, number, ONE))
    np.testing.assert_array_equal(job.read(), job.full(-3.0))
    assert len(OutOfReach.ports) == 2, "not again at every call"
    assert sum("go over gRPC: no connection to its port" in line for line in caplog.messages) == 2


def test_a_shard_of_another_incarnation_is_not_used(job: Job, ways: Ways) -> None:
    client = job.client(A, direct=True)
    client.push(job.full(1.0), job.held(0), Push(A, 1, ONE))
    job.configure(0, job="digits", shard_epoch=20, assignment=job.assignment(0))
    with pytest.raises(Moved):
        client.push(job.full(1.0), job.held(0), Push(A, 2, ONE))


def test_an_error_of_the_shard_is_that_of_grpc(job: Job) -> None:
    reasons = []
    for direct in True, False:
        client = job.client(A, direct=direct)
        with pytest.raises(Rejected) as caught:
            client.pull(job.full(0.0), job.held(), vector="unknown")
        reasons.append(str(caught.value))
    assert reasons[0] == reasons[1]


def test_clients_with_threads_of_their_own(job: Job, ways: Ways) -> None:
    """Several threads of one client push and pull at the same time, each over streams of its own."""
    client = job.client(A, direct=True)

    def pull() -> None:
        for _ in range(20):
            out = job.full(np.nan)
            client.pull(out, job.held())
            assert (out == np.round(out)).all()

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 21):
        client.push(job.full(1.0), job.held(0), Push(A, number, ONE))
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(job.read(), job.full(-20.0))
    assert ways.opened["grpc"] == 2, "of the read above"
