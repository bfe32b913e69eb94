"""Churn: processes drawn over all roles die by SIGKILL for the whole of a job, and are started again at once.

    DBELIEF_DATA=... python -m benchmarks.faults.churn --plan a|b|c --job mnist|elastic|diloco|diloco-quorum
        [--seconds 600] [--seed 0] [--repeats 5] [--systems dbelief,torchrun,torchft] [--every S] [--compute-wait S]
        [--json rows.jsonl]

A deployment on loopback (`deployment.py`): registry, leading and standby coordinator, two shards with a follower each,
three workers; a supervisor starts again whatever ends. Plan "a" kills one process every 15 s, drawn uniformly over all;
plan "b" gives each process an exponential life of mean 30 s; plan "c" gives learners one of 60 s, after which they are
away for 10 s, and kills leading shards and coordinators (`churn_plan.py`). Job "mnist" is `examples/mnist.yaml`
(Downpour) with a shorter warm start, "elastic" the same net by elastic averaging. "diloco" has four workers in
lockstep, "diloco-quorum" ends a round with two of them. Beside them torch's elastic launcher (`churn_torch.py`) with as
many ranks, which it starts again at once, or, beside DiLoCo, with a host for each rank; and torchft's DiLoCo
(`churn_torchft.py`), in an interpreter that has it.

Each repeat first runs the job undisturbed for so many seconds, and then, under the plan, the same job until it has as
many samples. So the accuracies compare. Training begins when every worker has trained, and ends with the last sample.
Both plans share the undisturbed run of a job and seed.

Reported are samples/s of both and their ratio; the time from each death until the speed is back (`recovery_time.py`),
p50 and p99, also by part of the killed process, and the same moments in the undisturbed run; the test accuracies; and
pushes lost, with each shard that was restored set against the deaths of its two copies (`lost_pushes.py`). Of DiLoCo
also the goodput: the trained samples, as a share of those that learners train undisturbed in the same living seconds,
from the start of a process to its death, less half a round for each death.

A finished run is one line of the file of --json; the command started again continues after the last of them. Commands
of other jobs or seeds may run at the same time with a file of their own; `cat` merges the files, and --repeats 0 prints
the figures of a file. With --compute-wait several deployments fit on a few cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from benchmarks.faults import churn_torch, churn_torchft, lost_pushes, recovery_time, shard_parts
from benchmarks.faults.churn_plan import PLANS, USUAL_S, make_plan
from benchmarks.faults.deployment import COPIES, SHARDS, deployed
from benchmarks.faults.supervisor import Death, Supervisor
from benchmarks.harness import checkout, options, report, runs
from benchmarks.harness.extras import has_torchft
from dbelief.rundir.events import read_events

WORKERS, LEARNERS, ROUND_STEPS, BATCH = 3, 4, 50, 100
"""Workers of a job, learners of one of DiLoCo, whose rounds have so many steps, and samples of a mini-batch: eleven
rounds are an epoch. Any other number leaves a short lease at its end."""
JOBS: dict[str, dict[str, str]] = {
    "mnist": {"strategy.warm_start.samples": "5500"},
    "elastic": {"strategy": "{name: async-easgd, batch: 100, rate: 0.3, period: 4}"},
}


def rounds(fields: str, **more: str) -> dict[str, str]:
    """A job of DiLoCo with these fields of its strategy."""
    inner = "inner: {name: adagrad, rate: 0.03}"
    travels = f"steps: {ROUND_STEPS}, delay: {ROUND_STEPS}"  # while a shard's follower is promoted, too
    strategy = f"{{name: diloco, batch: {BATCH}, {travels}, {inner}, {fields}}}"
    # With fewer living learners than a quorum the others wait until the deaths are noticed.
    return {"replicas": str(LEARNERS), "deadlines.lease_s": "1", "deadlines.beat_s": "2", "strategy": strategy, **more}


LEASED = {"diloco": 2 * BATCH * ROUND_STEPS, "diloco-quorum": 11 * BATCH * ROUND_STEPS}
"""Samples of a lease. In lockstep who joins waits for its end; else it lasts longer than the takeover of the standby
coordinator, until which no lease is granted."""
# In lockstep the others wait until a death is noticed.
JOBS["diloco"] = rounds(f"lease: {LEASED['diloco']}", **{"deadlines.beat_s": "1"})
JOBS["diloco-quorum"] = rounds(f"quorum: 2, lease: {LEASED['diloco-quorum']}")
SYSTEMS = ("dbelief", "torchrun", "torchft")
START_S, END_S = 180.0, 20.0
LONGEST = 8.0
"""A disturbed run may take this many times the undisturbed one's time."""
RATIO, BACK_S, POINTS, GOODPUT = 0.85, 5.0, 0.3, 0.95
"""What plan "a" is held against: samples/s kept, p99 of the recovery time, and points of accuracy; "c": goodput."""
TAIL_S = 10.0
"""Deaths so late have no recovery time: near its last sample a job has no more leases for a worker that is ready."""
NEVER_S = 9999.0
SNAPSHOT_S = 5
"""Seconds between two snapshot sets, or checkpoints of torchrun, with and without kills."""
KEPT = checkout.ROOT / ".cache" / "churn"


