"""Sums of all layers packed into one message, and layer by layer: You et al. 2017, section 5.2.

    [DBELIEF_HOSTNET=path/of/hostnet] python -m benchmarks.allreduce.packed_layers [--rate 200] [--rounds 5]

The tensors of LeNet (8, 1.7 MB) and of GoogLeNet (116, 28 MB; Szegedy et al. 2014, Table 1) are summed by 4 ranks, each
a process: as one vector, and tensor by tensor, up and down a binomial tree, through a server, and around a ring; on one
host, or on hosts of their own with links of --rate. Formula: L tensors cost L - 1 times the latencies of one more
(dbelief/plan/allreduce_cost.py with n = 0), for the alpha of a ping-pong in the same round.

Exit code 1 where tree or server give other bits packed than layer by layer, or packed is not the faster one though the
formula says so by more than 5 %.
Where this machine has other work too, begin with `chrt -f 20`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, ping, report, socket_ranks, timing
from dbelief.core.reduction_tree import binomial, server
from dbelief.plan.allreduce_cost import Link, ring_seconds, tree_seconds
from dbelief.worker.comm import Communicator
from dbelief.worker.comm.collectives import Allreduce, RingAllreduce, TreeAllreduce

RANKS = 4
LIMIT_S = 600.0
SEEN = 0.05
"""Of a sum's time: a smaller difference is less than that between rounds."""
LENET = [500, 20, 25_000, 50, 400_000, 500, 5_000, 10]
INCEPTIONS = [  # inputs; 1x1; 3x3 after reduction; 5x5 after reduction; 1x1 after the pool
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
]


def googlenet() -> list[int]:
    """Size of each of its tensors, weights and biases alternating."""
    kernels = [(3 * 49, 64), (64, 64), (64 * 9, 192)]
    for inputs, one, before3, three, before5, five, pooled in INCEPTIONS:
        kernels += [(inputs, one), (inputs, before3), (9 * before3, three), (inputs, before5), (25 * before5, five)]
        kernels.append((inputs, pooled))
    kernels.append((1024, 1000))
    return [size for inputs, outputs in kernels for size in (inputs * outputs, outputs)]


NETWORKS = {"LeNet": LENET, "GoogLeNet": googlenet()}
WAYS = ("binomial", "server", "ring")


def make(way: str, comm: Communicator, size: int) -> Allreduce:
    if way == "ring":
        return RingAllreduce(comm, size, np.float32, "sum")
    return TreeAllreduce(comm, size, np.float32, "sum", {"binomial": binomial, "server": server}[way](comm.size))


def latencies_s(way: str, tensors: int, alpha_s: float) -> float:
    """Seconds that so many tensors take more than one vector."""
    link = Link(alpha_s, 0.0)
    each_s = ring_seconds(RANKS, 0, link)
    if way != "ring":
        each_s = tree_seconds({"binomial": binomial, "server": server}[way](RANKS), 0, link)
    return float((tensors - 1) * each_s)


def measure(comm: Communicator, name: str, way: str) -> dict[str, Any]:
    """Both forms, one after the other; the slowest rank's seconds."""
    sizes = NETWORKS[name]
    spans = [slice(a, b) for a, b in pairwise([0, *accumulate(sizes)])]
    packed, layers = make(way, comm, sum(sizes)), [make(way, comm, size) for size in sizes]
    start = np.random.default_rng(comm.rank).standard_normal(sum(sizes)).astype(np.float32)
    one, many = start.copy(), start.copy()

    def summed_packed() -> None:
        packed(one)

    def summed_layers() -> None:
        for layer, span in zip(layers, spans, strict=True):
            layer(many[span])

    taken = np.zeros((2, comm.size))
    for number, summed in enumerate((summed_packed, summed_layers)):
        for _ in range(2):
            comm.barrier()
        taken[number, comm.rank] = timing.seconds(summed)
    comm.allreduce(taken)
    packed_s, layered_s = taken.max(axis=1).tolist()
    same = comm.total(float(one.tobytes() == many.tobytes())) == comm.size
    return {"network": name, "way": way, "packed_s": packed_s, "layered_s": layered_s, "same_bits": same}


def rank_main(chosen: argparse.Namespace) -> None:
    with socket_ranks.groups(chosen.rank, chosen.addresses, [RANKS], LIMIT_S) as made:
        comm = made[RANKS]
        for _, name, way in product(range(chosen.rounds), NETWORKS, WAYS):
            comm.barrier()
            alpha_s, _ = ping.alpha_beta(comm) if comm.rank < 2 else (0.0, 0.0)
            comm.barrier()
            row = measure(comm, name, way)
            if comm.rank == 0:
                print(json.dumps({**row, "alpha_s": alpha_s}), flush=True)
        comm.barrier()


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--rate", type=float, default=0, help="of links between hosts, in Mbit/s; 0: all on one")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = socket_ranks.parse(parser, rank_main)
    rows = socket_ranks.run_joined(__file__, RANKS, LIMIT_S, chosen.rate)
    alpha_s = statistics.median(row["alpha_s"] for row in rows)
    over = f"{chosen.rate:g} Mbit/s" if chosen.rate else "one host"
    columns = ("network", "way", "packed ms", "layer by layer ms", "more ms", "by formula", "same bits")
    shown = Table(*columns, title=f"{RANKS} ranks, {over}, alpha {1e3 * alpha_s:.2f} ms")
    results, fine = [], True
    for (name, way), rounds in timing.grouped(rows, "network", "way").items():
        packed_s, layered_s = timing.medians(rounds, "packed_s", "layered_s").values()
        same, formula_s = all(row["same_bits"] for row in rounds), latencies_s(way, len(NETWORKS[name]), alpha_s)
        times = (packed_s, layered_s, layered_s - packed_s, formula_s)
        shown.add_row(name, way, *(f"{1e3 * one:.1f}" for one in times), str(same))
        results.append({"network": name, "way": way, "seconds": times, "same_bits": same})
        fine &= same or way == "ring"
        fine &= layered_s > packed_s or formula_s < SEEN * packed_s
    report.show(shown, {"over": over, "alpha_s": alpha_s, "results": results}, width=120)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
