"""Whatever dies, the job ends as well as if nothing had: `dbelief train` on MNIST with one process killed in its midst.

    DBELIEF_DATA=... python benchmarks/kills.py [--roles none,worker,shard,coordinator,registry] [--times 5]
        [--how kill|stop] [--seed 0] [--rows rows.jsonl]

Per role and time one run: at a moment drawn between 20 and 50 % of the samples one process of that role gets SIGKILL
(or SIGSTOP, and SIGCONT ten seconds later). It is found among the processes of the very run. Role "none" is the run
without: three of them, with the seeds that the others have in turn, give the accuracy that all are held against. A run
is as it should be when the exit code is 0, the test accuracy is within 0.5 points of those runs' median, the output
tells who was killed and what was lost, and no process is left. With --rows the rows of earlier parts count too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launched import Rows, Run, total_samples, wait_for
from rich.console import Console
from rich.table import Table

from dbelief.job import load_job

ROLES = ("none", "worker", "shard", "coordinator", "registry")
UNDISTURBED = 3
FROM, TO = 0.2, 0.48  # it is seen a little late
"""Share of the samples trained when it happens."""
STOPPED_S = 10.0
LEFT_S = 20.0
"""A process that dies later than so long before the end proves little."""
POINTS = 0.5
LIMIT_S = 900.0


def one(job: Path, fields: dict[str, str], role: str, how: str, share: float, rng: random.Random) -> dict[str, Any]:
    """Run the job once; what came of it."""
    name, total = load_job(job, fields).name, total_samples(job, fields)
    row: dict[str, Any] = {"role": role, "how": how, "seed": int(fields["seed"])}
    # A short name: paths of sockets end at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        run = Run(Path(folder), name)
        sets = [part for field, value in {**fields, "output": folder}.items() for part in ("--set", f"{field}={value}")]
        began = time.monotonic()
        train = run.start("train", ["train", str(job.absolute()), *sets])
        happened = began
        try:
            if role != "none":
                at = int(share * total)
                wait_for(lambda: True if run.samples() >= at or train.poll() is not None else None, "samples", LIMIT_S)
                happened = time.monotonic()
                row |= {"share": round(run.samples() / total, 3), "victim": strike(run, role, how, rng)}
            left_s = LIMIT_S - (time.monotonic() - began)
            row["code"] = wait_for(lambda: code_of(train, run), "the end of the job", left_s)
        except TimeoutError as error:
            row |= {"code": None, "trouble": str(error)}
            train.terminate()
        finally:
            row |= {"wall_s": round(time.monotonic() - began, 1), "after_s": round(time.monotonic() - happened, 1)}
            row["left"] = run.end()
        row["files_left"] = sorted(path.name for path in run.temporary.iterdir())
        summary = run.summary()
        row |= {key: summary.get(key) for key in ("test_accuracy", "samples", "samples_per_replica", "reason")}
        row |= {key: value for key, value in summary.items() if re.search("lost|twice|died", key)}
        row["said"] = said(run.output("train"), row.get("victim"))
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def code_of(train: subprocess.Popen[bytes], run: Run) -> int | None:
    """How the launcher ended; until then, see whom it has started."""
    code = train.poll()
    if code is None:
        run.processes()
        time.sleep(0.5)
    return code


def strike(run: Run, role: str, how: str, rng: random.Random) -> str | None:
    """Kill or stop one process of this role; its name, None where there is none."""
    members = run.members()[role]
    if not members:
        return None
    pid, name = rng.choice(members)
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
        return name
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    return name


def said(lines: list[str], victim: str | None) -> list[str]:
    """Lines of the output that tell of the victim's end, by its name as a process or as a member."""
    if victim is None:
        return []
    member = victim.replace("ps-", "shard ").replace("worker-", "replica ")
    told = re.compile(
        rf"^(the )?{re.escape(victim)} was killed|died on the way: [^(]*\b{re.escape(member)}\b.* pushes lost"
    )
    return [line for line in lines if told.search(line)]


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
            wrong.append("nobody to strike")
        if row["how"] == "kill" and not any("was killed" in line for line in row["said"]):
            wrong.append("who was killed is not said")
        if row["how"] == "kill" and row["role"] != "registry" and not any("lost" in line for line in row["said"]):
            wrong.append("what was lost is not said")
        if row["after_s"] < LEFT_S and row["code"] == 0:
            wrong.append(f"only {row['after_s']:g} s before the end")
    if row["left"]:
        wrong.append(f"{len(row['left'])} processes left")
    return ", ".join(wrong)


def report(rows: list[dict[str, Any]]) -> bool:
    """Print table and JSON; whether every run is as it should be."""
    calm = [100 * row["test_accuracy"] for row in rows if row["role"] == "none" and row["test_accuracy"] is not None]
    median = statistics.median(calm) if calm else None
    table = Table("role", "how", "runs", "as it should be", "test accuracy, each", "median", "against none", "wrong")
    results = []
    for role, how in sorted(
        {(row["role"], row["how"]) for row in rows}, key=lambda pair: (pair[1], ROLES.index(pair[0]))
    ):
        mine = [row for row in rows if (row["role"], row["how"]) == (role, how)]
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
            " ".join(f"{a:.2f}" for a in found),
            "" if middle is None else f"{middle:.2f}",
            "" if against is None else f"{against:+.2f}",
            "; ".join(filter(None, wrong)),
        )
    Console(stderr=True, width=160).print(table)
    print(json.dumps({"results": results, "runs": rows}))
    return all(result["good"] == result["runs"] for result in results)


def chosen(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> list[str]:
    """The roles that are named, with commas between; ends with an error where one is not known."""
    roles = [role for role in text.split(",") if role]
    if unknown := set(roles) - set(known):
        parser.error(f"--roles: {', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    return roles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=Path(__file__).parents[1] / "examples" / "mnist.yaml")
    parser.add_argument("--roles", default=",".join(ROLES), help='which, with commas between; "" only reports --rows')
    parser.add_argument("--times", type=int, default=5, help="runs per role; none has three at most")
    parser.add_argument("--how", choices=("kill", "stop"), default="kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--rows", type=Path, help="JSON lines: earlier parts' rows, and where new ones are added")
    arguments = parser.parse_args()
    roles = chosen(parser, arguments.roles, ROLES)
    rows = Rows(arguments.rows)
    given = {"shards": "2", "replicas": "2", "snapshots.every_s": "5", "limits.epochs": str(arguments.epochs)}
    given |= dict(item.split("=", 1) for item in arguments.set)
    for role in roles:
        how = "" if role == "none" else arguments.how
        for number in range(min(arguments.times, UNDISTURBED) if role == "none" else arguments.times):
            rng = random.Random(f"{arguments.seed} {role} {arguments.how} {number}")
            fields = {**given, "seed": str(number % UNDISTURBED)}
            rows.append(one(arguments.job, fields, role, how, rng.uniform(FROM, TO), rng))
    raise SystemExit(0 if report(rows) else 1)


if __name__ == "__main__":
    main()
