"""Weak scaling at 1, 2, 4, 8 workers: You et al. 2017, Fig. 13, with waits in place of computing.

    [DBELIEF_HOSTNET=path/of/hostnet] python -m benchmarks.allreduce.weak_scaling [--ranks 1,2,4,8] [--rate MBIT]

A step is a wait of 50 ms in place of a mini-batch, so that two cores serve 8 workers, and a sum of LeNet's vector:

    ring        the wait, then the gradients around the ring: synchronous SGD
    overlapped  the weights of this step are summed by a second thread during the wait; then all take the elastic step
                (sync EASGD 3: both eqs. with the weights from before the mini-batch)

Each worker is a process; all on one host, or on hosts of their own with links of --rate. Efficiency is the time of a
step of one worker over that of P, medians of the steps of the slowest rank. Exit code 1 where at 8 workers on one host
the ring has less than 80 %, or the overlapped form less than 95 %; the paper: 91.6 % at 64 nodes.

Where this machine has other work too, begin with `chrt -f 20`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, socket_ranks, timing
from dbelief.worker.comm import Communicator
from dbelief.worker.comm.collectives import RingAllreduce

NUMBERS = 431_080
WAIT_S = 0.05
STEPS = 40
LIMIT_S = 300.0
LEAST = {"ring": 0.80, "overlapped": 0.95}
MOVING = np.float32(0.1)
"""Of the way to the centre, per step: eta rho."""


def ring(comm: Communicator) -> Callable[[], None]:
    """One step of synchronous SGD."""
    summed = RingAllreduce(comm, NUMBERS, np.float32)
    weights, gradient = np.zeros(NUMBERS, np.float32), np.full(NUMBERS, comm.rank, np.float32)

    def step() -> None:
        time.sleep(WAIT_S)
        summed(gradient)
        np.divide(gradient, comm.size, out=gradient)
        np.subtract(weights, gradient, out=weights)

    return step


def overlapped(comm: Communicator) -> Callable[[], None]:
    """One step of sync EASGD 3: W_i -= eta g_i + eta rho (W_i - centre), centre += eta rho (sum W_i - P centre)."""
    summed = RingAllreduce(comm, NUMBERS, np.float32)
    weights, centre = np.full(NUMBERS, comm.rank, np.float32), np.zeros(NUMBERS, np.float32)
    total, change = np.empty(NUMBERS, np.float32), np.empty(NUMBERS, np.float32)
    beside = ThreadPoolExecutor(1)

    def step() -> None:
        np.copyto(total, weights)
        sum_is_there = beside.submit(summed, total)
        time.sleep(WAIT_S)
        sum_is_there.result()
        np.subtract(centre, weights, out=change)
        np.multiply(change, MOVING, out=change)
        np.add(weights, change, out=weights)
        np.multiply(centre, np.float32(comm.size), out=change)
        np.subtract(total, change, out=change)
        np.multiply(change, MOVING, out=change)
        np.add(centre, change, out=centre)

    return step


FORMS = {"ring": ring, "overlapped": overlapped}


def rank_main(chosen: argparse.Namespace) -> None:
    """Measure both forms with all numbers of workers; rank 0 prints them, a line each."""
    with socket_ranks.groups(chosen.rank, chosen.addresses, chosen.ranks, LIMIT_S) as made:
        everyone = made[max(chosen.ranks)]
        for size in chosen.ranks:
            everyone.barrier()
            for form, make in FORMS.items() if size in made else ():
                step, taken = make(made[size]), np.zeros((size, STEPS))
                step()
                for number in range(STEPS):
                    taken[chosen.rank, number] = timing.seconds(step)
                made[size].allreduce(taken)
                if chosen.rank == 0:
                    row = {"form": form, "ranks": size, "seconds": float(np.median(taken.max(axis=0)))}
                    print(json.dumps(row), flush=True)
        everyone.barrier()


def efficiencies(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """By form and number of workers, against one."""
    alone = {row["form"]: row["seconds"] for row in rows if row["ranks"] == 1}
    found: dict[str, dict[int, float]] = {form: {} for form in FORMS}
    for row in rows:
        found[row["form"]][row["ranks"]] = alone[row["form"]] / row["seconds"]
    return found


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--ranks", type=lambda text: sorted({1, *map(int, text.split(","))}), default=[1, 2, 4, 8])
    parser.add_argument("--rate", type=float, default=0, help="of links between hosts, in Mbit/s; 0: all on one")
    chosen = socket_ranks.parse(parser, rank_main)
    rows = socket_ranks.run_joined(__file__, max(chosen.ranks), LIMIT_S, chosen.rate)
    found, by_case = efficiencies(rows), {(row["form"], row["ranks"]): row["seconds"] for row in rows}
    over = f"{chosen.rate:g} Mbit/s" if chosen.rate else "one host"
    shown = Table("form", *map(str, chosen.ranks), title=f"ms of a step (efficiency), by workers, {over}")
    for form, by_ranks in found.items():
        shown.add_row(
            form, *(f"{1e3 * by_case[form, ranks]:.1f} ({100 * share:.1f} %)" for ranks, share in by_ranks.items())
        )
    results = [
        {
            "form": form,
            "seconds": {f"at_{ranks}": by_case[form, ranks] for ranks in by_ranks},
            "efficiency": {f"at_{ranks}": share for ranks, share in by_ranks.items()},
        }
        for form, by_ranks in found.items()
    ]
    report.show(shown, {"over": over, "results": results}, width=120)
    missed = not chosen.rate and any(found[form].get(8, 1.0) < least for form, least in LEAST.items())
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
