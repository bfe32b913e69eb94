"""Runs that have ended, as what a simulation is calibrated on and checked with."""

from __future__ import annotations

import functools
from pathlib import Path

from dbelief.advise.measurements import Measurements, WorkerLoad, of_summary
from dbelief.errors import UserError
from dbelief.job import Job, load_job
from dbelief.monitor.status import JobLocation, get_status
from dbelief.rundir.summary import Summary

from .calibrate import RATE, RECEIVED, SENT, SHARDS, STALENESS, WORKERS, MeasuredJob
from .costs import Costs
from .description import Scenario
from .fleet import Fleet, MachineGroup

FULL = 0.8
"""Use of a machine's processors from which on its processes wait for them."""
_SHARE_S = 0.25
"""Share of the simulated time that is not counted."""
_LONGEST_S = 60.0


def measured_run(folder: Path, fleet: Fleet | None = None) -> MeasuredJob:
    """A run that has ended, by its folder.

    Parameters
    ----------
    fleet
        Its machines; None: one machine, as the run has measured it.

    Raises
    ------
    UserError
        It has not ended, or measured too little; or its processes were on several machines, which `fleet` has to name.
    """
    found = get_status(JobLocation.of(str(folder)))
    if not isinstance(found, Summary):
        raise UserError(f"{folder}: the run has not ended, so that nothing can be calibrated on it")
    job = load_job(folder / "job.yaml")
    measured = of_summary(job, found)
    if missing := measured.missing():
        raise UserError(f"{folder}: it has not trained long enough to know: {missing}")
    machines = fleet or _one_machine(folder, measured, job.replication)
    shards = max(1, machines.shards // job.replication)
    job = job.model_copy(update={"replicas": machines.workers, "shards": shards})
    scenario = functools.partial(_scenario, job, machines, found.parameters, measured)
    longest_s = max(worker.time_s for worker in measured.workers)
    figures = {
        RATE: measured.samples_per_s,
        SENT: sum(worker.sent for worker in measured.workers) / longest_s,
        RECEIVED: sum(worker.received for worker in measured.workers) / longest_s,
    }
    if found.staleness_mean is not None:
        figures[STALENESS] = found.staleness_mean
    for measure, members in ((WORKERS, measured.workers), (SHARDS, measured.shards)):
        used = [member.processors.used for member in members if member.processors is not None]
        if len(used) == len(members) and (measure == WORKERS or job.replication == 1):  # followers' are not measured
            figures[measure] = sum(used)
    return MeasuredJob(str(folder), scenario, figures)


def _scenario(job: Job, fleet: Fleet, parameters: int, measured: Measurements, costs: Costs) -> Scenario:
    seconds = min(_LONGEST_S, max(worker.time_s for worker in measured.workers))
    unlimited = job.model_copy(update={"limits": job.limits.model_copy(update={"epochs": None, "samples": None})})
    lease = {"lease": measured.lease_samples} if measured.lease_samples else {}
    unlimited = unlimited.model_copy(update={"strategy": job.strategy.model_copy(update=lease)})
    return Scenario(unlimited, fleet, parameters, costs, 0, seconds, _SHARE_S * seconds)


def _one_machine(folder: Path, measured: Measurements, copies: int) -> Fleet:
    """The machine of a run whose processes shared one; `copies`: of each shard."""
    machines = measured.machines
    if len(machines) != 1 or measured.across_links:
        raise UserError(
            f"{folder}: its processes were on {len(machines) or 'unknown'} machines or in several networks: "
            "--machines names them"
        )
    processors = max(1, round(machines[0].free))
    full = machines[0].busy_share > FULL
    groups = [
        MachineGroup(
            name=f"worker-{worker.number}",
            host="machine",
            processors=processors,
            step=_step_s(worker, full),
            busy=min(1.0, _busy_s(worker) / _step_s(worker, full)),
        )
        for worker in measured.training
    ]
    shards = copies * len(measured.shards)
    servers = MachineGroup(name="servers", host="machine", workers=0, shards=shards, processors=processors)
    return Fleet(groups=(*groups, servers))


def _busy_s(worker: WorkerLoad) -> float:
    """Processor seconds of a mini-batch's computing and data."""
    step_s = worker.step_s("compute", "data")
    if worker.processors is None or not worker.time_s:
        return step_s
    used_s = worker.processors.used * worker.time_s / worker.steps
    return min(step_s, used_s * step_s * worker.steps / worker.time_s)


def _step_s(worker: WorkerLoad, full: bool) -> float:
    """Seconds of a mini-batch alone on a processor; where all are in use, those that it has used."""
    return max(1e-6, _busy_s(worker) if full else worker.step_s("compute", "data"))
