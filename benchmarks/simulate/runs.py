"""Real runs on which the simulation of jobs is calibrated and checked: 40 configurations that a seed draws (plan.py).

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.simulate.runs --seed 1 --folder runs/simulate [--only 3,17]
        [--seconds 20]

Each configuration runs for so many seconds after all its workers train, in an order that the seed draws too. A folder
of its own, FOLDER/NN, gets job.yaml and fleet.yaml, as a user would write them, the job's events.jsonl, and run.json,
whose fields are:

    configuration   what was run (plan.py)
    measured        samples/s, mean staleness in versions, bytes of all workers a second; seconds from the kill until
                    the role serves again (failover_s) and until the speed is back (recovered_s); of a coordinator's
                    load, leases/s, and processor ms of a lease, a heartbeat and a report
    workers         by worker, its own time by phase, mini-batches, pushes and bytes
    processors      processors in use by each process of the run
    others          those in use by other programs of this machine: where they are many, the run was disturbed
    step            seconds of a mini-batch of a worker alone, the less of before and after the run; and their spread
    failover        the kill, and what happened after it in watched_s seconds
    error           why there is no measurement, after two attempts; null else (failures: of all attempts)

What is in the folder is not run again. Where a process is killed, this happens after what is measured without it. Runs
on links are left out where DBELIEF_HOSTNET names no program that makes hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import hosts, options, report
from benchmarks.harness.runs import wait_for
from benchmarks.simulate.plan import COORDINATOR, SANDBLASTER, Configuration, make_plan
from benchmarks.simulate.real_runs import measured
from benchmarks.simulate.real_runs.coordinator_load import coordinator_load
from benchmarks.simulate.real_runs.deployed_job import START_S, DeployedJob, deployed_job
from benchmarks.simulate.real_runs.failovers import KilledProcess, phases_of, recovered_s, served_s
from benchmarks.simulate.real_runs.fleet import Processors, fleet_of
from benchmarks.simulate.real_runs.own_step import OwnStep, own_step
from benchmarks.simulate.real_runs.processor_speed import processor_speed, together
from benchmarks.simulate.real_runs.step_spread import step_spread
from dbelief.job import build_job
from dbelief.job.document.yaml_document import to_yaml

FOLDER = Path("runs/simulate")
RUN, JOB, FLEET, EVENTS = "run.json", "job.yaml", "fleet.yaml", "events.jsonl"
ATTEMPTS = 2
"""On a busy machine a member may miss its heartbeats before training begins, and ends."""
FIRST_STEPS, SETTLED_S = 3, 2.0
"""Mini-batches of each worker, and the time after them, which do not count."""
USUAL_S, AFTER_S, WATCHED_S = 2.0, 4.0, 25.0
"""Seconds that the counters are read before a kill, after the role serves again, and after a kill at most."""
KILLED_SHARE = 0.6
"""Of the seconds, the part before the kill."""
STEP_S = 2.0
"""Of a run of one worker before and after, for the time of its mini-batch."""
LEASE_S = 30.0
LOAD_SHARE = 0.5
"""Of the seconds, for a coordinator's load in a closed loop."""


def run(one: Configuration, seconds: float, hostnet: Path | None, shared: float) -> dict[str, Any]:
    """The record of a configuration; `error` has why there are no figures. `shared`: see `Processors.together`."""
    began_s = time.monotonic()
    record: dict[str, Any] = {"configuration": one.to_dict(), "name": one.name}
    errors: list[str] = []
    while len(errors) < ATTEMPTS and "measured" not in record:
        try:
            record |= _figures(one, seconds, hostnet, shared)
        except (Exception, SystemExit) as failure:
            if isinstance(failure, SystemExit) and failure.code == 128 + signal.SIGTERM:
                raise  # this program is ended, not a process of the run
            errors.append(f"{type(failure).__name__}: {failure}")
    error = None if "measured" in record else errors[-1]
    return {**record, "error": error, "failures": errors, "took_s": round(time.monotonic() - began_s, 1)}


def _figures(one: Configuration, seconds: float, hostnet: Path | None, shared: float) -> dict[str, Any]:
    if one.kind == COORDINATOR:
        speed = processor_speed()
        found = coordinator_load(one, seconds if one.every_s else LOAD_SHARE * seconds)
        return {**found, "fleet": fleet_of(one, None, Processors(max(speed, processor_speed()), shared))}
    job, found = build_job(dict(one.job), Path()), dict[str, Any]()
    steps, speeds = [own_step(one, STEP_S)], [processor_speed()]
    with deployed_job(one, seconds + START_S + WATCHED_S, hostnet) as deployed:
        deployed.train(FIRST_STEPS)
        time.sleep(SETTLED_S)
        before_s = seconds if one.kill is None else KILLED_SHARE * seconds
        found |= _window(deployed, one, before_s)
        if one.kill is not None:
            failover = _killed(deployed, one, found["measured"]["samples_per_s"])
            found["failover"] = failover
            found["measured"] |= {name: failover[name] for name in ("failover_s", "recovered_s")}
        found["events"] = deployed.events()
    steps.append(own_step(one, STEP_S))
    machine = Processors(max(processor_speed(), *speeds), shared)
    step = OwnStep(min(steps), step_spread(job))
    return {**found, "step": dataclasses.asdict(step), "fleet": fleet_of(one, step, machine)}


