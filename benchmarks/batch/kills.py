"""Optimum of a batch method after one of its processes was killed, against undisturbed runs: examples/a9a.yaml.

    DBELIEF_DATA=... python -m benchmarks.batch.kills [--roles none,coordinator,worker,shard] [--times 10]
        [--seed 0] [--rows rows.jsonl] [--set strategy.ordered=true]

Per role and time one run: at a moment drawn between the second iteration and 90 % of the undisturbed run's, one process
of that role gets SIGKILL. Every portion takes 10 ms longer than it would, so that replicas die within a bundle. Role
"none" is the undisturbed run, three times; their medians are the reference. A run passes when the exit code is 0, the
loss at the end is within 1e-6 of theirs, relatively, its iterations are theirs to within 2, plus those that a shard's
death rolled back, no iteration is done twice, and no process is left. With --rows the rows of earlier parts count too.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import statistics
import time
from collections.abc import Sequence
from subprocess import Popen
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, kills, options, report, runs
from dbelief.errors import DataError
from dbelief.rundir.events import read_events

JOB = checkout.EXAMPLES / "a9a.yaml"
ROLES = ("none", "coordinator", "worker", "shard")
LOSS, ITERATIONS = 1e-6, 2
LIMIT_S = 300.0
COMPUTE_WAIT_S = "0.01"


def events(run: runs.Run) -> list[dict[str, Any]]:
    """Events written so far; none before the run begins."""
    try:
        return list(read_events(run.run / "events.jsonl"))
    except (DataError, OSError):
        return []


def iterations(run: runs.Run) -> list[dict[str, Any]]:
    return [event for event in events(run) if event["event"] == "iteration"]


def one(fields: dict[str, str], role: str, at: float | None, rng: random.Random) -> dict[str, Any]:
    """Run the job once, with a kill shortly after this iteration; its figures."""
    row: dict[str, Any] = {"role": role, "at": at}
    with runs.temporary_run("a9a") as run:

        def disturb(launcher: Popen[bytes]) -> None:
            if at is not None:
                runs.wait_for(lambda: len(iterations(run)) >= at or None, f"iteration {at}", LIMIT_S)
                time.sleep(rng.uniform(0.0, 0.5))
                row["victim"] = kills.strike(run, role, "kill", rng)

        row |= kills.train(run, JOB, fields, 2 * LIMIT_S, disturb)
        done, all_events = iterations(run), events(run)
        row["back"] = sum(event["iterations"] for event in all_events if event["event"] == "rolled_back")
        row["iterations"] = done[-1]["iteration"] + row["back"] if done else 0
        row["loss"] = done[-1]["loss"] if done else None
        row["twice"] = repeated(all_events)
        row["died"] = run.summary().get("died")
        row["said"] = [line for line in run.output("train") if re.search("killed|died|Error|gave", line)]
    report.progress(row)
    return row


def repeated(all_events: Sequence[dict[str, Any]]) -> int:
    """Iterations that were done again although no shard's death had rolled them back."""
    pairs = itertools.pairwise(event for event in all_events if event["event"] in ("iteration", "rolled_back"))
    return sum(a["event"] == b["event"] == "iteration" and b["iteration"] <= a["iteration"] for a, b in pairs)


def verdict(row: dict[str, Any], loss: float, count: float) -> str:
    """What is wrong with a run; "" where nothing is."""
    wrong = []
    if row["code"] != 0:
        wrong.append(f"exit code {row['code']}")
    if row["role"] != "none" and not any("was killed" in line for line in row["said"]):
        wrong.append("no process was killed")
    if row["loss"] is None or abs(row["loss"] / loss - 1) > LOSS:
        wrong.append(f"loss {row['loss']}")
    if abs(row["iterations"] - row["back"] - count) > ITERATIONS:
        wrong.append(f"{row['iterations'] - row['back']} iterations")
    if row["twice"]:
        wrong.append(f"{row['twice']} iterations done twice")
    if row["left"]:
        wrong.append(f"{len(row['left'])} processes left")
    return ", ".join(wrong)


def summarize(rows: list[dict[str, Any]]) -> bool:
    """Print table and JSON; whether every run passed."""
    calm = [row for row in rows if row["role"] == "none" and row["loss"] is not None]
    if not calm:
        raise SystemExit("no undisturbed run to hold the others against: --roles none")
    loss = statistics.median(row["loss"] for row in calm)
    count = statistics.median(row["iterations"] for row in calm)
    table = Table("role", "runs", "as it should be", "iterations, each", "taken back, each", "loss, furthest", "wrong")
    results = []
    for role in ROLES:
        mine = [row for row in rows if row["role"] == role]
        if not mine:
            continue
        wrong = [verdict(row, loss, count) for row in mine]
        furthest = max((abs(row["loss"] / loss - 1) for row in mine if row["loss"] is not None), default=float("nan"))
        kept = [row["iterations"] - row["back"] for row in mine]
        back = [row["back"] for row in mine]
        good = wrong.count("")
        ends = {"least_iterations": min(kept), "most_iterations": max(kept), "loss_off": furthest}
        counts = {"runs": len(mine), "good": good, "rolled_back": sum(back)}
        results.append({"role": role, **counts, **ends})
        table.add_row(
            role,
            str(len(mine)),
            str(good),
            " ".join(map(str, kept)),
            " ".join(map(str, back)),
            f"{furthest:.1e}",
            "; ".join(filter(None, wrong)),
        )
    killed = [result for result in results if result["role"] != "none"]
    report.show(table, {"loss": loss, "killed": killed, "results": results, "runs": rows}, width=160)
    return all(result["good"] == result["runs"] for result in results)


def main() -> None:
    parser = options.new_parser(__doc__)
    options.add_fields(parser)
    kills.add_kills(parser, ROLES, times=10)
    arguments = parser.parse_args()
    rows = runs.Rows(arguments.rows)
    os.environ["DBELIEF_COMPUTE_WAIT"] = COMPUTE_WAIT_S
    fields = {"snapshots.every_s": "null", "snapshots.every_iterations": "5", **options.fields_of(arguments)}
    for role, number in kills.planned(arguments):
        rng = random.Random(f"{arguments.seed} {role} {number}")
        at = None
        if role != "none":
            whole = statistics.median(row["iterations"] for row in rows if row["role"] == "none")
            at = int(rng.uniform(2, 0.9 * whole))
        rows.append(one(fields, role, at, rng))
    raise SystemExit(0 if summarize(rows) else 1)


if __name__ == "__main__":
    main()
