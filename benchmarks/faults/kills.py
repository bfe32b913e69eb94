"""Test accuracy of `dbelief train` on MNIST after one of its processes was killed, against undisturbed runs.

    DBELIEF_DATA=... python -m benchmarks.faults.kills [--roles none,worker,shard,coordinator,registry] [--times 5]
        [--how kill|stop] [--seed 0] [--rows rows.jsonl]

Per role and time one run: at a moment drawn between 20 and 50 % of the samples one process of that role gets SIGKILL
(or SIGSTOP, and SIGCONT ten seconds later). Role "none" is the undisturbed run: three of them, with the seeds that the
others have in turn, give the reference accuracy. A run passes when the exit code is 0, the test accuracy is within 0.5
points of those runs' median, the output names the killed process and the lost pushes, and no process is left. With
--rows the rows of earlier parts count too.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

from rich.table import Table

from benchmarks.harness import checkout, kills, options, report, runs, timing
from dbelief.job import load_job

ROLES = ("none", "worker", "shard", "coordinator", "registry")
FROM, TO = 0.2, 0.48  # noticed a little late
"""Share of the samples trained at the kill."""
LEFT_S = 20.0
"""A kill less than this before the end proves little."""
POINTS = 0.5
LIMIT_S = 900.0


def one(job: Path, fields: dict[str, str], role: str, how: str, share: float, rng: random.Random) -> dict[str, Any]:
    """Run the job once; its figures."""
    total = runs.total_samples(job, fields)
    row: dict[str, Any] = {"role": role, "how": how, "seed": int(fields["seed"])}
    with runs.temporary_run(load_job(job, fields).name) as run:
        happened_s = time.monotonic()

        def disturb(launcher: Popen[bytes]) -> None:
            nonlocal happened_s
            if role != "none":
                at = int(share * total)
                runs.wait_for(lambda: run.samples() >= at or launcher.poll() is not None or None, "samples", LIMIT_S)
                happened_s = time.monotonic()
                row.update(share=round(run.samples() / total, 3), victim=kills.strike(run, role, how, rng))

        row |= kills.train(run, job, fields, LIMIT_S, disturb)
        row["after_s"] = round(time.monotonic() - happened_s, 1)
        row["files_left"] = sorted(path.name for path in run.temporary.iterdir())
        row |= run.figures()
        row["said"] = said(run.output("train"), row.get("victim"))
    report.progress(row)
    return row


def said(lines: list[str], victim: str | None) -> list[str]:
    """Lines of the output about the victim's death, by its name as a process or as a member."""
    if victim is None:
        return []
    member = victim.replace("ps-", "shard ").replace("worker-", "replica ")
    death = re.compile(
        rf"^(the )?{re.escape(victim)} was killed|failed during the run: [^(]*\b{re.escape(member)}\b.* pushes lost"
    )
    return [line.partition("; see ")[0] for line in lines if death.search(line)]


def verdict(row: dict[str, Any], median: float | None) -> str:
    """What is wrong with a run; "" where nothing is."""
    wrong = []
    if row["code"] != 0:
        wrong.append(f"exit code {row['code']}")
    if row["test_accuracy"] is None:
        wrong.append("no test accuracy")
    elif median is not None and abs(100 * row["test_accuracy"] - median) > POINTS:
        wrong.append(f"{100 * row['test_accuracy'] - median:+.2f} points")
    if row["role"] != "none":
        if row.get("victim") is None:
            wrong.append("no process to kill")
        if row["how"] == "kill" and not any("was killed" in line for line in row["said"]):
            wrong.append("the log does not name the killed process")
        if row["how"] == "kill" and row["role"] != "registry" and not any("lost" in line for line in row["said"]):
            wrong.append("the log does not name the loss")
        if row["after_s"] < LEFT_S and row["code"] == 0:
            wrong.append(f"only {row['after_s']:g} s before the end")
    if row["left"]:
        wrong.append(f"{len(row['left'])} processes left")
    return ", ".join(wrong)


def summarize(rows: list[dict[str, Any]]) -> bool:
    """Print table and JSON; whether every run passed."""
    calm = [100 * row["test_accuracy"] for row in rows if row["role"] == "none" and row["test_accuracy"] is not None]
    median = statistics.median(calm) if calm else None
    table = Table("role", "how", "runs", "as it should be", "test accuracy, each", "median", "against none", "wrong")
    results = []
    cases = timing.grouped(rows, "role", "how")
    for role, how in sorted(cases, key=lambda pair: (pair[1], ROLES.index(pair[0]))):
        mine = cases[role, how]
        wrong = [verdict(row, median) for row in mine]
        found = [100 * row["test_accuracy"] for row in mine if row["test_accuracy"] is not None]
        middle = statistics.median(found) if found else None
        against = middle - median if middle is not None and median is not None else None
        good = wrong.count("")
        results.append(
            {"role": role, "how": how, "runs": len(mine), "good": good, "median": middle, "against_none": against}
        )
        table.add_row(
            role,
            how,
            str(len(mine)),
            str(good),
            report.two_digits(found),
            "" if middle is None else f"{middle:.2f}",
            "" if against is None else f"{against:+.2f}",
            "; ".join(filter(None, wrong)),
        )
    report.show(table, {"results": results, "runs": rows}, width=160)
    return all(result["good"] == result["runs"] for result in results)


def main() -> None:
    parser = options.new_parser(__doc__)
    options.add_job(parser, checkout.EXAMPLES / "mnist.yaml")
    kills.add_kills(parser, ROLES, times=5)
    parser.add_argument("--how", choices=("kill", "stop"), default="kill")
    parser.add_argument("--epochs", type=int, default=7)
    arguments = parser.parse_args()
    rows = runs.Rows(arguments.rows)
    given = {"shards": "2", "replicas": "2", "snapshots.every_s": "5", "limits.epochs": str(arguments.epochs)}
    given |= options.fields_of(arguments)
    for role, number in kills.planned(arguments):
        how = "" if role == "none" else arguments.how
        rng = random.Random(f"{arguments.seed} {role} {arguments.how} {number}")
        fields = {**given, "seed": str(number % kills.UNDISTURBED)}
        rows.append(one(arguments.job, fields, role, how, rng.uniform(FROM, TO), rng))
    raise SystemExit(0 if summarize(rows) else 1)


if __name__ == "__main__":
    main()
