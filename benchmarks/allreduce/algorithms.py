"""Time of a sum over all workers where the network is the limit: FireCaffe's Fig. 4, with real messages.

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.allreduce.algorithms [--ranks 2,4,8]
        [--rounds 5] [--picture FILE]

As many numbers as LeNet has parameters (1.7 MB) are summed by 2 to 8 ranks over sockets, each a
process on a host of its own (harness/socket_ranks.py): through a parameter server, up and down trees, around a ring, in
one message or in chunks; and, beside them, as `Comm.allreduce`.

Each time stands beside its formula (dbelief/plan/allreduce_cost.py) for alpha and beta of a message between two hosts
in the same round, on the same links. Every sum is checked on every rank; its time is that of the slowest rank after a
barrier. Rounds are interleaved, and medians of them shown. Exit code 1 where a sum in one message is not within 25 % of
its formula, or one in chunks is slower than its own, or where `dbelief plan` has two ways in the wrong order, one at
least 10 % longer than the other.

Where this machine has other work too, begin with `chrt -f 20`: what is measured is then the network, and not how long
a rank waits for a core.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import hosts, options, ping, report, socket_ranks, timing
from dbelief.core.reduction_tree import Shape, binomial, server, with_arity
from dbelief.plan.allreduce_cost import Link, ring_seconds, tree_seconds
from dbelief.plan.communication_cost import sums
from dbelief.tools.report.plot_style import BLUE, DARK, GREEN, ORANGE, QUIET, calm, new_figure
from dbelief.worker.comm import Communicator
from dbelief.worker.comm.collectives import RingAllreduce, TreeAllreduce

NUMBERS = 431_080
CHUNK = 8_192
"""32 KB: in chunks of sqrt(alpha n / beta (P - 2)), 27 KB for alpha = 0.1 ms, P = 8, a chain takes least."""
WITHIN = 0.25
LEVEL = 0.1
"""Of the shorter time: ways whose predictions differ by less are level."""
LIMIT_S = 900.0


@dataclass(frozen=True)
class Way:
    """One way of summing: how it is made for a number of float32, and the seconds of so many ranks by its formula."""

    make: Callable[[Communicator, int], Callable[[np.ndarray], None]]
    seconds: Callable[[int, int, Link], float] | None = None
    whole: bool = True


def tree(shape: Callable[[int], Shape], chunk: int | None = None) -> Way:
    """A tree of this shape."""

    def make(comm: Communicator, size: int) -> TreeAllreduce:
        return TreeAllreduce(comm, size, np.float32, shape(comm.size), chunk=chunk)

    def seconds(ranks: int, size: int, link: Link) -> float:
        return float(tree_seconds(shape(ranks), 4 * size, link, math.ceil(size / (chunk or size))))

    return Way(make, seconds, chunk is None)


def ring(chunk: int | None = None) -> Way:
    """The ring."""

    def make(comm: Communicator, size: int) -> RingAllreduce:
        return RingAllreduce(comm, size, np.float32, chunk=chunk)

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
}


# -- one rank, a process on a host of its own ---------------------------------------------------------------------


def measure(group: Communicator, name: str, size: int) -> dict[str, Any]:
    """One sum on all ranks of the group: the seconds that it took, and the processor's seconds per second."""
    summed, array = WAYS[name].make(group, size), np.full(size, group.rank + 1, np.float32)
    for _ in range(2):  # the second time all ranks come from a barrier that they left together
        group.barrier()
    began_s, used_s = time.perf_counter(), time.process_time()
    summed(array)
    taken = np.zeros((2, group.size))
    taken[:, group.rank] = time.perf_counter() - began_s, time.process_time() - used_s
    group.allreduce(taken)
    if not (array == group.size * (group.size + 1) // 2).all():
        raise AssertionError(f"rank {group.rank}: the sum by {name} is wrong")
    seconds = float(taken[0].max())
    return {"way": name, "ranks": group.size, "seconds": seconds, "cores": float(taken[1].sum() / seconds)}


def rank_main(chosen: argparse.Namespace) -> None:
    """Measure all ways in each round, one after the other; rank 0 prints them, a line each."""
    with socket_ranks.groups(chosen.rank, chosen.addresses, chosen.ranks, LIMIT_S) as made:
        everyone = made[max(chosen.ranks)]
        for _, size in product(range(chosen.rounds), chosen.ranks):
            everyone.barrier()
            if size not in made:
                continue
            alpha_s, beta_s = ping.alpha_beta(made[size]) if everyone.rank < 2 else (0.0, 0.0)
            for name in chosen.ways:
                row = measure(made[size], name, chosen.numbers)
                if everyone.rank == 0:
                    print(json.dumps({**row, "alpha_s": alpha_s, "beta_s": beta_s}), flush=True)
        everyone.barrier()


# -- all of them, on their hosts ------------------------------------------------------------------------------------


def compared(rows: list[dict[str, Any]], numbers: int) -> list[dict[str, Any]]:
    """One row for each way and number of ranks, of the rounds' medians."""
    link = Link(**timing.medians(rows, "alpha_s", "beta_s"))
    found = []
    for (name, ranks), same in timing.grouped(rows, "way", "ranks").items():
        seconds, formula = WAYS[name].seconds, None
        median = timing.medians(same, "seconds", "cores")
        if seconds is not None:
            formula = seconds(ranks, numbers, link)
            median["over_formula"] = median["seconds"] / formula
        found.append(
            {"way": name, "ranks": ranks, **median, "formula_s": formula, "all": [row["seconds"] for row in same]}
        )
    return found


def by_way(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each way: seconds and share of the formula at so many ranks, as `at_8`."""
    return [
        {"way": name}
        | {key: {f"at_{row['ranks']}": row.get(key) for row in same} for key in ("seconds", "over_formula")}
        for (name,), same in timing.grouped(results, "way").items()
    ]


def off(row: dict[str, Any]) -> bool:
    """Whether a sum is not what its formula says."""
    if row["formula_s"] is None:
        return False
    least, most = (1 - WITHIN, 1 + WITHIN) if WAYS[row["way"]].whole else (0.0, 1.0)
    return not least <= row["over_formula"] <= most


def order(results: list[dict[str, Any]], numbers: int, link: Link) -> tuple[int, list[str]]:
    """Pairs of ways that `dbelief plan` puts in an order, and those that were measured in the other one."""
    measured = {(row["way"], row["ranks"]): row["seconds"] for row in results}
    pairs, wrong = 0, []
    for ranks in sorted({row["ranks"] for row in results}):
        planned = {}
        for one in sums(ranks, numbers, link, CHUNK):
            name = "chunked " * (one.chunks > 1) + {"tree": "binomial"}.get(one.way, one.way)
            if (name, ranks) in measured:
                planned[name] = one.seconds
        for first, second in combinations(sorted(planned, key=planned.__getitem__), 2):
            if planned[second] > (1 + LEVEL) * planned[first]:
                pairs += 1
                if measured[first, ranks] >= measured[second, ranks]:
                    wrong.append(f"{first} before {second} at {ranks} ranks")
    return pairs, wrong


def table(results: list[dict[str, Any]], chosen: argparse.Namespace) -> Table:
    title = f"Milliseconds (over the formula's), {4e-6 * chosen.numbers:.1f} MB, {chosen.rate:g} Mbit/s"
    made = Table("way", *(f"{count} ranks" for count in chosen.ranks), title=title)
    by_case = {(row["way"], row["ranks"]): row for row in results}
    for name in chosen.ways:
        cells = []
        for count in chosen.ranks:
            row = by_case[name, count]
            ratio = "" if row["formula_s"] is None else f" ({row['over_formula']:.2f})"
            cells.append(f"{1e3 * row['seconds']:.0f}{ratio}{' !' * off(row)}")
        made.add_row(name, *cells)
    return made


def draw(results: list[dict[str, Any]], chosen: argparse.Namespace) -> None:
    """What was measured as points, the formulas as lines."""
    title = f"Summing {4e-6 * chosen.numbers:.1f} MB over links of {chosen.rate:g} Mbit/s"
    figure = new_figure(title, 4.0)
    sheets = {
        "whole vectors": ("server", "binomial", "ring"),
        "in chunks": ("chunked server", "chunked binomial", "chunked binary", "chunked chain", "chunked ring"),
    }
    colours = {"server": ORANGE, "binomial": BLUE, "ring": GREEN, "binary": DARK, "chain": QUIET}
    top = max(row["seconds"] for row in results if row["formula_s"] is not None)
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
    figure.savefig(chosen.picture, format="png")


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--ranks", type=options.ascending, default=[2, 3, 4, 5, 6, 8])
    parser.add_argument("--numbers", type=int, default=NUMBERS, help="of float32, on each rank")
    parser.add_argument("--rate", type=float, default=200, help="of the links, in Mbit/s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", type=options.words, default=list(WAYS))
    parser.add_argument("--picture", type=Path)
    chosen = socket_ranks.parse(parser, rank_main)
    if chosen.ranks[0] < 2:
        parser.error("--ranks: at least two")
    if hosts.left_out(__file__, os.environ.get("DBELIEF_HOSTNET")):
        return
    rows = socket_ranks.run_joined(__file__, max(chosen.ranks), LIMIT_S, chosen.rate)
    results = compared(rows, chosen.numbers)
    link = timing.medians(rows, "alpha_s", "beta_s")
    if chosen.picture is not None:
        draw(results, chosen)
    pairs, wrong = order(results, chosen.numbers, Link(**link))
    print(f"dbelief plan puts {pairs} pairs in order, not so measured: {', '.join(wrong) or 'none'}", file=sys.stderr)
    found = {"by_way": by_way(results), "results": results, "planned_pairs": pairs, "planned_wrongly": wrong}
    shape = {"rate_mbit": chosen.rate, "numbers": chosen.numbers, "chunk": CHUNK}
    report.show(table(results, chosen), {**shape, **link, **found}, width=160)
    raise SystemExit(1 if wrong or any(map(off, results)) else 0)


if __name__ == "__main__":
    main()
