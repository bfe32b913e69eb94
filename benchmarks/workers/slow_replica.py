"""What a slow replica costs the others in DiLoCo: four replicas, of which one takes ten times as long for a mini-batch.

    python -m benchmarks.workers.slow_replica [--ways without,lockstep,quorum,unweighed,dropped] [--wait 0.02]
        [--slowdown 10] [--steps 8] [--seconds 30] [--repeats 3]

Each replica is a process of this machine, which waits in each mini-batch for so many seconds, in place of computing, so
that two cores carry all. Ways, interleaved:

    without     three replicas, without the slow one
    lockstep    four, whose rounds wait for all
    quorum      four, whose rounds end with three of them
    unweighed   such a job, in whose means all pushes have the same weight, late ones too
    dropped     such a job, without the late pushes

The figures are samples a second of the three others, as a share of those without the slow one, and the loss on the test
set after the same time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs, timing
from benchmarks.workers import slow_links

OTHERS = 3
WITHOUT = "without"
WAYS: dict[str, dict[str, Any]] = {
    WITHOUT: {},
    "lockstep": {},
    "quorum": {"quorum": 3},
    "unweighed": {"quorum": 3, "weigh": "none", "stale": 1.0},
    "dropped": {"quorum": 3, "stale": 0.0},
}
"""Fields of the strategy."""
DATA = {**slow_links.DATA, "noise": 3.0}
"""So noisy that the loss still falls at the end."""
LEASE_ROUNDS = 4
"""Few: at the end of the run a replica completes its lease."""
READY_S, END_S = 60.0, 120.0


def job_of(way: str, steps: int, seconds: float) -> dict[str, Any]:
    """The job file of a way."""
    made = slow_links.diloco(steps)
    return {
        **slow_links.job_of("network", "diloco-32", OTHERS + (way != WITHOUT)),
        "strategy": {**made["strategy"], **WAYS[way], "lease": LEASE_ROUNDS * steps * slow_links.BATCH},
        "data": DATA,
        "limits": {"wall_s": seconds},
        "shards": 1,
    }


def one(way: str, waits_s: Sequence[float], steps: int, seconds: float) -> dict[str, Any]:
    """One run, with a replica for each of the waits."""
    with runs.temporary_run("links") as run:
        coordinator, member = run.coordinator(job_of(way, steps, seconds), READY_S)
        run.start("ps", ["ps", *member])
        for number, wait_s in enumerate(waits_s):
            words = ["worker", *member, "--number", str(number), "--compute-wait", str(wait_s)]
            run.start(f"worker-{number}", words)
        run.finish(coordinator.poll, seconds + END_S)
        return {"way": way, **figures(run.summary())}


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Samples a second of the first replicas together, those of the last one, and the loss.

    Of a replica's own time, without its waits for a lease: after the limit the others wait for the slow one's.
    """
    rates = [0.0] * (OTHERS + 1)
    for number, phases_s in summary["phase_seconds"].items():
        worked_s = sum(seconds for phase, seconds in phases_s.items() if phase != "wait")
        rates[int(number)] = summary["samples_per_replica"][number] / worked_s
    found = {"others": round(sum(rates[:OTHERS]), 1), "slow": round(rates[OTHERS], 1)}
    return {**found, "loss": summary["test_loss"], "wall_s": round(summary["wall_s"], 1)}


def medians_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians of each way, and the others' samples a second as a share of those without the slow one, if measured."""
    medians = {
        way: timing.medians(mine, "others", "slow", "loss") for (way,), mine in timing.grouped(rows, "way").items()
    }
    usual = medians.get(WITHOUT, {}).get("others")
    return [
        {"way": way, "share": None if usual is None else round(median["others"] / usual, 3), **median}
        for way, median in medians.items()
    ]


def main() -> None:
    """Measure, and print the table."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--ways", type=options.words, default=list(WAYS))
    parser.add_argument("--wait", type=float, default=0.02)
    parser.add_argument("--slowdown", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.ways) - WAYS.keys():
        parser.error(f"no way is called {min(unknown)!r}, only {', '.join(WAYS)}")
    slow_s = arguments.wait * arguments.slowdown
    rows: list[dict[str, Any]] = []
    for _, way in timing.interleaved(arguments.ways, arguments.repeats):
        waits_s = [*itertools.repeat(arguments.wait, OTHERS), *([] if way == WITHOUT else [slow_s])]
        rows.append(one(way, waits_s, arguments.steps, arguments.seconds))
        report.progress(rows[-1])
    medians = medians_of(rows)
    table = Table("way", "samples/s of the others", "over those without", "samples/s of the slow one", "test loss")
    for row in medians:
        share = "" if row["share"] is None else f"{row['share']:.3f}"
        table.add_row(row["way"], f"{row['others']:.0f}", share, f"{row['slow']:.0f}", f"{row['loss']:.4f}")
    report.show(table, {"medians": medians, "rows": rows})


if __name__ == "__main__":
    main()
