"""Lost updates and throughput of Hogwild: concurrent pushes that write a segment without a lock.

    python -m benchmarks.shards.lock_free [--numbers 431080] [--pushers 4] [--pushes 200] [--rounds 9]

Every push adds 1.0 to each of the numbers; sums of so few are exact in float32. When all pushers are done, the share of
updates that are lost is 1 - (sum of what the shard holds) / (sum of what was pushed). A shard with a lock for each
segment and one without take turns in each round, first one, then the other first. In process: threads call one shard's
`push`, segment by segment. Over gRPC: threads with a client each push to one `dbelief ps`. Medians over the rounds; of
what is lost also the least and the most. Ends with 1 where a locked shard has lost anything.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, timing
from dbelief.core.layout import make_segments, nominal_length
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from dbelief.ps_server.store.shard import Shard
from dbelief.rpc.grpc_settings import prepare_process
from dbelief.rpc.in_process import InProcessParameters
from dbelief.tools.bench.shards import Shards

GRADIENT, RATE = np.float32(-1), np.float32(1)
"""Which add 1: w <- w - rate * gradient."""

Found = tuple[float, float]
"""Pushes per second, and the share of updates lost."""


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--numbers", type=int, default=431_080, help="parameters of the shard; LeNet's by default")
    parser.add_argument("--pushers", type=int, default=4)
    parser.add_argument("--pushes", type=int, default=200, help="of each pusher in a round")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    ways: dict[str, Callable[[bool, int, int, int], Found]] = {"in process": in_process, "over gRPC": over_grpc}
    results = {name: measured(way, asked) for name, way in ways.items()}
    report.show(table(results), {**vars(asked), **results})
    raise SystemExit(any(result["locked"]["lost_most"] for result in results.values()))


def measured(way: Callable[[bool, int, int, int], Found], asked: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Figures of shards with and without locks, by name; one round more comes first and is not counted."""
    found: dict[bool, list[Found]] = {False: [], True: []}
    for number, lock_free in timing.interleaved((True, False), asked.rounds + 1):
        one = way(lock_free, asked.numbers, asked.pushers, asked.pushes)
        found[lock_free] += [one] * (number > 0)
    ratios = [free / locked for (locked, _), (free, _) in zip(found[False], found[True], strict=True)]
    return {
        **{name: figures(found[lock_free]) for name, lock_free in (("locked", False), ("lock-free", True))},
        "throughput": {"x": statistics.median(ratios), "x_least": min(ratios), "x_most": max(ratios)},
    }


def figures(found: list[Found]) -> dict[str, float]:
    speeds, lost = zip(*found, strict=True)
    return {
        "pushes_per_s": statistics.median(speeds),
        "lost": statistics.median(lost),
        "lost_least": min(lost),
        "lost_most": max(lost),
    }


def in_process(lock_free: bool, numbers: int, pushers: int, pushes: int) -> Found:
    spans = tuple(make_segments([(0, numbers)], nominal_length(numbers, 1)))
    shard = Shard(spans, make_rule("sgd", {}), lock_free=lock_free)
    placement = Placement(1, spans, (ShardPlacement(0, "", 0, ((0, len(spans)),)),))
    shards = InProcessParameters([shard], placement)
    first = Push(Pusher(0, 1), 1, assign=True)
    shards.push(np.zeros(numbers, np.float32), np.zeros(len(spans), np.int64), first)
    shard.make_ready()
    return pushed([shards] * pushers, numbers, pushes)


def over_grpc(lock_free: bool, numbers: int, pushers: int, pushes: int) -> Found:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shards = stack.enter_context(Shards(folder, numbers, rule="sgd", lock_free=lock_free))
        return pushed(
            [stack.enter_context(closing(shards.client(Pusher(n + 1, n + 11)))) for n in range(pushers)],
            numbers,
            pushes,
        )


def pushed(clients: Sequence[Any], numbers: int, pushes: int) -> Found:
    """Let each client push so often, all at once; the figures."""
    gradient = np.full(numbers, GRADIENT)
    begin = threading.Barrier(len(clients) + 1)

    def push(number: int) -> None:
        versions = np.zeros(len(clients[number].placement.spans), np.int64)
        begin.wait()
        for sequence in range(1, pushes + 1):
            clients[number].push(gradient, versions, Push(Pusher(number + 1, number + 11), sequence, RATE))

    with ThreadPoolExecutor(len(clients)) as threads:
        pushing = threads.map(push, range(len(clients)))
        begin.wait()
        seconds = timing.seconds(lambda: list(pushing))
    held = np.empty(numbers, np.float32)
    clients[0].pull(held, np.full(len(clients[0].placement.spans), -1, np.int64))
    total = len(clients) * pushes
    return total / seconds, 1 - float(held.sum(dtype=np.float64)) / (total * numbers)


def table(results: dict[str, dict[str, dict[str, float]]]) -> Table:
    made = Table("", "pushes/s", "lost of a million", "least to most", "throughput, times the locked")
    for name, result in results.items():
        for kind in ("locked", "lock-free"):
            one, ratio = result[kind], result["throughput"]
            spread = f"{one['lost_least'] * 1e6:.2f} to {one['lost_most'] * 1e6:.2f}"
            times = f"{ratio['x']:.2f} ({ratio['x_least']:.2f} to {ratio['x_most']:.2f})" if kind == "lock-free" else ""
            made.add_row(f"{name}, {kind}", f"{one['pushes_per_s']:,.0f}", f"{one['lost'] * 1e6:.2f}", spread, times)
    return made


if __name__ == "__main__":
    prepare_process()
    main()