class Disturbed(Protocol):
    """A running job whose processes can be killed by name; a `Deployment`, `TorchJob` or `TorchftJob`."""

    supervisor: Supervisor
    names: list[str]

    def starts(self) -> dict[str, int]: ...
    def kill(self, names: list[str], away_s: Mapping[str, float]) -> None: ...
    def trains(self) -> bool: ...
    def ended(self) -> bool: ...
    def looks(self) -> list[tuple[float, float]]: ...


@dataclass(frozen=True)
class Case:
    """What is run: the fields that identify a row of the file; plan "none" has no `every_s`."""

    system: str
    job: str
    plan: str
    seconds: float
    every_s: float | None
    wait_s: float
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)


def follow(job: Disturbed, case: Case, limit_s: float) -> dict[str, Any]:
    """Supervise the job to its end, and kill by the plan once it trains; its course and deaths."""
    supervisor = job.supervisor

    def begun() -> bool | None:
        supervisor.look()
        return job.trains() or None

    runs.wait_for(begun, "the first samples of every worker", START_S)
    shards = SHARDS if case.system == "dbelief" else 0
    drawn = make_plan(case.plan, job.names, f"{case.seed}", case.every_s, shards, case.seconds)
    began_s = time.monotonic()
    row: dict[str, Any] = {"trouble": ""}

    def over() -> bool | None:
        if job.ended():
            return True
        job.kill(drawn.due(time.monotonic() - began_s, job.starts()), drawn.away_s)
        supervisor.look()
        return None

    try:
        runs.wait_for(over, "the end of the job", limit_s)
    except TimeoutError as error:
        row["trouble"] = str(error)
    looks = [(at_s - began_s, more) for at_s, more in job.looks()]
    seconds = max((at_s for at_s, more in looks if more), default=0.0)
    row |= {"trained_s": seconds, "speeds": recovery_time.speeds(looks, seconds)}
    row["before"] = sum(more for at_s, more in looks if at_s <= 0)
    row["counted"] = sum(more for _, more in looks)
    row |= {"began_s": began_s, "away_s": drawn.away_s.get("worker", 0.0)}
    return row


def as_rows(deaths: Sequence[Death], began_s: float) -> list[dict[str, Any]]:
    """The deaths as JSON values, their moments since training began."""
    return [{**asdict(death), "at_s": death.at_s - began_s} for death in deaths]


