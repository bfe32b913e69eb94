"""Machines that vanish, as at a power cut: at the other end their connections end, and all that was kept for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push
from dbelief.errors import Unavailable
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.client.stream_pool import StreamPool
from dbelief.rpc.keepalive import Keepalive
from tests.histories.proxy import Proxy
from tests.ps_server.rpc.test_stream_limit import Small
from tests.ps_server.servers import A, wait_until

pytestmark = pytest.mark.processes

QUICK = Keepalive(0.3, 2.0)


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """What is open; calls carry no tokens, which are for the address of a server and not for a proxy's."""
    monkeypatch.setattr("dbelief.security.identity._Identity.insecure", True)
    with ExitStack() as stack:
        yield stack


def test_a_shard_keeps_nothing_of_a_client_that_vanished(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.rpc.server.handler_threads.IDLE_S", 0.1)
    small = Small(handlers=16, keepalive=QUICK)
    stack.callback(small.close)
    relay = Proxy(small.server.port)
    stack.callback(relay.close)
    spans = (small.service.controller.require_shard().segments[0].span,)
    placement = Placement(1, spans, (ShardPlacement(0, f"127.0.0.1:{relay.port}", 1, ((0, 1),)),))
    client = ShardedParameterClient("small", placement, ("sgd", {}), A, 60.0, direct=False)
    stack.callback(client.close)
    versions, service = np.full(1, -1, np.int64), small.service
    for sequence, out in enumerate((client.array(4), np.zeros(4, np.float32)), start=1):
        client.pull(out, versions)
        client.push(out, versions, Push(A, sequence, np.float32(1)))
    for streams in service._streams, service._local:
        wait_until(lambda streams=streams: streams._open == 2, "a stream to pull and one to push")  # type: ignore[misc]
    relay.stall(600.0)
    wait_until(
        lambda: not (service._streams._open or service._local._open or service._attached._peers), "the streams' end"
    )
    wait_until(lambda: not small.server._handlers._threads, "the threads' end")


def test_a_client_finds_out_that_a_server_vanished(stack: ExitStack) -> None:
    small = Small(handlers=16)
    stack.callback(small.close)
    relay = Proxy(small.server.port)
    stack.callback(relay.close)
    streams = StreamPool(lambda address: open_channel(address, "ps", keepalive=QUICK))
    stack.callback(streams.close)
    stream = streams.acquire(f"127.0.0.1:{relay.port}", "Pull")
    wait_until(lambda: bool(small.service._streams._open), "the stream's beginning")
    relay.stall(600.0)
    with pytest.raises(Unavailable, match="pull: "), named_errors("pull"):
        stream.answer()


def test_a_server_allows_the_pings_of_its_clients() -> None:
    options = dict(Keepalive(15.0, 20.0).options)
    assert options["grpc.keepalive_time_ms"] == 15_000
    assert options["grpc.http2.min_ping_interval_without_data_ms"] < options["grpc.keepalive_time_ms"]
    assert options["grpc.keepalive_permit_without_calls"] == 1
