"""Runs of `runs` as `dbelief simulate` has them: their costs, and what is predicted of a configuration."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.simulate.plan import COORDINATOR, NETWORKS
from dbelief.data import load
from dbelief.job import Job, load_job
from dbelief.simulate.calibrate import (
    MEASURES,
    RATE,
    RECEIVED,
    SENT,
    SHARDS,
    STALENESS,
    WORKERS,
    MeasuredJob,
    calibrated,
)
from dbelief.simulate.costs import Costs
from dbelief.simulate.description import Scenario
from dbelief.simulate.fleet import load_fleet
from dbelief.simulate.outcome import run

SECONDS, WARM_S = 20.0, 5.0
ROLES = {"worker": "worker", "shard": "shard", "followed shard": "shard", "coordinator": "coordinator"}
"""Of the product, by what is killed."""
Record = Mapping[str, Any]


def costs_of(records: Sequence[Record]) -> Costs:
    """Costs that are fitted to runs.

    Calls of the coordinator are those of loads of it, and starts of processes those of failovers: both are measured by
    themselves. The others are fitted to the rates.
    """
    costs = Costs().with_values(**_calls(records), **_starts(records))
    costs = costs.with_values(**_wake(records, costs))
    jobs = [_measured(record) for record in records if record["configuration"]["kind"] != COORDINATOR]
    return calibrated(jobs, costs)


def _calls(records: Sequence[Record]) -> dict[str, float]:
    closed = [one for one in records if one["measured"].get("beat_ms") is not None]
    names = {"lease_s": "lease_ms", "beat_s": "beat_ms", "report_s": "report_ms"}
    return {
        name: 1e-3 * fmean(one["measured"][theirs] * _speed(one["configuration"]) for one in closed)
        for name, theirs in names.items()
        if closed
    }


def _wake(records: Sequence[Record], costs: Costs) -> dict[str, float]:
    """What paced loads of the coordinator use more than their calls cost without a pause."""
    found = []
    for one in records:
        configuration, measured = one["configuration"], one["measured"]
        if configuration["kind"] == COORDINATOR and configuration["every_s"]:
            load = _job(configuration), configuration["members"], configuration["members"] / configuration["every_s"]
            used = 1e-3 * measured["lease_ms"] * measured["leases_per_s"] * _speed(configuration, alone=True)
            needed = load[2] * costs.lease_s + costs.background(*load)
            calls_per_s = load[2] + sum(costs.calls(*load))
            found.append(max(0.0, (used - needed) / (calls_per_s * (1 - used))))
    return {"coordinator_wake_s": median(found)} if found else {}


def _job(configuration: Record) -> Job:
    return load_job(Path(configuration["job_file"]))


def _speed(configuration: Record, alone: bool = False) -> float:
    """Of the coordinator's processor; members that ask without a pause use the others."""
    leader = load_fleet(Path(configuration["fleet_file"])).leader
    return leader.speed if alone else leader.speed * leader.together


def _starts(records: Sequence[Record]) -> dict[str, float]:
    """Seconds from a start until a process serves: failovers less the time until it was started."""
    found: dict[str, list[float]] = {}
    for one in records:
        kill, took_s = one["configuration"]["kill"], one["measured"].get("failover_s")
        if kill is not None and took_s is not None and not (kill["role"] == "followed shard" and kill["away_s"]):
            name = "coordinator_start_s" if kill["role"] == "coordinator" else "start_s"
            found.setdefault(name, []).append(max(0.0, took_s - kill["away_s"]))
    return {name: median(values) for name, values in found.items()}


def _measured(record: Record) -> MeasuredJob:
    configuration = record["configuration"]
    figures = {name: value for name, value in record["measured"].items() if name in MEASURES}
    for measure, prefix in ((WORKERS, "worker-"), (SHARDS, "ps-")):
        figures[measure] = sum(used for name, used in record["processors"].items() if name.startswith(prefix))
    return MeasuredJob(record["name"], functools.partial(_scenario, configuration), figures)


def _scenario(configuration: Record, costs: Costs) -> Scenario:
    fleet = load_fleet(Path(configuration["fleet_file"]))
    job = load_job(Path(configuration["job_file"]))
    job = job.model_copy(update={"replicas": fleet.workers, "shards": max(1, fleet.shards // job.replication)})
    kill = configuration["kill"]
    if kill is not None:
        groups = tuple(group.model_copy(update={"returns": kill["away_s"]}) for group in fleet.groups)
        fleet = fleet.model_copy(update={"groups": groups})
    parameters = NETWORKS[configuration["network"]].parameters
    return Scenario(job, fleet, parameters, costs, _samples(configuration["job_file"]), SECONDS, WARM_S)


@functools.cache
def _samples(job_file: str) -> int:
    """Samples of a job's training set, which the size of a lease depends on."""
    train = load(load_job(Path(job_file)).data, Path()).train
    assert train is not None
    return len(train.inputs)


def predicted(configuration: Record, costs: Costs) -> dict[str, float | None]:
    """By measure; of a load of the coordinator its own."""
    if configuration["kind"] == COORDINATOR:
        return _load(configuration, costs)
    outcome, _ = run(_scenario(configuration, costs))
    kill = configuration["kill"]
    return {
        RATE: outcome.samples_per_s,
        STALENESS: outcome.staleness_mean,
        SENT: outcome.sent_per_s,
        RECEIVED: outcome.received_per_s,
        "failover_s": None if kill is None else outcome.failover_s[ROLES[kill["role"]]],
    }


def _load(configuration: Record, costs: Costs) -> dict[str, float | None]:
    """Of members that ask without a pause, or every so many seconds."""
    members, every_s, speed = configuration["members"], configuration["every_s"], _speed(configuration)
    if not every_s:
        return {
            "leases_per_s": speed / costs.lease_s,
            "lease_ms": 1e3 * costs.lease_s / speed,
            "beat_ms": 1e3 * costs.beat_s / speed,
            "report_ms": 1e3 * costs.report_s / speed,
        }
    leases_per_s = members / every_s
    job = _job(configuration)
    share = costs.coordinator_share(job, members, leases_per_s) / _speed(configuration, alone=True)
    return {"leases_per_s": leases_per_s, "lease_ms": 1e3 * share / leases_per_s}