def train(case: Case, limits: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """One run of dbelief; its figures."""
    fields: dict[str, object] = {"shards": SHARDS, "replication": COPIES, "replicas": WORKERS, "seed": case.seed}
    fields |= {"snapshots.every_s": SNAPSHOT_S, "evaluate.keep": "last", "limits": str(limits), **JOBS[case.job]}
    with runs.temporary_run("mnist") as run:
        with deployed(run, checkout.EXAMPLES / "mnist.yaml", fields, case.wait_s) as job:
            try:
                row = follow(job, case, limit_s)
                row["codes"] = ends(job.supervisor)
            finally:
                keep(run.folder, f"{case.job}-{case.plan}-{case.seed}")
        row |= run.figures()
        row["pushes"] = run.summary().get("pushes")
        file = run.run / "events.jsonl"
        events = list(read_events(file)) if file.exists() else []
    deaths = shard_parts.with_parts(job.supervisor.deaths, events)
    row["deaths"] = as_rows(deaths, row["began_s"])
    row["joining_s"] = joining_s(events, deaths, row["away_s"])
    row["restored"] = lost_pushes.restored(events, deaths)
    row["unexplained"] = lost_pushes.unexplained(row["restored"])
    return row


def joining_s(events: Sequence[dict[str, Any]], deaths: Sequence[Death], away_s: float) -> list[float]:
    """Seconds from the start of each worker that was killed until it has joined again."""
    joined = [(one["name"], shard_parts.wall_s(one)) for one in events if is_joining(one)]
    found = []
    for death in deaths:
        if death.part == "worker" and death.code is None:
            later = [at_s for name, at_s in joined if name == death.name and at_s > death.wall_s]
            found += [round(later[0] - death.wall_s - away_s, 3)] if later else []
    return found


def is_joining(event: dict[str, Any]) -> bool:
    """Whether a worker has joined."""
    return (event["event"], event.get("what"), event.get("role")) == ("member", "joined", "replica")


def ends(supervisor: Supervisor) -> dict[str, int | None]:
    """Wait for the end of all processes of a job that is over; exit codes other than 0 (None: it still ran).

    A process that was not started again has none.
    """

    def left() -> list[str]:
        return [unit.name for unit in supervisor.units.values() if unit.ends and unit.process.poll() is None]

    try:
        runs.wait_for(lambda: None if left() else True, "the processes", END_S)
    except TimeoutError as error:
        print(f"{error}: {', '.join(left())}", file=sys.stderr)
    started = [unit for unit in supervisor.units.values() if unit.ends and not unit.waits]
    codes = {unit.name: unit.process.poll() for unit in started}
    return {name: code for name, code in codes.items() if code != 0}


def train_peer(case: Case, limits: dict[str, Any], limit_s: float, python: Path | None) -> dict[str, Any]:
    """One run of torchrun or torchft; its figures."""
    given = {"data": f"{os.environ['DBELIEF_DATA']}/mnist", "batch": BATCH, "rate": 0.03, "seed": case.seed}
    given |= {"samples": limits["samples"]} if "samples" in limits else {"seconds": limits["wall_s"]}
    given |= {"wait_s": case.wait_s}
    with runs.temporary_run(case.system) as run:
        job: churn_torch.TorchJob | churn_torchft.TorchftJob
        if case.system == "torchft":
            job = churn_torchft.TorchftJob(run, {**given, "steps": ROUND_STEPS}, workers_of(case.job))
        else:
            assert python is not None
            given["checkpoint_s"] = SNAPSHOT_S
            job = churn_torch.TorchJob(run, python, given, workers_of(case.job), case.job in LEASED)
        try:
            row = follow(job, case, limit_s)
            row |= job.result() if job.ended() else {"samples": None, "test_accuracy": None}
        finally:
            job.close()
            keep(run.folder, f"{case.system}-{case.plan}-{case.seed}")
    return row | {"deaths": as_rows(job.supervisor.deaths, row["began_s"])}


def keep(folder: Path, label: str) -> None:
    """Keep logs and events of a run, in place of an earlier one's of this label."""
    shutil.rmtree(KEPT / label, ignore_errors=True)
    (KEPT / label).mkdir(parents=True)
    for path in [*folder.glob("*.log"), *folder.glob("mnist/*.json*")]:
        shutil.copy(path, KEPT / label)


def speed(row: dict[str, Any]) -> float:
    """Samples/s, from the begin of training to its last sample."""
    if not row["samples"] or not row["trained_s"]:
        return 0.0
    return float((row["samples"] - row["before"]) / row["trained_s"])


def workers_of(job: str) -> int:
    """Workers of a job, or ranks beside it."""
    return int(JOBS[job].get("replicas", WORKERS))


def goodput(calm: dict[str, Any], disturbed: dict[str, Any]) -> float | None:
    """Trained samples as a share of those of the living learners; None of other jobs than DiLoCo's.

    They train at the median speed of the undisturbed run's, and lose half a round with each death. The time of the last
    leases does not count, at whose end some learners find no more.
    """
    if disturbed["job"] not in LEASED or not disturbed["samples"]:
        return None
    leased = LEASED[disturbed["job"]] if disturbed["system"] == "dbelief" else 0
    rate = statistics.median(calm["speeds"]) / LEARNERS
    windows = round(leased / rate / recovery_time.STEP_S)
    last = sum(disturbed["speeds"][len(disturbed["speeds"]) - windows :]) * recovery_time.STEP_S
    ended_s, away_s = disturbed["trained_s"] - windows * recovery_time.STEP_S, disturbed["away_s"]
    died_s = [death["at_s"] for death in disturbed["deaths"] if death["part"] == "worker" and death["at_s"] < ended_s]
    living_s = LEARNERS * ended_s - sum(min(away_s, ended_s - at_s) for at_s in died_s)
    due = living_s * rate - len(died_s) * BATCH * ROUND_STEPS / 2
    return float((disturbed["samples"] - disturbed["before"] - last) / due)


def of(rows: runs.Rows, case: Case) -> dict[str, Any] | None:
    """The row of this case; None where it has not run."""
    return next((row for row in rows if row.items() >= case.key.items()), None)


def measure(arguments: argparse.Namespace, rows: runs.Rows) -> None:
    """All runs that the file does not hold yet."""
    python = churn_torch.torch_python() if "torchrun" in arguments.systems and arguments.repeats else None
    there = {"dbelief": True, "torchrun": python is not None}
    systems = [system for system in arguments.systems if (has_torchft() if system == "torchft" else there[system])]
    seconds = arguments.seconds
    for repeat in range(arguments.repeats):
        for system in systems:
            calm = Case(system, arguments.job, "none", seconds, None, arguments.compute_wait, arguments.seed + repeat)
            before = run_case(calm, {"wall_s": seconds}, seconds + START_S, python, rows)
            if not before["samples"]:
                raise SystemExit(f"{calm}: {before['trouble']}: the undisturbed run did not end")
            case = replace(calm, plan=arguments.plan, every_s=arguments.every)
            run_case(case, {"samples": before["samples"]}, LONGEST * seconds + START_S, python, rows)


def run_case(
    case: Case, limits: dict[str, Any], limit_s: float, python: Path | None, rows: runs.Rows
) -> dict[str, Any]:
    """The row of this case, from the file or from a run that is added to it."""
    if (known := of(rows, case)) is not None:
        return known
    try:
        ours = case.system == "dbelief"
        made = train(case, limits, limit_s) if ours else train_peer(case, limits, limit_s, python)
    except TimeoutError as error:
        raise SystemExit(f"{case}: {error}; its logs are in {KEPT}") from error
    rows.append({**case.key, **made})
    short = {name: value for name, value in made.items() if name not in ("speeds", "deaths", "restored")}
    report.progress({**case.key, "speed": speed(made), **short})
    return rows[-1]


Pair = tuple[dict[str, Any], dict[str, Any]]
"""The undisturbed and the disturbed run of one seed."""


def pairs(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[Pair]]:
    """All pairs by system, job, plan, seconds, every_s and wait_s; a disturbed run alone is left out."""
    same = ("system", "job", "seconds", "wait_s", "seed")
    calm = {tuple(row[name] for name in same): row for row in rows if row["plan"] == "none"}
    found: dict[tuple[Any, ...], list[Pair]] = {}
    for row in rows:
        other = calm.get(tuple(row[name] for name in same))
        if row["plan"] != "none" and other is not None:
            key = tuple(row[name] for name in ("system", "job", "plan", "seconds", "every_s", "wait_s"))
            found.setdefault(key, []).append((other, row))
    return found


def recovered(calm: dict[str, Any], disturbed: dict[str, Any], course: str) -> list[tuple[str, float | None]]:
    """(part, recovery time in s) of each kill, in the course of the disturbed or of the calm run."""
    usual = statistics.median(calm["speeds"])
    ran = disturbed if course == "disturbed" else calm
    speeds, last_s = ran["speeds"], ran["trained_s"] - TAIL_S
    kills = [death for death in disturbed["deaths"] if death["code"] is None and death["at_s"] <= last_s]
    times = recovery_time.recoveries(speeds, [death["at_s"] for death in kills], usual)
    return [(death["part"], seconds) for death, seconds in zip(kills, times, strict=True)]


def quantiles(times: list[float | None]) -> dict[str, Any]:
    """Number, p50 and p99 in s; a death after which the speed never came back counts as `NEVER_S`."""
    known = [NEVER_S if seconds is None else seconds for seconds in times]
    p50 = statistics.median(known) if known else None
    p99 = float(np.quantile(known, 0.99, method="higher")) if known else None
    return {"deaths": len(known), "p50_s": p50, "p99_s": p99}


def figures(both: list[Pair]) -> dict[str, Any]:
    """Figures of all repeats of one system, job and plan."""
    felt = [one for calm, disturbed in both for one in recovered(calm, disturbed, "disturbed")]
    noise = [seconds for calm, disturbed in both for _, seconds in recovered(calm, disturbed, "calm")]
    parts = sorted({part for part, _ in felt})
    accuracies = [tuple(100 * row["test_accuracy"] for row in pair) for pair in both if known(*pair)]
    medians = [statistics.median(each) for each in zip(*accuracies, strict=True)]
    found: dict[str, Any] = {
        "repeats": len(both),
        "speeds": [(speed(calm), speed(disturbed)) for calm, disturbed in both],
        "ratio": statistics.median(speed(disturbed) / speed(calm) for calm, disturbed in both),
        "recovery": quantiles([seconds for _, seconds in felt]),
        "noise": quantiles(noise),
        "parts": {part: quantiles([seconds for other, seconds in felt if other == part]) for part in parts},
        "accuracies": accuracies,
        "goodput": [share for pair in both if (share := goodput(*pair)) is not None],
        "points": medians[1] - medians[0] if medians else None,
        "kills": sum(death["code"] is None for _, row in both for death in row["deaths"]),
        "ended_alone": [(d["name"], d["code"]) for _, row in both for d in row["deaths"] if d["code"] is not None],
        "unfinished": sum(row["test_accuracy"] is None for _, row in both),
        "troubles": [row["trouble"] for _, row in both if row["trouble"]],
    }
    for name in ("pushes", "pushes_lost"):
        found[name] = [row[name] for _, row in both if row.get(name) is not None]
    for name in ("restored", "unexplained", "codes"):
        found[name] = [row[name] for _, row in both if row.get(name)]
    joining = [seconds for _, row in both for seconds in row.get("joining_s", [])]
    found["joining_s"] = statistics.mean(joining) if joining else None
    return found


def known(*rows: dict[str, Any]) -> bool:
    """Whether all of them have an accuracy."""
    return all(row["test_accuracy"] is not None for row in rows)


def verdict(plan: str, found: dict[str, Any]) -> str:
    """What does not hold of what is claimed; "" where nothing."""
    wrong = list(found["troubles"])
    if found["unfinished"]:
        wrong.append(f"{found['unfinished']} runs without an accuracy")
    if found["codes"]:
        wrong.append(f"exit codes {found['codes']}")
    if found["unexplained"]:
        wrong.append(f"{len(found['unexplained'])} runs lost pushes without two deaths")
    if plan == "c" and found["goodput"] and min(found["goodput"]) < GOODPUT:
        wrong.append(f"goodput {min(found['goodput']):.1%}")
    if plan == "a":
        if found["ratio"] < RATIO:
            wrong.append(f"{found['ratio']:.0%} of the speed")
        if (found["recovery"]["p99_s"] or 0) > BACK_S:
            wrong.append(f"back after {found['recovery']['p99_s']:.1f} s")
        if abs(found["points"] or 0) > POINTS:
            wrong.append(f"{found['points']:+.2f} points")
    return ", ".join(wrong)


def show(rows: list[dict[str, Any]]) -> bool:
    """Print tables and JSON; whether all that is claimed of dbelief holds."""
    names = ("samples/s kept", "goodput", "deaths", "back p50", "p99", "points", "lost", "wrong")
    table = Table("system", "job", "plan", "runs", *names)
    results, good = [], True
    for (system, job, plan, seconds, every_s, wait_s), both in pairs(rows).items():
        found = figures(both)
        wrong = verdict(plan, found) if system == "dbelief" else ""
        good = good and not wrong
        asked = {"system": system, "job": job, "plan": plan, "seconds": seconds, "every_s": every_s, "wait_s": wait_s}
        results.append({**asked, "wrong": wrong, **found})
        points = "" if found["points"] is None else f"{found['points']:+.2f}"
        ratio = f"{found['ratio']:.1%}"
        rate = f"{plan}: {every_s or USUAL_S[plan]:g} s"
        shares = " ".join(f"{share:.1%}" for share in found["goodput"])
        cells = [system, job, rate, f"{found['repeats']} of {seconds:g} s", ratio, shares]
        lost = f"{sum(found['pushes_lost'])} of {sum(found['pushes'])}" if found["pushes"] else ""
        table.add_row(*cells, *shown(found["recovery"]), points, lost, wrong)
        for part, times in found["parts"].items():
            table.add_row("", "", "", "", part, "", *shown(times), "", "", "")
        table.add_row("", "", "", "", "no kill", "", *shown(found["noise"]), "", "", "")
    report.show(table, {"results": results}, width=160)
    return good


def shown(times: dict[str, Any]) -> list[str]:
    """Cells of `quantiles`."""
    seconds = ["" if times[name] is None else f"{times[name]:.1f} s" for name in ("p50_s", "p99_s")]
    return [str(times["deaths"]), *seconds]


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--plan", choices=PLANS, default="a")
    parser.add_argument("--job", choices=JOBS, default="mnist")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each undisturbed run")
    parser.add_argument("--seed", type=int, default=0, help="of the job and the plan of the first repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--every", type=float, help="seconds between deaths of plan a, or mean life of b, c; else 15, 30, 60"
    )
    waits = "seconds that a worker waits before each gradient, as if it had a processor of its own to compute it"
    parser.add_argument("--compute-wait", type=float, default=0.0, help=waits)
    parser.add_argument("--systems", type=options.words, default=list(SYSTEMS), help="default: all")
    parser.add_argument("--json", type=Path, help="JSON lines: runs that are finished, and where new ones are added")
    arguments = parser.parse_args()
    if unknown := set(arguments.systems) - set(SYSTEMS):
        parser.error(f"no system is called {min(unknown)!r}, only {', '.join(SYSTEMS)}")
    rows = runs.Rows(arguments.json)
    measure(arguments, rows)
    raise SystemExit(0 if show(rows) else 1)


if __name__ == "__main__":
    main()