def _window(deployed: DeployedJob, one: Configuration, seconds: float) -> dict[str, Any]:
    """What the job does in so many seconds."""
    processors = measured.processors(deployed.processes)
    before, began_s = deployed.onlooker.ask("status"), time.monotonic()
    time.sleep(seconds)
    after, took_s = deployed.onlooker.ask("status"), time.monotonic() - began_s
    used, others = measured.processors_used(processors, measured.processors(deployed.processes), took_s)
    deployed.check()
    begin_s, end_s, events = before["elapsed_s"], after["elapsed_s"], deployed.events()
    if one.kind == SANDBLASTER:
        rows, speed = measured.batch_rows(before, after), measured.passes_speed(events, begin_s, end_s)
    else:
        rows = measured.worker_rows(build_job(dict(one.job), Path()), before, after)
        speed = measured.speed(events, begin_s, end_s)
    if speed is None:
        raise SystemExit(f"too few events in {end_s - begin_s:.0f} s for a speed")
    grouped = _grouped(deployed, one, speed)
    moved = {
        f"bytes_{way}_per_s": measured.bytes_per_s(rows, way, speed, took_s) + grouped for way in ("sent", "received")
    }
    figures = {"samples_per_s": speed, "staleness_mean": measured.staleness(before, after), **moved}
    kept = ("samples", "staleness", "staleness_mean", "lease_samples", "rounds", "batch")
    return {
        "measured": figures,
        "window_s": round(end_s - begin_s, 2),
        "workers": rows,
        "processors": used,
        "others": others,
        "statuses": [{name: status[name] for name in kept} for status in (before, after)],
    }


def _grouped(deployed: DeployedJob, one: Configuration, samples_per_s: float) -> float:
    """Bytes a second between the workers of a group; 0 where they exchange with the shards only.

    They report them at the end of a lease.
    """
    strategy = build_job(dict(one.job), Path()).strategy
    if not strategy.grouped:
        return 0.0
    file = deployed.run.run / "reduction.json"
    wait_for(lambda: file.exists() or None, "the traffic of a group", LEASE_S)
    steps_per_s: float = samples_per_s / (one.job["strategy"]["batch"] * len(one.waits_s))
    return measured.group_bytes(json.loads(file.read_text())) * steps_per_s


def _killed(deployed: DeployedJob, one: Configuration, usual: float) -> dict[str, Any]:
    """Kill a process, start it again, and watch until its role serves and some seconds more."""
    assert one.kill is not None
    deployed.onlooker.ask("count")
    time.sleep(USUAL_S)
    at_s, at_wall_s = time.monotonic(), time.time()
    name = deployed.kill(one.kill.role)
    number = int(name.rpartition("-")[2]) if one.kill.role == "worker" else 0
    kill = KilledProcess(one.kill.role, name, number, at_s, at_wall_s)
    time.sleep(one.kill.away_s)
    deployed.start(name)

    def looks() -> Any:
        return deployed.onlooker.ask("counted")

    def serves() -> float | None:
        time.sleep(0.2)
        return served_s(kill, phases_of(kill, deployed.events()), looks())

    served: float | None = None
    with contextlib.suppress(TimeoutError):
        served = wait_for(serves, "the role", WATCHED_S - one.kill.away_s)
        time.sleep(AFTER_S)
    watched_s = round(time.monotonic() - at_s, 1)
    back_s, phases = recovered_s(kill, looks(), usual), phases_of(kill, deployed.events())
    return {
        **dataclasses.asdict(kill),
        "failover_s": served,
        "recovered_s": back_s,
        "watched_s": watched_s,
        "phases": phases,
    }


def ordered(configurations: Sequence[Configuration], seed: int) -> list[Configuration]:
    """The order in which they are run: those of both parts are mixed."""
    return random.Random(f"{seed} order").sample(list(configurations), len(configurations))


def missing(configurations: Sequence[Configuration], folder: Path) -> Iterator[Configuration]:
    """Those that have no record in the folder when their turn comes."""
    return (one for one in configurations if not (place(folder, one.number) / RUN).exists())


def place(folder: Path, number: int) -> Path:
    """Folder of a configuration."""
    return folder / f"{number:02}"


def write(folder: Path, one: Configuration, record: dict[str, Any]) -> None:
    """Write a configuration's files; run.json last."""
    mine = place(folder, one.number)
    mine.mkdir(parents=True, exist_ok=True)
    (mine / JOB).write_text(to_yaml(dict(one.job)))
    if (fleet := record.pop("fleet", None)) is not None:
        (mine / FLEET).write_text(to_yaml(fleet))
    events = record.pop("events", [])
    (mine / EVENTS).write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (mine / RUN).write_text(json.dumps(record, indent=1))


def main() -> None:
    """Run what is missing."""
    parser = options.new_parser(__doc__)
    hosts.add_hostnet(parser)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--only", type=options.numbers, help="numbers of configurations")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    chosen = [one for one in make_plan(arguments.seed) if arguments.only is None or one.number in arguments.only]
    if any(one.link for one in chosen) and hosts.left_out(__file__, arguments.hostnet):
        chosen = [one for one in chosen if one.link is None]
    os.environ["DBELIEF_INSECURE"] = "1"
    rows, shared = [], together()
    for one in missing(ordered(chosen, arguments.seed), arguments.folder):
        record = run(one, arguments.seconds, arguments.hostnet, shared)
        write(arguments.folder, one, record)
        kept = {name: record.get(name) for name in ("name", "measured", "others", "took_s", "error")}
        rows.append({"number": one.number, "part": one.part, **kept})
        report.progress(rows[-1])
    settings = {"seed": arguments.seed, "seconds": arguments.seconds, "together": shared}
    report.print_figures({**settings, "rows": rows})


if __name__ == "__main__":
    main()
