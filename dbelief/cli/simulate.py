"""Implementation of `dbelief simulate`: one job on a fleet, and costs fitted to runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dbelief.errors import UserError
from dbelief.job import Job, PythonModel, ScriptModel, load_job
from dbelief.job.document import quantities
from dbelief.plan import make_plan
from dbelief.plan.sample import sample_of
from dbelief.process.atomic_file import write_whole
from dbelief.rundir.json_values import plain
from dbelief.simulate.calibrate import calibrated
from dbelief.simulate.costs import Costs, costs_yaml, load_costs
from dbelief.simulate.description import KILLS, Scenario
from dbelief.simulate.fleet import load_fleet
from dbelief.simulate.measured_runs import measured_run
from dbelief.simulate.outcome import run
from dbelief.simulate.recorded import ROOM, delays_of
from dbelief.simulate.tables import calibration, simulated


def simulate_job(
    job_file: Path,
    overrides: Mapping[str, str],
    fleet_file: Path,
    *,
    seconds: float,
    warm_s: float,
    parameters: int | None,
    samples: int | None,
    costs_file: Path | None,
    kills: tuple[str, ...],
    seed: int,
    delays_file: Path | None,
    pushes: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate a job on a fleet, and print what came of it.

    Raises
    ------
    JobError
        The job or the fleet file is invalid.
    UserError
        The job cannot be simulated, an option is wrong, or a file cannot be written.
    """
    if warm_s >= seconds:
        raise UserError(f"--after {warm_s:g}s leaves nothing of the {seconds:g} s that are simulated")
    job, fleet = load_job(job_file, overrides), load_fleet(fleet_file)
    given = parameters if parameters is not None else _parameters(job, job_file)
    found = samples if samples is not None else _samples(job)
    job = job.model_copy(update={"replicas": fleet.workers, "shards": max(1, fleet.shards // job.replication)})
    scenario = Scenario(
        job,
        fleet,
        given,
        Costs() if costs_file is None else load_costs(costs_file),
        found,
        seconds,
        warm_s,
        seed,
        _kills(kills),
    )
    outcome, world = run(scenario)
    if delays_file is not None:
        # Without the job's end, whose last leases are shorter: a replay goes round.
        traced = replace(scenario, traced=ROOM * pushes, endless=True)
        delays_of(traced, run(traced)[1], pushes).write(delays_file)
    if plot is not None:
        from dbelief.tools.report.simulation import draw

        draw(plot, scenario, outcome, world)
    if as_json:
        print(json.dumps(plain({"job": job.name, **outcome.described()})))
    else:
        Console().print(simulated(scenario, outcome))


def calibrate_costs(
    runs: Sequence[Path], others: Sequence[Path], fleet_file: Path | None, costs_file: Path | None
) -> None:
    """Fit costs to runs, write them, and print the errors on these and on others.

    Raises
    ------
    UserError
        A run is none that can be calibrated on.
    WriteFailed
        The file of costs cannot be written.
    """
    fleet = None if fleet_file is None else load_fleet(fleet_file)
    jobs, checks = ([measured_run(folder, fleet) for folder in some] for some in (runs, others))
    costs = calibrated(jobs)
    Console().print(calibration(costs, jobs, checks))
    if costs_file is not None:
        write_whole(costs_file, costs_yaml(costs).encode())
    else:
        print(costs_yaml(costs), end="")


def _parameters(job: Job, job_file: Path) -> int:
    """Number of trained parameters."""
    if isinstance(job.model, ScriptModel | PythonModel):
        raise UserError(f"{job_file}: the number of parameters is known once the model is built: give --parameters")
    return make_plan(job).communication.volumes.parameters


def _samples(job: Job) -> int:
    """Samples of the training set; 0 where only a stream or a script knows them."""
    if isinstance(job.model, ScriptModel | PythonModel):
        return 0
    data = sample_of(job).data
    return len(data.train) if data is not None and data.train is not None else 0


def _kills(options: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for option in options:
        role, at, time = option.partition("@")
        if role not in KILLS or not at or role in found:
            raise UserError(f"--kill {option}: wanted ROLE@TIME once for each of {', '.join(KILLS)}, as shard@10min")
        try:
            found[role] = quantities.seconds(time)
        except ValueError as error:
            raise UserError(f"--kill {option}: {error}") from None
    return found
