"""Memory of a shard under load, and its growth.

    python -m benchmarks.shards.memory [--minutes 10] [--mebibytes 64] [--workers 4] [--allocator-minutes 2]

One shard serves in a process of its own, as `dbelief ps` does, with a vector and Adagrad's state beside it. Worker
processes pull and push all of it without a pause, each on two streams at a time, and a snapshot is written every 30 s.
The shard's resident memory (/proc/PID/status) is read each second.

    bound = 2 vectors + empty + 64 MiB + 2 MiB for each open stream

Twice the vectors, for all of them change while a snapshot is written, which shows them as they were (copy on write).
`empty` is the same process before it is given a segment, its rule compiled. A second, shorter run leaves the
allocator as the C library has it, and shows what our settings cost. Replicas run freely here: with the dial at 0 a
shard also keeps each member's gradient until the round closes.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.harness.runs import status_kib
from dbelief.core.layout import make_segments, nominal_length
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push, Pusher

JOB = "memory"
RULE = "adagrad"
SNAPSHOT_EVERY_S = 30.0
STREAMS = 2  # of each worker: one pulls, one pushes
SPARE_MIB, STREAM_MIB = 64.0, 2.0
MIB = 1 << 20
DEADLINE_S = 60.0

spawn = multiprocessing.get_context("spawn")


# -- the processes: gRPC is imported in them, after the settings that it needs -----------------------------------


def serve(address: Connection, tuned: bool) -> None:
    """A shard, until the coordinator's command to stop."""
    from dbelief.rpc import grpc_settings

    if not tuned:
        grpc_settings.keep_blocks = lambda: None
    grpc_settings.prepare_process()
    grpc_settings.limit_threads(1)

    from dbelief.rpc.server.server import Server
    from dbelief.telemetry.metrics import Metrics

    service_module = importlib.import_module("dbelief.ps_server.rpc.servicer")

    service = service_module.ShardService(Metrics("ps"))
    server = Server("127.0.0.1:0", service.register)
    address.send(server.address)
    service.controller.stopped.wait()
    server.close()


def load(placement: Placement, number: int, stop: Event, done: Any) -> None:
    """A worker that pulls in one thread and pushes in another, and counts the rounds of both."""
    from dbelief.rpc import grpc_settings

    grpc_settings.prepare_process()
    grpc_settings.limit_threads(1)

    from dbelief.rpc.client.shard_client import ShardedParameterClient

    pusher = Pusher(number, number)
    gradient = np.full(placement.size, 1e-3, np.float32)
    versions = np.zeros(len(placement.spans), np.int64)

    def pull() -> None:
        client = ShardedParameterClient(JOB, placement, (RULE, {}), pusher)
        out = np.empty(placement.size, np.float32)
        while not stop.is_set():
            client.pull(out, np.full(len(placement.spans), -1, np.int64))
            done[0] += 1
        client.close()

    thread = threading.Thread(target=pull)
    thread.start()
    client = ShardedParameterClient(JOB, placement, (RULE, {}), pusher)
    sequence = 0
    while not stop.is_set():
        sequence += 1
        client.push(gradient, versions, Push(pusher, sequence, np.float32(0.01)))
        done[1] += 1
    thread.join()
    client.close()


# -- observation -----------------------------------------------------------------------------------------------------


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    return status_kib(pid, field) / 1024


@dataclass
class Shard:
    """The shard's process, and the coordinator's commands to it."""

    process: Any
    address: str
    stub: Any
    commands: int = 0

    def command(self) -> Any:
        from dbelief.rpc.pb import parameters_pb2 as wire

        self.commands += 1
        return wire.Command(leader_epoch=1, id=self.commands)

    def configure(self, **fields: Any) -> None:
        from dbelief.rpc.pb import parameters_pb2 as wire

        self.stub.Configure(wire.ConfigureRequest(command=self.command(), job=JOB, **fields), timeout=DEADLINE_S)

    def assign(self, spans: Any) -> None:
        from dbelief.rpc.pb import parameters_pb2 as wire
        from dbelief.rpc.pb import segments_pb2 as segments
        from dbelief.rpc.wire.convert import spans_to_wire

        self.configure(
            shard_epoch=1,
            assignment=wire.Assignment(segments=spans_to_wire(spans), rule=segments.Rule(name=RULE), snapshots="/"),
        )

    def snapshot(self, folder: Path, number: int) -> float:
        """Write a set, drop the one before the last; seconds it took."""
        from dbelief.rpc.pb import parameters_pb2 as wire

        request = wire.SnapshotRequest(command=self.command(), folder=str(folder / str(number)), set=str(number))
        reply = self.stub.Snapshot(request, timeout=DEADLINE_S)
        shutil.rmtree(folder / str(number - 2), ignore_errors=True)
        return float(reply.seconds)


@contextmanager
def shard_process(tuned: bool) -> Iterator[Shard]:
    from dbelief.rpc.channel import open_channel
    from dbelief.rpc.pb import parameters_pb2_grpc as stubs

    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there, tuned))
    process.start()
    try:
        if not here.poll(DEADLINE_S):
            raise SystemExit(f"the shard did not come up within {DEADLINE_S:g} s")
        address = here.recv()
        with open_channel(address) as channel:
            shard = Shard(process, address, stubs.ParametersStub(channel))
            yield shard
            shard.configure(stop=True)
        process.join(DEADLINE_S)
    finally:
        process.kill()
        process.join()


