"""dbelief's own transport: a worker process that only transfers, and shards, each a real `dbelief ps`.

A push is complete when Adagrad has been applied to all of it and acknowledged, a put when it is stored unchanged. An
exchange uses separate shards, which apply the elastic rule and return the previous centre.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dbelief.errors import RuntimeFailure
from dbelief.launch.child_process import Way

from .control_socket import WAIT_S, Line
from .peers import DIRECT, Peer
from .shards import JOB, Shards

TRANSPORTS = ("tcp", "shm")
SHARES = "shares memory with shard"
"""Log message of a client that shares memory with a shard."""


def worker(
    stack: ExitStack,
    folder: Path,
    shards: Shards,
    number: int = 0,
    part: tuple[int, int] | None = None,
    transport: str = "tcp",
    way: Way = DIRECT,
) -> Peer:
    """A worker of all the parameters of these shards, or of `part` of them, over TCP or through shared memory.

    Raises
    ------
    RuntimeFailure
        It does not start, or shared memory is not available to it.
    """
    peer = stack.enter_context(Peer("worker", folder, f"worker-{number}-{transport}-of-{shards.name}", way))
    peer.ask(
        {
            "job": JOB,
            "rule": shards.rule,
            "spans": [list(asdict(span).values()) for span in shards.spans],
            "places": [list(asdict(where).values()) for where in shards.placement.places],
            "pusher": [number + 1, number + 2],
            "part": part,
            "transport": transport,
        }
    )
    if transport == "shm" and not any(SHARES in line for line in peer.child.log_messages()):
        raise RuntimeFailure(f"{peer.child.name} shares no memory with its shards: {peer.child.last_words()}")
    return peer


class Ours:
    """Pull, push and exchange by one transport; for one vector size, that of the shards."""

    turns = ("pull", "push", "put", "exchange")

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        transport: str,
        number: int,
        trained: Shards,
        averaged: Shards,
        way: Way = DIRECT,
    ) -> None:
        self.name = f"dbelief, {transport}"
        trains = worker(stack, folder, trained, number, transport=transport, way=way)
        averages = worker(stack, folder, averaged, number, transport=transport, way=way)
        self._workers = {"pull": trains, "push": trains, "put": trains, "exchange": averages}

    def prepare(self, size: int) -> None:
        """See `MeasuredWay`; the shards fix the size."""

    def turn(self, what: str) -> float:
        """See `MeasuredWay`."""
        (seconds,) = self._workers[what].ask({"turns": [what], "times": 1})["seconds"]
        return float(seconds)


def be_worker(line: Line) -> None:
    """Run a worker that only pulls, pushes and exchanges; report the seconds of each, and the total processor time."""
    from dbelief.core.layout import SegmentSpan
    from dbelief.core.placement import Placement, ShardPlacement
    from dbelief.core.push import Push, Pusher
    from dbelief.rpc.client.shard_client import ShardedParameterClient

    settings = line.receive_message()
    spans = tuple(SegmentSpan(*row) for row in settings["spans"])
    placement = Placement(1, spans, tuple(ShardPlacement(*row) for row in settings["places"]))
    pusher = Pusher(*settings["pusher"])
    first, stop = settings["part"] or (0, placement.size)
    client = ShardedParameterClient(
        settings["job"],
        placement,
        settings["rule"],
        pusher,
        WAIT_S / 2,
        part=(first, stop),
        shares_memory=settings["transport"] == "shm",
    )
    out, values = client.array(stop - first), client.array(stop - first)
    values[:] = np.resize(np.random.default_rng(0).standard_normal(1 << 16, np.float32), stop - first)
    versions = np.zeros(len(spans), np.int64)
    numbers, puts = itertools.count(1), itertools.count(1)

    def pull() -> None:
        versions[:] = -1
        client.pull(out, versions)

    def push() -> None:
        client.push(values, versions, Push(pusher, next(numbers), np.float32(1e-6)))

    def put() -> None:
        client.push(values, versions, Push(pusher, next(puts), vector="put", assign=True))

    def exchange() -> None:
        client.exchange(values, out, versions, Push(pusher, next(numbers), np.float32(1e-6)))

    turns = {"pull": pull, "push": push, "put": put, "exchange": exchange}
    try:
        pull()  # memory is shared from the first pull on
        line.send_message("ready")
        while (order := line.receive_message()) is not None:
            seconds = []
            used_s = time.process_time()
            for what in order["turns"] * order["times"]:
                began = time.perf_counter()
                turns[what]()
                seconds.append(time.perf_counter() - began)
            line.send_message({"seconds": seconds, "cpu_s": time.process_time() - used_s})
    finally:
        client.close()
