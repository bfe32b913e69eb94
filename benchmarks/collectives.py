"""What a sum over all workers takes where the network is the limit: FireCaffe's Fig. 4, with real messages.

    DBELIEF_HOSTNET=path/of/hostnet python benchmarks/collectives.py [--ranks 2,4,8] [--rounds 3] [--picture FILE]

As many numbers as Network-in-Network has parameters (30.4 MB, FireCaffe, Table 1) are summed by 2 to 8 ranks, each a
process on a host of its own (mpi_hosts.py), over MPI: through a parameter server, up and down trees, around a ring, in
one message or in chunks; and, beside them, as `Comm.allreduce` and as MPI itself does it.

Each time stands beside its formula (dbelief/reduction/cost.py) for the alpha and beta of a message between two
hosts in the same round, on the same links. Every sum is checked on every rank, and a round makes hosts and processes
anew; the time of a sum is that of the slowest rank after a barrier. Medians of the rounds. Exit code 1 where a sum in
one message is not within 25 % of its formula, or one in chunks is slower than its own by more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi_hosts import carried, ping, run_on_hosts
from rich.console import Console
from rich.table import Table

from dbelief.reduction import Link, Shape, binomial, ring_seconds, server, tree_seconds, with_arity
from dbelief.report.style import BLUE, DARK, GREEN, ORANGE, QUIET, calm, new_figure
from dbelief.worker.comm import Comm
from dbelief.worker.comm.collectives import EngineAllreduce, RingAllreduce, TreeAllreduce
from dbelief.worker.comm.mpi import MpiEngine

NUMBERS = 7_590_000
CHUNK = 65_536
"""A quarter of a MB: 21 ms at 100 Mbit/s, beside which a latency below one hardly counts."""
WITHIN = 0.25
LIMIT_S = 900.0


@dataclass(frozen=True)
class Way:
    """One way of summing: how it is made for a number of float32, and the seconds of so many ranks by its formula."""

    make: Callable[[Comm, int], Callable[[np.ndarray], None]]
    seconds: Callable[[int, int, Link], float] | None = None
    whole: bool = True


def tree(shape: Callable[[int], Shape], chunk: int | None = None) -> Way:
    """A tree of this shape."""

    def make(comm: Comm, size: int) -> TreeAllreduce:
        return TreeAllreduce(comm, size, np.float32, "sum", shape(comm.size), chunk=chunk)

    def seconds(ranks: int, size: int, link: Link) -> float:
        return float(tree_seconds(shape(ranks), 4 * size, link, math.ceil(size / (chunk or size))))

    return Way(make, seconds, chunk is None)


def ring(chunk: int | None = None) -> Way:
    """The ring."""

    def make(comm: Comm, size: int) -> RingAllreduce:
        return RingAllreduce(comm, size, np.float32, "sum", chunk=chunk)

    def seconds(ranks: int, size: int, link: Link) -> float:
        return float(ring_seconds(ranks, 4 * size, link, math.ceil(math.ceil(size / ranks) / (chunk or size))))

    return Way(make, seconds, chunk is None)


WAYS = {
    "server": tree(server),
    "binomial": tree(binomial),
    "ring": ring(),
    "chunked server": tree(server, CHUNK),
    "chunked binomial": tree(binomial, CHUNK),
    "chunked binary": tree(lambda ranks: with_arity(ranks, 2), CHUNK),
    "chunked chain": tree(lambda ranks: with_arity(ranks, 1), CHUNK),
    "chunked ring": ring(CHUNK),
    "rank order": Way(lambda comm, size: comm.allreduce),
    "MPI's own": Way(lambda comm, size: EngineAllreduce(comm, size, np.float32, "sum")),
}


# -- one rank, a process on a host of its own ---------------------------------------------------------------------


def measure(group: Comm, name: str, size: int, link: Link) -> dict[str, Any]:
    """One sum on all ranks of the group: what it took, and what its formula says."""
    way = WAYS[name]
    summed, array = way.make(group, size), np.full(size, group.rank + 1, np.float32)
    way.make(group, 1000)(np.zeros(1000, np.float32))  # connections are made
    group.barrier()
    before, began_s = carried(), time.perf_counter()
    summed(array)
    seconds = np.zeros(group.size)
    seconds[group.rank] = time.perf_counter() - began_s
    sent = carried() - before
    group.allreduce(seconds)
    if not (array == group.size * (group.size + 1) // 2).all():
        raise AssertionError(f"rank {group.rank}: the sum by {name} is wrong")
    return {
        "way": name,
        "ranks": group.size,
        "numbers": size,
        "seconds": float(seconds.max()),
        "root_sent_bytes": sent,
        "formula_s": None if way.seconds is None else way.seconds(group.size, size, link),
    }


def rank_main(chosen: argparse.Namespace) -> None:
    """Measure all ways, one after the other; rank 0 prints them, a line each."""
    from mpi4py import MPI

    everyone = Comm(MpiEngine(), LIMIT_S)
    groups = {}
    for size in chosen.ranks:
        made = MPI.COMM_WORLD.Split(0 if everyone.rank < size else MPI.UNDEFINED, everyone.rank)
        if everyone.rank < size:
            groups[size] = Comm(MpiEngine(made), LIMIT_S)
    with everyone:
        for size in chosen.ranks:
            everyone.barrier()
            if size not in groups:
                continue
            alpha_s, beta_s = ping(groups[size]) if everyone.rank < 2 else (0.0, 0.0)
            for name in chosen.ways:
                groups[size].barrier()
                row = measure(groups[size], name, chosen.numbers, Link(alpha_s, beta_s))
                if everyone.rank == 0:
                    print(json.dumps({**row, "alpha_s": alpha_s, "beta_s": beta_s}), flush=True)
        everyone.barrier()


# -- all of them, on their hosts ------------------------------------------------------------------------------------


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each way and number of ranks, of the rounds' medians."""
    cases: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault((row["way"], row["ranks"]), []).append(row)
    found = []
    for same in cases.values():
        median = {key: statistics.median(row[key] for row in same) for key in ("seconds", "alpha_s", "beta_s")}
        row = {**same[0], **median, "all_seconds": [row["seconds"] for row in same]}
        if row["formula_s"] is not None:
            row["formula_s"] = statistics.median(row["formula_s"] for row in same)
            row["over_formula"] = statistics.median(row["seconds"] / row["formula_s"] for row in same)
        found.append(row)
    return found