@contextmanager
def under_load(placement: Placement, workers: int) -> Iterator[list[Any]]:
    """Workers; the numbers of pulls and pushes of each."""
    stop = spawn.Event()
    counts = [spawn.Array("q", 2) for _ in range(workers)]
    processes = [spawn.Process(target=load, args=(placement, n + 1, stop, counts[n])) for n in range(workers)]
    for process in processes:
        process.start()
    try:
        yield counts
        stop.set()
        for process in processes:
            process.join(DEADLINE_S)
    finally:
        for process in processes:
            process.kill()
            process.join()


def measure(mebibytes: int, workers: int, seconds: float, tuned: bool, folder: Path) -> dict[str, Any]:
    from dbelief.rpc.client.shard_client import ShardedParameterClient

    size = mebibytes * MIB // 4
    spans = tuple(make_segments([(0, size)], nominal_length(size, 1)))
    samples: list[tuple[float, float]] = []
    with shard_process(tuned) as shard:
        pid = shard.process.pid
        started = resident_mib(pid)
        shard.assign([])
        empty = resident_mib(pid)
        shard.assign(spans)
        placement = Placement(1, spans, (ShardPlacement(0, shard.address, 1, ((0, len(spans)),)),))
        first = ShardedParameterClient(JOB, placement, pusher=Pusher(0, 100))
        versions = np.zeros(len(spans), np.int64)
        first.push(np.zeros(size, np.float32), versions, Push(Pusher(0, 100), 1, assign=True))
        first.close()
        shard.configure(ready=True)
        given = resident_mib(pid)
        took: list[float] = []
        with under_load(placement, workers) as counts:
            while not all(min(count) for count in counts):
                time.sleep(0.1)
            began = time.monotonic()
            before = [sum(count[way] for count in counts) for way in (0, 1)]
            while (at := time.monotonic() - began) < seconds:
                samples.append((at, resident_mib(pid)))
                if at >= SNAPSHOT_EVERY_S * (len(took) + 1):
                    took.append(shard.snapshot(folder, len(took)))
                time.sleep(1.0)
            after = [sum(count[way] for count in counts) for way in (0, 1)]
        peak = resident_mib(pid, "VmHWM")
        written = list(folder.rglob("*.writing"))
        assert not written, written
    streams = STREAMS * workers
    vectors = 2 * 4 * size / MIB
    settled_s = min(120.0, seconds / 2)
    late = [(at, mib) for at, mib in samples if at >= settled_s]
    slope = float(np.polyfit([at / 60 for at, _ in late], [mib for _, mib in late], 1)[0]) if len(late) > 2 else 0.0
    bound = empty + 2 * vectors + SPARE_MIB + STREAM_MIB * streams
    return {
        "tuned": tuned,
        "seconds": seconds,
        "workers": workers,
        "streams": streams,
        "started_mib": started,
        "empty_mib": empty,
        "vectors_mib": vectors,
        "given_mib": given,
        "peak_mib": peak,
        "bound_mib": bound,
        "within": peak <= bound,
        "over_vectors_and_empty_mib": peak - 2 * vectors - empty,
        "settled_s": settled_s,
        "settled_mib": late[0][1],
        "growth_mib": max(mib for _, mib in late) - late[0][1],
        "slope_mib_per_min": slope,
        "snapshots": len(took),
        "snapshot_s": statistics.median(took) if took else None,
        "pulled_mib_per_s": (after[0] - before[0]) * mebibytes / seconds,
        "pushed_mib_per_s": (after[1] - before[1]) * mebibytes / seconds,
        "samples": [[round(at, 1), round(mib, 1)] for at, mib in samples],
    }


ROWS = (
    ("just started", "started_mib"),
    ("empty, rule compiled", "empty_mib"),
    ("vectors", "vectors_mib"),
    ("all segments given", "given_mib"),
    ("peak", "peak_mib"),
    ("bound", "bound_mib"),
    ("peak less twice the vectors, and empty", "over_vectors_and_empty_mib"),
    ("growth once settled, most", "growth_mib"),
    ("growth once settled, a minute", "slope_mib_per_min"),
    ("pulled a second", "pulled_mib_per_s"),
    ("pushed a second", "pushed_mib_per_s"),
)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--mebibytes", type=int, default=64, help="the vector; Adagrad's state takes as much again")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument(
        "--allocator-minutes", type=float, default=2.0, help="of the run with the C library's allocator"
    )
    arguments = parser.parse_args()
    if not sys.platform.startswith("linux"):
        raise SystemExit("memory reads /proc, which is Linux's")
    runs = []
    for tuned, minutes in ((True, arguments.minutes), (False, arguments.allocator_minutes)):
        if minutes > 0:
            with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
                runs.append(measure(arguments.mebibytes, arguments.workers, 60 * minutes, tuned, Path(folder)))
    streams = runs[0]["streams"]
    table = Table("MiB", *("our allocator settings" if run["tuned"] else "the C library's" for run in runs))
    table.title = f"a shard under {arguments.workers} workers, {streams} streams"
    for label, name in ROWS:
        table.add_row(label, *(f"{run[name]:.1f}" for run in runs))
    table.add_row("minutes, snapshots", *(f"{run['seconds'] / 60:g}, {run['snapshots']}" for run in runs))
    report.show(table, {"cores": os.cpu_count(), "runs": runs})
    if not runs[0]["within"]:
        raise SystemExit(f"peak {runs[0]['peak_mib']:.0f} MiB is over the bound of {runs[0]['bound_mib']:.0f} MiB")


if __name__ == "__main__":
    main()
