"""Whatever dies, a batch method comes to the same optimum: examples/a9a.yaml with one process killed in its midst.

    DBELIEF_DATA=... python benchmarks/batch_kills.py [--roles none,coordinator,worker,shard] [--times 10]
        [--seed 0] [--rows rows.jsonl] [--set strategy.ordered=true]

Per role and time one run: at a moment drawn between the second iteration and 90 % of the undisturbed run's, one process
of that role gets SIGKILL. Every portion takes 10 ms longer than it would, so that replicas die in the midst of a
bundle. Role "none" is the run without, three times; their medians are what all are held against. A run is as it should
be when the exit code is 0, the loss at the end is within 1e-6 of theirs, relatively, its iterations are theirs to
within 2, plus those that a shard's death took back, none of them is done twice, and no process is left. With --rows the
rows of earlier parts count too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kills import chosen, code_of, strike
from launched import Rows, Run, wait_for
from rich.console import Console
from rich.table import Table

from dbelief.errors import DataError
from dbelief.rundir.events import read_events

JOB = Path(__file__).parents[1] / "examples" / "a9a.yaml"
ROLES = ("none", "coordinator", "worker", "shard")
UNDISTURBED = 3
LOSS, ITERATIONS = 1e-6, 2
LIMIT_S = 300.0
COMPUTE_WAIT_S = "0.01"


def events(run: Run) -> list[dict[str, Any]]:
    """What the run has written so far; empty before it begins."""
    try:
        return list(read_events(run.run / "events.jsonl"))
    except (DataError, OSError):
        return []


def iterations(run: Run) -> list[dict[str, Any]]:
    return [event for event in events(run) if event["event"] == "iteration"]


def one(fields: dict[str, str], role: str, at: float | None, rng: random.Random) -> dict[str, Any]:
    """Run the job once, and strike at this iteration and a little later; what came of it."""
    row: dict[str, Any] = {"role": role, "at": at}
    # A short name: paths of sockets end at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        run = Run(Path(folder), "a9a")
        sets = [part for name, value in {**fields, "output": folder}.items() for part in ("--set", f"{name}={value}")]
        began = time.monotonic()
        train = run.start("train", ["train", str(JOB), *sets])
        try:
            if at is not None:
                wait_for(lambda: True if len(iterations(run)) >= at else None, f"iteration {at}", LIMIT_S)
                time.sleep(rng.uniform(0.0, 0.5))
                row["victim"] = strike(run, role, "kill", rng)
            row["code"] = wait_for(lambda: code_of(train, run), "the end of the job", LIMIT_S)
        except TimeoutError as error:
            row |= {"code": None, "trouble": str(error)}
            train.terminate()
        finally:
            row["wall_s"] = round(time.monotonic() - began, 1)
            row["left"] = run.end()
        done, all_events = iterations(run), events(run)
        row["back"] = sum(event["iterations"] for event in all_events if event["event"] == "rolled_back")
        row["iterations"] = done[-1]["iteration"] + row["back"] if done else 0
        row["loss"] = done[-1]["loss"] if done else None
        row["twice"] = repeated(all_events)
        row["died"] = run.summary().get("died")
        row["said"] = [line for line in run.output("train") if re.search("killed|died|Error|gave", line)]
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def repeated(all_events: Sequence[dict[str, Any]]) -> int:
    """Iterations that were done again though no shard's death had taken them back."""
    told = [event for event in all_events if event["event"] in ("iteration", "rolled_back")]
    pairs = itertools.pairwise(told)
    return sum(a["event"] == b["event"] == "iteration" and b["iteration"] <= a["iteration"] for a, b in pairs)


def verdict(row: dict[str, Any], loss: float, count: float) -> str:
    """What is wrong with a run; "" where nothing is."""
    wrong = []
    if row["code"] != 0:
        wrong.append(f"exit code {row['code']}")
    if row["role"] != "none" and not any("was killed" in line for line in row["said"]):
        wrong.append("nobody was killed")
    if row["loss"] is None or abs(row["loss"] / loss - 1) > LOSS:
        wrong.append(f"loss {row['loss']}")
    if abs(row["iterations"] - row["back"] - count) > ITERATIONS:
        wrong.append(f"{row['iterations'] - row['back']} iterations")
    if row["twice"]:
        wrong.append(f"{row['twice']} iterations done twice")
    if row["left"]:
        wrong.append(f"{len(row['left'])} processes left")
    return ", ".join(wrong)


def report(rows: list[dict[str, Any]]) -> bool:
    """Print table and JSON; whether every run is as it should be."""
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
        results.append(
            {"role": role, "runs": len(mine), "good": good, "iterations": kept, "back": back, "loss_off": furthest}
        )
        table.add_row(
            role,
            str(len(mine)),
            str(good),
            " ".join(map(str, kept)),
            " ".join(map(str, back)),
            f"{furthest:.1e}",
            "; ".join(filter(None, wrong)),
        )
    Console(stderr=True, width=160).print(table)
    print(json.dumps({"loss": loss, "results": results, "runs": rows}))
    return all(result["good"] == result["runs"] for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roles", default=",".join(ROLES), help='which, with commas between; "" only reports --rows')
    parser.add_argument("--times", type=int, default=10, help="runs per role; none has three at most")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--rows", type=Path, help="JSON lines: earlier parts' rows, and where new ones are added")
    arguments = parser.parse_args()
    roles, rows = chosen(parser, arguments.roles, ROLES), Rows(arguments.rows)
    os.environ["DBELIEF_COMPUTE_WAIT"] = COMPUTE_WAIT_S
    fields = {"snapshots.every_s": "null", "snapshots.every_iterations": "5"}
    fields |= dict(item.split("=", 1) for item in arguments.set)
    for role in roles:
        for number in range(min(arguments.times, UNDISTURBED) if role == "none" else arguments.times):
            rng = random.Random(f"{arguments.seed} {role} {number}")
            at = None
            if role != "none":
                whole = statistics.median(row["iterations"] for row in rows if row["role"] == "none")
                at = int(rng.uniform(2, 0.9 * whole))
            rows.append(one(fields, role, at, rng))
    raise SystemExit(0 if report(rows) else 1)


if __name__ == "__main__":
    main()
