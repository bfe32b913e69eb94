"""Speed-up by model parallelism: DistBelief's Fig. 3, with real messages over links of limited rate.

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.model_parallel.speedup [--rates 25,50,100] [--rounds 3]

One replica of two networks, cut over 1, 2, 4 and 8 ranks: the fully connected one for speech, of 42 M parameters, and
the locally connected one for images, of 2.1 G. Each rank is a process on a host of its own (harness/hosts.py), and
they exchange what `PartitionedNetwork` exchanges, over MPI. Two cores cannot compute for eight machines, so layers wait
instead: as long as a machine of FLOP_PER_S would take for the rank's part of their products (waiting_layers.py).

A mini-batch is timed without and with computing while messages travel. Beside the first stands the model: for each
layer the longest wait of any rank, and for each exchange alpha for every message and beta for every byte of the rank
that has most to do. Messages and bytes are the formula's (dbelief/partition/traffic.py); what is sent is counted, and
must be equal. alpha and beta are those of a message to and fro between two hosts in the same round: half the time for 1
byte, and what 4 MiB take more. Every round makes all hosts and processes anew; medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from itertools import product
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import checkout, hosts, options, ping, report, timing
from benchmarks.model_parallel.waiting_layers import NoLoss, product_flop, waiting
from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, Dense, Local, Network
from dbelief.nn.layers.layer import Layer, Shape, Sigmoid
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.layers.pooling import L2Pool
from dbelief.partition import Grid
from dbelief.partition.cut import Part, cut
from dbelief.partition.traffic import NetworkArrays, Passage, network_step
from dbelief.process.clock import SystemClock
from dbelief.worker.comm import Communicator
from dbelief.worker.comm.mpi import MpiEngine
from dbelief.worker.comm.tracing import TracingEngine
from dbelief.worker.partition.network import PartitionedNetwork

SLOWER = 10.0
"""Machines and links are so much slower than those of 2012 meant here, that two cores can carry eight links."""
FLOP_PER_S = 80e9 / SLOWER
"""Of a machine: 20 cores (DistBelief, section 5) of 8 float32 flop a cycle at 2.5 GHz, a fifth of it reached by
products as thin as a mini-batch."""
CASES = ("speech:100", "image:10")
FULL_GRIDS = {
    ranks: Grid(*sides) for ranks, sides in ((4, (2, 2)), (8, (2, 4)), (12, (3, 4)), (16, (4, 4)), (64, (8, 8)))
}
GRIDS = {1: Grid(1, 1), 2: Grid(1, 2), 4: Grid(2, 2), 8: Grid(2, 4)}
LASTS_S = 0.5
"""How much waiting a measurement holds: so many steps, 1 to 20."""
LIMIT_S = 600.0


HIDDEN: list[Layer] = [Dense(2560), Sigmoid()]
STAGE: list[Layer] = [Local(window=10, block=1, maps=36), L2Pool(5), Lcn(5)]
NETWORKS: dict[str, tuple[int | Shape, list[Layer]]] = {
    "speech": (440, [*4 * HIDDEN, Dense(8192)]),
    "image": ((100, 100, 3), [*3 * STAGE, Dense(21_000)]),
}
"""The paper's (section 5): for images, three stages in which 36 neurons see each window of 10 x 10 pixels."""


# -- one rank, a process on a host of its own ---------------------------------------------------------------------


def built(name: str) -> Network:
    features, layers = NETWORKS[name]
    slow = [waiting(layer, FLOP_PER_S, SystemClock()) for layer in layers]
    return Network(slow, NoLoss(), features, None, select_backend("cpu"))


def waits_s(parts: list[Part], samples: int, ranks: int) -> float:
    """The wait of a step: layer after layer, for the rank with the most to do."""
    seconds, trained = 0.0, False
    for part in parts:
        products = 3 if trained else 2  # the gradient of the first layer's inputs is not needed
        trained |= bool(part.tensors)
        outputs = max(samples * math.prod(part.shape(rank)) for rank in range(ranks))
        seconds += products * product_flop(outputs, [shape for _, shape in part.tensors]) / FLOP_PER_S
    return seconds


def exchanges(parts: list[Part], samples: int) -> list[Passage]:
    return network_step(parts, NetworkArrays.of(parts, samples))


def totals(step: list[Passage]) -> tuple[np.ndarray, np.ndarray]:
    """Messages and bytes of a step, (ranks, ranks)."""
    return np.sum([passage.messages for passage in step], 0), np.sum([passage.sent_bytes for passage in step], 0)


