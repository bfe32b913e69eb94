"""A client's direct streams where none is had: how often it asks, and what it reports."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from dbelief.core.placement import ShardPlacement
from dbelief.process.runtime import Runtime, use_runtime
from dbelief.rpc.client.direct_streams import DirectStreams
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire import frames

PLACE = ShardPlacement(3, "127.0.0.1:7071", 5, ((0, 1),))


class Shards:
    """In the place of a pool of streams: answers calls for a stream."""

    def __init__(self, answer: bytes | grpc.RpcError) -> None:
        self.answer, self.calls = answer, 0

    def call(self, *words: Any) -> bytes:
        self.calls += 1
        if isinstance(self.answer, grpc.RpcError):
            raise self.answer
        return self.answer


class Manual(Runtime):
    now_s = 1000.0

    def __init__(self) -> None:
        self.monotonic = lambda: self.now_s


def asked(shards: Shards, until_s: float) -> list[float]:
    """Times at which a client that needs a stream every second asks for one."""
    runtime, times = Manual(), []
    began_s = runtime.now_s
    with use_runtime(runtime):
        direct = DirectStreams("job", shards, wanted=True, logs=True)  # type: ignore[arg-type]
        while runtime.now_s < began_s + until_s:
            before = shards.calls
            assert direct.acquire(PLACE, "Push") is None
            times += [runtime.now_s - began_s] * (shards.calls - before)
            runtime.now_s += 1.0
    return times


def test_a_shard_that_offers_none_is_asked_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shards = Shards(wire.OpenReply(refusal="it offers no direct streams").SerializeToString())
    assert asked(shards, 10_000.0) == [0, 30, 90, 210, 450, 930, 1890, 3810, 7410]
    assert [line for line in caplog.messages if "small messages" in line] == [
        "small messages to shard 3 at 127.0.0.1:7071 go over gRPC: it offers no direct streams"
    ]


def test_a_shard_that_is_gone_is_asked_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shards = Shards(frames.StreamEnded(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert asked(shards, 3.0) == [0, 1, 2]
    assert not caplog.messages


def test_another_incarnation_is_asked_at_once() -> None:
    shards = Shards(frames.StreamEnded(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
    with use_runtime(Manual()):
        direct = DirectStreams("job", shards, wanted=True, logs=False)  # type: ignore[arg-type]
        for epoch, calls in ((5, 1), (5, 1), (6, 2), (6, 2)):
            direct.acquire(ShardPlacement(3, "127.0.0.1:7071", epoch, ((0, 1),)), "Push")
            assert shards.calls == calls
        direct.leave(PLACE.address)
        direct.acquire(PLACE, "Push")
        assert shards.calls == 3


def test_a_client_that_wants_none_asks_for_none() -> None:
    shards = Shards(b"")
    direct = DirectStreams("job", shards, wanted=False, logs=True)  # type: ignore[arg-type]
    assert direct.acquire(PLACE, "Push") is None
    assert not shards.calls
