"""A shard with many pushers: processor time and delay of a push at the same total rate from 16 and from 1,000.

    python -m benchmarks.shards.pushers [--pushers 16,1000] [--rate 100] [--seconds 20] [--rounds 5]

Every pusher has a connection and a kept stream of its own, as a worker over TCP, and has pushed before the clock
starts. All are in this process, which writes the messages of a worker and reads the replies in one thread. A push is
timed from when it is due to its acknowledgement. Processor time is the shard's. Groups are interleaved; figures are
medians over the rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, runs, timing
from dbelief.core.push import Push, Pusher
from dbelief.rpc.channel import CLIENT_AHEAD, OPTIONS
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.token_channel import BEARER, KEY
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.convert import push_to_wire
from dbelief.security.loopback import Loopback, loopback_address
from dbelief.tools.bench.shards import JOB, Shards

FIGURES = ("cpu_ms", "p50_ms", "p99_ms", "threads", "resident_mib")


class _Group:
    """So many pushers; those of all groups differ."""

    def __init__(self, shards: Shards, count: int, first: int) -> None:
        (place,) = shards.placement.places
        self._address = loopback_address(place.address) or place.address
        self._target = wire.Target(job=JOB, shard_epoch=place.shard_epoch)
        self._rule = segments.Rule(name=shards.rule[0])
        gradient = np.full(shards.placement.size, 1e-3, np.float32)
        parts = [bulk.part_of(span.index, 0, gradient[span.start :][: span.length]) for span in shards.spans]
        self._numbers = b"".join([piece for part in parts for piece in bulk.pieces(part)])
        self._count = len(shards.spans)
        self._pushers = [Pusher(first + n, first + n) for n in range(count)]
        self._sequence = [0] * count
        self._streams: list[Any] = []

    async def run(self, shards: Shards, rate: float, seconds: float) -> dict[str, Any]:
        """Figures of a round: all push in turn, at this total rate."""
        channels = [self._channel(number) for number in range(len(self._pushers))]
        token = Loopback(self._address).text()
        self._streams = [
            channel.stream_stream("/dbelief.v1.Parameters/Push")(metadata=((KEY, BEARER + token),))
            for channel in channels
        ]
        try:
            for number in range(len(self._pushers)):
                await self._push(number)
            (process,) = [child.process for child in shards.children]
            assert process is not None
            cpu_s = shards.cpu_s()
            delays = sorted(await self._pushes(rate, seconds))
            cpu_s = shards.cpu_s() - cpu_s
            return {
                "pushers": len(self._pushers),
                "pushes": len(delays),
                "cpu_ms": 1e3 * cpu_s / len(delays),
                "p50_ms": 1e3 * statistics.median(delays),
                "p99_ms": 1e3 * delays[int(0.99 * len(delays))],
                "threads": len(list(Path(f"/proc/{process.pid}/task").iterdir())),
                "resident_mib": runs.status_kib(process.pid, "VmRSS") / 1024,
            }
        finally:
            for channel in channels:
                await channel.close()

    def _channel(self, number: int) -> grpc.aio.Channel:
        """A channel with a connection of its own: gRPC joins those whose options are equal."""
        return grpc.aio.insecure_channel(self._address, [*OPTIONS, CLIENT_AHEAD, ("dbelief.pusher", number)])

    async def _pushes(self, rate: float, seconds: float) -> list[float]:
        began_s = time.perf_counter()

        async def push(turn: int) -> float:
            await self._push(turn % len(self._pushers))
            return time.perf_counter() - (began_s + turn / rate)

        tasks = []
        for turn in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began_s + turn / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(push(turn)))
        return [await task for task in tasks]

    async def _push(self, number: int) -> None:
        """One push; raises what the shard refuses it with."""
        self._sequence[number] += 1
        push = Push(self._pushers[number], self._sequence[number], np.float32(1e-6))
        opening = push_to_wire(push, self._target, self._rule, self._count)
        await self._streams[number].write(bulk.head(opening.SerializeToString()) + self._numbers)
        acknowledged = 0
        while acknowledged < self._count:
            reply = await self._streams[number].read()
            if reply is grpc.aio.EOF:
                raise SystemExit(f"pusher {number}: {await self._streams[number].details()}")
            acknowledgement, _ = bulk.decode(reply)
            assert acknowledgement is not None
            acknowledged = bulk.parse(wire.PushAcknowledgement, acknowledgement).acknowledged


async def _measure(size: int, counts: list[int], rate: float, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """A row for each round and group; in one event loop, which is all that gRPC allows."""
    rows = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dbelief-")))
        shards = stack.enter_context(Shards(folder, size))
        groups = {count: _Group(shards, count, 1 + 10_000 * number) for number, count in enumerate(counts)}
        for number, count in timing.interleaved(counts, rounds):
            row = {"round": number, **await groups[count].run(shards, rate, seconds)}
            report.progress(row)
            rows.append(row)
    return rows


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--pushers", type=options.numbers, default="16,1000")
    parser.add_argument("--rate", type=float, default=100.0, help="pushes a second of all together (100)")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=16_384)
    words = parser.parse_args()
    rows = asyncio.run(_measure(words.parameters, words.pushers, words.rate, words.seconds, words.rounds))
    table = Table("pushers", "processor time, ms", "delay, median", "99 %", "threads", "memory, MiB")
    found = []
    for (count,), some in timing.grouped(rows, "pushers").items():
        found.append({"pushers": count, **timing.medians(some, *FIGURES)})
        table.add_row(str(count), *(f"{found[-1][name]:.4g}" for name in FIGURES))
    report.show(table, {"medians": found, "rows": rows})


if __name__ == "__main__":
    prepare_process()
    main()