def steps(engine: MpiEngine, name: str, samples: int, overlaps: bool) -> tuple[float, float]:
    """Steps of a network on all ranks of the engine: give the seconds of one, and the bytes that the link carried.

    Raises
    ------
    AssertionError
        What the rank sent, or what its link carried, is not what the formula says.
    """
    network, grid, all_ranks, tracing = built(name), GRIDS[engine.size], Communicator(engine), TracingEngine(engine)
    parted = PartitionedNetwork(network, Communicator(tracing), grid, overlaps)
    parts = cut(network.stages, grid)
    flat = np.zeros(parted.layout.size, np.float32)  # of which no page is ever touched
    views = parted.layout.views(flat, engine.rank)
    batch = Batch(np.zeros((samples, math.prod(network.features)), np.float32), np.zeros(samples, np.int64))
    count = min(math.ceil(LASTS_S / waits_s(parts, samples, engine.size)), 20)
    all_ranks.barrier()
    began_s, before = time.perf_counter(), ping.carried()
    for _ in range(count):
        parted.loss_and_gradient(views, batch, views)
    all_ranks.barrier()
    step_s, link = (time.perf_counter() - began_s) / count, (ping.carried() - before) / count

    messages, sent = (int(pairs[engine.rank].sum()) for pairs in totals(exchanges(parts, samples)))
    counted = sum(tracing.messages.values()) / count, sum(tracing.sent_bytes.values()) / count
    if counted != (messages, sent) or link < sent:
        raise AssertionError(f"rank {engine.rank} sent {counted}, its link {link:,.0f}, not {messages, sent}")
    return step_s, link / sent if sent else 1.0


def measure(engine: MpiEngine, name: str, samples: int, alpha_s: float, beta_s: float) -> dict[str, Any]:
    """Time of a step, with exchanges after computing and beside it, and the model's of the first."""
    parts = cut(built(name).stages, GRIDS[engine.size])
    step = exchanges(parts, samples)
    messages, sent = (int(pairs.sum()) for pairs in totals(step))
    waited_s = waits_s(parts, samples, engine.size)
    step_s, link = steps(engine, name, samples, overlaps=False)
    overlapping_s, _ = steps(engine, name, samples, overlaps=True) if engine.size > 1 else (step_s, link)
    return {
        "network": name,
        "samples": samples,
        "ranks": engine.size,
        "messages": messages,
        "bytes": sent,
        "link_bytes_over_bytes": link,
        "waits_s": waited_s,
        "alpha_s": alpha_s,
        "beta_s": beta_s,
        "model_s": waited_s + sum(passage.seconds(alpha_s, beta_s) for passage in step),
        "seconds": step_s,
        "overlapping_s": overlapping_s,
    }


def rank_main(chosen: argparse.Namespace) -> None:
    """Measure all cases, one after the other; rank 0 prints them, a line each."""
    from mpi4py import MPI

    everyone = Communicator(MpiEngine(), LIMIT_S)
    engines = {}
    for size in chosen.ranks:
        group = MPI.COMM_WORLD.Split(0 if everyone.rank < size else MPI.UNDEFINED, everyone.rank)
        if everyone.rank < size:
            engines[size] = MpiEngine(group)
    with everyone:
        everyone.allreduce(np.zeros(everyone.size))  # connections are made
        pair = next(engine for engine in engines.values() if engine.size > 1)
        alpha_s, beta_s = ping.alpha_beta(Communicator(pair)) if everyone.rank < 2 else (0.0, 0.0)
        for case, size in product(chosen.cases, chosen.ranks):
            everyone.barrier()
            if everyone.rank < size:
                name, samples = case.split(":")
                row = measure(engines[size], name, int(samples), alpha_s, beta_s)
                if everyone.rank == 0:
                    print(json.dumps(row), flush=True)
        everyone.barrier()


# -- all of them, on their hosts ------------------------------------------------------------------------------------


