"""Processes on different processors, and one cache for both: what they hold in common is equal bit by bit."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.core.vector_program import dots, lincomb
from dbelief.optim.apply import FEW
from dbelief.rpc.channel import open_channel
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire.convert import program_to_wire, spans_to_wire

from .digests import numbers
from .processors import ROOT, Program, runnable, running, settings

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(300)]

LEAST, MOST = runnable()[0], runnable()[-1]
JOB = "portable"
SPANS = (SegmentSpan(0, 0, FEW), SegmentSpan(1, FEW, 2 * FEW + 5))
"""One that a rule's formula updates, and one that its compiled loop updates."""
ADAM = segments.Rule(name="adam")


class Coordinator:
    """What a coordinator does for a shard and its follower."""

    def __init__(self) -> None:
        self._commands = itertools.count(1)

    def command(self) -> wire.Command:
        return wire.Command(leader_epoch=1, id=next(self._commands))

    def configure(self, stub: Any, **fields: Any) -> None:
        stub.Configure(wire.ConfigureRequest(command=self.command(), **fields))

    def products(self, stub: Any, epoch: int) -> list[float]:
        """A program's scalars; it also writes."""
        program = [lincomb("v", (0.3, "w")), dots(("v", "w"), ("w", "w"), ("v", "v"))]
        request = wire.OperateRequest(
            command=self.command(),
            target=wire.Target(job=JOB, shard_epoch=epoch),
            program=program_to_wire(program),
        )
        while True:  # each shard compiles the loops at its first program; a process that takes too long is killed
            try:
                return list(stub.Operate(request).scalars)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.ABORTED:
                    raise


def client(address: str, epoch: int, replica: int) -> ShardedParameterClient:
    run = (0, len(SPANS))
    placement = Placement(1, SPANS, (ShardPlacement(0, address, epoch, (run,)),))
    # A push is repeated until the follower, which compiles a loop at its first one, has it.
    return ShardedParameterClient(
        JOB, placement, rule=("adam", {}), pusher=Pusher(replica, replica), deadline_s=60.0, refresh=lambda: placement
    )


def read(address: str, epoch: int) -> np.ndarray:
    out = np.full(SPANS[-1].stop, np.nan, np.float32)
    with closing(client(address, epoch, 9)) as reader:
        reader.pull(out, np.full(len(SPANS), -1, np.int64))
    return out


def trained(leader: Program, follower: Program) -> tuple[np.ndarray, list[float], np.ndarray, list[float]]:
    """Parameters and products of a leader after ten pushes; then it dies, and the same of its follower."""
    coordinator = Coordinator()
    addresses = [leader.ask(), follower.ask()]
    channels = [open_channel(address) for address in addresses]
    first, second = (stubs.ParametersStub(channel) for channel in channels)
    assignment = wire.Assignment(segments=spans_to_wire(SPANS), rule=ADAM)
    coordinator.configure(first, job=JOB, shard_epoch=5, assignment=assignment)
    pusher, held = client(addresses[0], 5, 1), np.full(len(SPANS), -1, np.int64)
    try:
        pusher.push(numbers("start", SPANS[-1].stop), held, Push(Pusher(1, 1), 1, assign=True))
        coordinator.configure(first, ready=True)
        coordinator.configure(second, job=JOB, shard_epoch=6, assignment=wire.Assignment(rule=ADAM))
        coordinator.configure(first, link=wire.FollowerLink(epoch=1, address=addresses[1], shard_epoch=6))
        assert leader.ask("wait") == "followed"
        for number in range(2, 12):
            push = Push(Pusher(1, 1), number, np.float32(0.01))
            pusher.push(numbers(f"gradient {number}", SPANS[-1].stop), held, push)
        before = read(addresses[0], 5), coordinator.products(first, 5)
        leader.kill()
        holdings = wire.Holdings(runs=[segments.SegmentRun(first=0, count=len(SPANS))])
        coordinator.configure(second, job=JOB, shard_epoch=7, promoted=True, holdings=holdings, ready=True)
        return *before, read(addresses[1], 7), coordinator.products(second, 7)
    finally:
        pusher.close()
        for channel in channels:
            channel.close()


def test_follower_on_another_processor_has_the_same_bits() -> None:
    with running("shard", LEAST, MOST) as (leader, follower):
        numbers_before, products_before, numbers_after, products_after = trained(leader, follower)
    assert np.isfinite(numbers_before).all()
    np.testing.assert_array_equal(numbers_before.view(np.uint32), numbers_after.view(np.uint32))
    assert products_before == products_after


def test_group_on_two_processors_has_the_same_bits() -> None:
    with running("replica", LEAST, arguments=["0"]) as (one,), running("replica", MOST, arguments=["1"]) as (other,):
        addresses = f"{one.ask()} {other.ask()}\n"
        for worker in (one, other):
            assert worker.process.stdin is not None
            worker.process.stdin.write(addresses)
            worker.process.stdin.flush()
        (first, moved), (second, _) = one.ask().split(), other.ask().split()
    assert first == second
    assert float(moved) > 0.01


CACHED = """
import numpy as np
from dbelief.arrays.vector_kernels import compiled
loop = compiled("dot")
assert loop(np.arange(100.0), np.ones(100)) == 4950.0
print(sum(loop.stats.cache_hits.values()))
"""


def test_one_cache_serves_processors_apart(tmp_path: Path) -> None:
    """Code that is kept for one processor is never loaded by a process on another."""

    def hits(name: str) -> int:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_CPU_")}
        environment |= {**settings(name), "NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", CACHED]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=90, check=True)
        return int(done.stdout)

    assert [hits(name) for name in (LEAST, MOST, LEAST, MOST)] == [0, 0, 1, 1]