def off(row: dict[str, Any]) -> bool:
    """Whether a sum is not what its formula says."""
    if row["formula_s"] is None:
        return False
    return bool(row["over_formula"] > 1 + WITHIN or (WAYS[row["way"]].whole and row["over_formula"] < 1 - WITHIN))


def table(results: list[dict[str, Any]], ranks: list[int], rate_mbit: float) -> Table:
    title = f"Seconds (over the formula's), {4e-6 * results[0]['numbers']:.1f} MB, {rate_mbit:g} Mbit/s"
    made = Table("way", *(f"{count} ranks" for count in ranks), title=title)
    by_case = {(row["way"], row["ranks"]): row for row in results}
    for name in dict.fromkeys(row["way"] for row in results):
        cells = []
        for count in ranks:
            row = by_case[name, count]
            ratio = "" if row["formula_s"] is None else f" ({row['over_formula']:.2f})"
            cells.append(f"{row['seconds']:.2f}{ratio}{' !' * off(row)}")
        made.add_row(name, *cells)
    return made


def draw(results: list[dict[str, Any]], rate_mbit: float, path: Path) -> None:
    """What was measured as points, the formulas as lines."""
    title = f"Summing {4e-6 * results[0]['numbers']:.1f} MB over links of {rate_mbit:g} Mbit/s"
    figure = new_figure(title, 4.0)
    sheets = {
        "whole vectors": ("server", "binomial", "ring"),
        "in chunks": ("chunked server", "chunked binomial", "chunked binary", "chunked chain", "chunked ring"),
    }
    colours = {"server": ORANGE, "binomial": BLUE, "ring": GREEN, "binary": DARK, "chain": QUIET}
    top = max(row["seconds"] for row in results)
    for number, (name, shown) in enumerate(sheets.items(), start=1):
        axes = figure.add_subplot(1, 2, number)
        for way in shown:
            rows = sorted((row for row in results if row["way"] == way), key=lambda row: row["ranks"])
            label, counts = way.removeprefix("chunked "), [row["ranks"] for row in rows]
            colour = colours[label]
            axes.plot(counts, [row["formula_s"] for row in rows], color=colour, linewidth=1.2)
            axes.plot(counts, [row["seconds"] for row in rows], "o", color=colour, markersize=5, label=label)
        axes.set(title=name, xlabel="ranks", ylabel="seconds", ylim=(0, 1.05 * top), xticks=range(2, 1 + max(counts)))
        axes.legend(frameon=False, fontsize=9)
        calm(axes)
    figure.savefig(path, format="png")


def main() -> None:
    def numbers(text: str) -> list[int]:
        return sorted(map(int, text.split(",")))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hostnet", type=Path, default=os.environ.get("DBELIEF_HOSTNET"))
    parser.add_argument("--ranks", type=numbers, default=[2, 3, 4, 5, 6, 8])
    parser.add_argument("--numbers", type=int, default=NUMBERS, help="of float32, on each rank")
    parser.add_argument("--rate", type=float, default=100, help="of the links, in Mbit/s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # this process is one of them
    chosen = parser.parse_args()
    if chosen.rank:
        rank_main(chosen)
        return
    if chosen.ranks[0] < 2:
        parser.error("--ranks: one rank has nobody to talk to")
    if chosen.hostnet is None:
        print("collectives.py: left out, DBELIEF_HOSTNET names no program that makes hosts", file=sys.stderr)
        return
    words = ["--ranks", ",".join(map(str, chosen.ranks)), "--numbers", str(chosen.numbers)]
    command = [sys.executable, __file__, "--rank", *words, "--ways", ",".join(chosen.ways)]
    rows = []
    for _ in range(chosen.rounds):
        printed = run_on_hosts(chosen.hostnet, max(chosen.ranks), chosen.rate, command, LIMIT_S)
        print(printed, end="", file=sys.stderr, flush=True)
        rows += [json.loads(line) for line in printed.splitlines()]
    results = medians(rows)
    Console(stderr=True, width=160).print(table(results, chosen.ranks, chosen.rate))
    if chosen.picture is not None:
        draw(results, chosen.rate, chosen.picture)
    print(json.dumps({"rate_mbit": chosen.rate, "chunk": CHUNK, "results": results}))
    raise SystemExit(1 if any(map(off, results)) else 0)


if __name__ == "__main__":
    main()