def one_round(chosen: argparse.Namespace, rate_mbit: float) -> list[dict[str, Any]]:
    """Make the hosts, run all cases on them, and take the hosts away."""
    selected = ["--cases", ",".join(chosen.cases), "--ranks", ",".join(map(str, chosen.ranks))]
    rank = [*checkout.command(__file__), "--rank", *selected]
    printed = hosts.run_on_hosts(chosen.hostnet, max(chosen.ranks), rate_mbit, rank, LIMIT_S)
    rows = [json.loads(line) for line in printed.splitlines()]
    alone = {(row["network"], row["samples"]): row for row in rows if row["ranks"] == 1}
    for row in rows:
        base = alone[row["network"], row["samples"]]
        row |= {
            "rate_mbit": rate_mbit,
            "measured_over_model": row["seconds"] / row["model_s"],
            "speed_up": base["seconds"] / row["seconds"],
            "overlapping_speed_up": base["seconds"] / row["overlapping_s"],
            "model_speed_up": base["model_s"] / row["model_s"],
        }
    return rows


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each case, of the rounds' medians."""
    found = []
    for same in timing.grouped(rows, "network", "samples", "rate_mbit", "ranks").values():
        median = timing.medians(same, *(key for key, value in same[0].items() if isinstance(value, float)))
        found.append({**same[0], **median, "all_seconds": [row["seconds"] for row in same]})
    return sorted(found, key=lambda row: (row["network"], -row["rate_mbit"], -row["samples"], row["ranks"]))


def by_ranks(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each network and rate: speed-ups in the order of the numbers of ranks."""
    found = []
    for same in timing.grouped(results, "network", "rate_mbit").values():
        keys = ("ranks", "seconds", "speed_up", "model_speed_up", "overlapping_speed_up", "measured_over_model")
        found.append(
            {"network": same[0]["network"], "rate_mbit": same[0]["rate_mbit"]}
            | {key: [row[key] for row in same] for key in keys}
        )
    return found


def full_speed(cases: list[str], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The model's speed-ups for machines and links SLOWER times as fast, and messages that cost what they cost here."""
    alpha_s = statistics.median(row["alpha_s"] for row in results)
    beta_s = min(row["beta_s"] for row in results) / SLOWER
    found: list[dict[str, Any]] = []
    for case in cases:
        name, samples = case.split(":")
        found.append({"network": name})
        alone_s = waits_s(cut(built(name).stages, GRIDS[1]), int(samples), 1) / SLOWER
        for ranks, grid in FULL_GRIDS.items():
            parts = cut(built(name).stages, grid)
            talk_s = sum(passage.seconds(alpha_s, beta_s) for passage in exchanges(parts, int(samples)))
            step_s = waits_s(parts, int(samples), ranks) / SLOWER + talk_s
            found[-1][f"ranks_{ranks}"] = round(alone_s / step_s, 2)
    return found


def table(results: list[dict[str, Any]]) -> Table:
    columns = ("network", "Mbit/s", "samples", "ranks", "messages", "MB", "ms", "model ms", "ratio")
    compared = ("speed-up", "model's", "overlapping ms", "speed-up")
    made = Table(*columns, *compared, title="A mini-batch, medians of the rounds")
    for row in results:
        made.add_row(
            *(str(row[key]) for key in ("network", "rate_mbit", "samples", "ranks", "messages")),
            f"{row['bytes'] / 1e6:.2f}",
            *(f"{1e3 * row[key]:.0f}" for key in ("seconds", "model_s")),
            *(f"{row[key]:.2f}" for key in ("measured_over_model", "speed_up", "model_speed_up")),
            f"{1e3 * row['overlapping_s']:.0f}",
            f"{row['overlapping_speed_up']:.2f}",
        )
    return made


def main() -> None:
    parser = options.new_parser(__doc__)
    hosts.add_hostnet(parser)
    parser.add_argument("--cases", type=options.words, default=list(CASES), help="network:samples in a mini-batch")
    parser.add_argument("--ranks", type=options.ascending, default=list(GRIDS))
    parser.add_argument("--rates", type=options.ascending, default=[25, 50, 100], help="of the links, in Mbit/s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # this process is one of them
    chosen = parser.parse_args()
    if chosen.rank:
        rank_main(chosen)
        return
    if len(chosen.ranks) < 2 or chosen.ranks[0] != 1:
        parser.error("--ranks: 1, which all others are compared with, and at least one more")
    if hosts.left_out(__file__, chosen.hostnet):
        return
    rows = []
    for _ in range(chosen.rounds):
        for rate_mbit in chosen.rates:
            rows += (new := one_round(chosen, rate_mbit))
            print(*map(json.dumps, new), sep="\n", file=sys.stderr, flush=True)
    results = compared(rows)
    at_full_speed = full_speed(chosen.cases, results)
    print(f"the model's speed-ups at full speed, by ranks: {at_full_speed}", file=sys.stderr)
    lists = {"at_full_speed": at_full_speed, "by_ranks": by_ranks(results), "results": results}
    report.show(table(results), {"flop_per_s": FLOP_PER_S, **lists}, width=160)


if __name__ == "__main__":
    main()
