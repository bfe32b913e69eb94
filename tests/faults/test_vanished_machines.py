"""Workers with a cut link leave nothing at a shard, and one that is paused for a minute resumes."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from .machines import Machine, machines, trouble

pytestmark = [pytest.mark.processes, pytest.mark.long]

SHARD = """
import os, sys
from dbelief.rpc.grpc_settings import prepare_process
prepare_process()
import numpy as np
from dbelief.core.layout import SegmentSpan
from dbelief.telemetry.metrics import Metrics
from dbelief.core.push import Push, Pusher
from dbelief.rpc.pb import parameters_pb2 as wire, segments_pb2 as segments
from dbelief.rpc.wire.convert import spans_to_wire
from dbelief.rpc.server.server import Server
from dbelief.security.identity import allow_insecure
from ps_server.rpc.servicer import ShardService
allow_insecure()
direct = sys.argv[2] == "direct"
service = ShardService(Metrics("ps"), direct_host=sys.argv[1].partition(":")[0] if direct else None)
assignment = wire.Assignment(segments=spans_to_wire([SegmentSpan(0, 0, 1024)]), rule=segments.Rule(name="sgd"))
def configure(number, **fields):
    command = wire.Command(leader_epoch=1, id=number)
    service.controller.configure(wire.ConfigureRequest(command=command, **fields))
configure(1, job="j", shard_epoch=1, assignment=assignment)
service.controller.shard.push(Push(Pusher(0, 1), 1, vector="w", assign=True), 0, np.zeros(1024, np.float32))
configure(2, ready=True)
server = Server(sys.argv[1], service.register)
def is_socket(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    except OSError:
        return False
print("ready", flush=True)
for _ in sys.stdin:
    sockets = sum(map(is_socket, os.listdir("/proc/self/fd")))
    streams = service._socket_streams if direct else service._streams
    print(server._handlers._threads, streams._open, sockets, flush=True)
"""
WORKER = """
import sys
from dbelief.rpc.grpc_settings import prepare_process
prepare_process()
import numpy as np
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement, Placement
from dbelief.core.push import Push, Pusher
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.security.identity import allow_insecure
allow_insecure()
number = int(sys.argv[2])
pusher = Pusher(number, number + 10)
placement = Placement(1, (SegmentSpan(0, 0, 1024),), (ShardPlacement(0, sys.argv[1], 1, ((0, 1),)),))
direct = sys.argv[3] == "direct"
client = ShardedParameterClient("j", placement, ("sgd", {}), pusher, shares_memory=False, direct=direct)
out, versions = client.array(1024), np.full(1, -1, np.int64)
step = 0
for _ in sys.stdin:
    step += 1
    client.pull(out, versions)
    client.push(out, versions, Push(pusher, step, np.float32(0.1)))
    print("done", step, flush=True)
"""
PATIENCE_S = 120.0


class Program:
    """One that answers each line with a line."""

    def __init__(self, machine: Machine, source: str, *words: str) -> None:
        command = [*machine.inside, sys.executable, "-c", source, *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "waited for an answer"
        return self.process.stdout.readline().strip()

    def ask(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        return self.line()

    @contextmanager
    def running(self) -> Iterator[Program]:
        with self.process:
            try:
                yield self
            finally:
                self.process.kill()


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(trouble()), reason=trouble())
@pytest.mark.parametrize("way", ["grpc", "direct"])
def test_cut_worker_is_cleaned_up_and_paused_worker_resumes(way: str) -> None:
    with machines(3) as (home, lost, slow), ExitStack() as stack:

        def begin(machine: Machine, source: str, *words: str) -> Program:
            return stack.enter_context(Program(machine, source, *words).running())

        address = f"{home.address}:7071"
        shard = begin(home, SHARD, address, way)
        assert shard.line() == "ready"
        before = shard.ask()
        threads, streams, sockets = (int(count) for count in before.split())
        vanishing = [begin(lost, WORKER, address, str(number), way) for number in range(1, 6)]
        paused = begin(slow, WORKER, address, "6", way)
        assert [worker.ask() for worker in (*vanishing, paused)] == ["done 1"] * 6
        with_them = [int(count) for count in shard.ask().split()]
        if way == "grpc":
            assert with_them[0] >= threads + 12
        assert with_them[1:] == [streams + 12, sockets + (6 if way == "grpc" else 18)]
        lost.cut()
        paused.process.send_signal(signal.SIGSTOP)
        time.sleep(60.0)
        kept = 0 if way == "grpc" else 2  # a paused process keeps its direct streams: its kernel answers
        assert [int(count) for count in shard.ask().split()][1:] == [streams + kept, sockets + kept]
        paused.process.send_signal(signal.SIGCONT)
        assert [paused.ask(), paused.ask()] == ["done 2", "done 3"]
