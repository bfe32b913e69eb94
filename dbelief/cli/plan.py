"""Implementation of `dbelief plan` and `dbelief zoo`: resource estimates of a job or a network, without building it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from dbelief.errors import JobError, UserError
from dbelief.job import PythonModel, ScriptModel, load_job, nearest
from dbelief.job.document.yaml_document import to_yaml
from dbelief.job.zoo import NETWORKS, Network
from dbelief.plan import NetworkPlan, Plan, SizedPlan, Speeds, make_plan, plan_network, plan_sized
from dbelief.plan.measured import measured
from dbelief.plan.tables import planned, zoo_listing
from dbelief.rundir.json_values import plain

REPLICAS, BATCH = 32, 32
"""Batch of a network without a job: the 1,024 samples of FireCaffe's Table 1, on its 32 GPUs."""


def plan_job(
    what: Path,
    overrides: Mapping[str, str],
    *,
    replicas: int | None = None,
    batch: int | None = None,
    parameters: int | None = None,
    memory_gib: float | None = None,
    rows: Mapping[str, int] | None = None,
    keys: Mapping[str, int] | None = None,
    speeds: Speeds,
    as_json: bool = False,
) -> None:
    """Print the plan of a job file, of a run's job, or of a zoo network given by name.

    `rows`, `keys`: by table; None: none were given.

    Raises
    ------
    JobError
        There is neither such a file nor such a network, or the job is invalid.
    UserError
        It cannot be planned, or an option was given that does not apply to it.
    RuntimeFailure
        It is a run that has no summary, and whose coordinator does not answer.
    """
    if speeds.flops is not None and speeds.step_s is not None:
        raise UserError("--flops and --step both give the time of a mini-batch: give one of them")
    network = None if what.exists() else _network(str(what))
    plan: Plan | NetworkPlan | SizedPlan
    if network is None:
        given = {"replicas": replicas, "strategy.batch": batch}
        more = {field: str(value) for field, value in given.items() if value is not None}
        plan = _planned(what, {**overrides, **more}, parameters, memory_gib, Counts(rows or {}, keys or {}), speeds)
    elif overrides or memory_gib is not None or parameters is not None or rows or keys:
        raise UserError(
            f"{what} is a network of the zoo: --set, --memory, --parameters, --rows and --keys are for a job that "
            "trains it"
        )
    else:
        plan = plan_network(network, replicas or REPLICAS, batch or BATCH, speeds)
    if as_json:
        print(json.dumps(plain(plan.described())))
    else:
        Console().print(planned(plan))


def print_zoo(name: str | None) -> None:
    """Print all networks of the zoo, or one as a job file's `model` section.

    Raises
    ------
    JobError
        There is no such network.
    UserError
        No job can train the network.
    """
    if name is None:
        Console().print(zoo_listing([plan_network(one, REPLICAS, BATCH) for one in NETWORKS.values()]))
        return
    network = NETWORKS.get(name)
    if network is None:
        raise JobError(f"{name}: {_unknown(name)}")
    if network.chain is None:
        raise UserError(f"{name} has branches, which a job's layers have not: dbelief plan {name} counts it")
    print(to_yaml({"model": {"layers": network.chain, "loss": network.loss}}), end="")


class Counts(NamedTuple):
    """Rows, and distinct keys of a mini-batch, by table."""

    rows: Mapping[str, int]
    keys: Mapping[str, int]


def _planned(
    what: Path,
    fields: Mapping[str, str],
    parameters: int | None,
    memory_gib: float | None,
    counts: Counts,
    speeds: Speeds,
) -> Plan | SizedPlan:
    """The plan of a job file, or of the job of a run with what the run has measured."""
    run = what if what.is_dir() else None
    job = load_job(what if run is None else run / "job.yaml", fields)
    sized = parameters is not None or isinstance(job.model, ScriptModel | PythonModel)
    if run is not None and (speeds.step_s is None or (sized and parameters is None)):
        found = measured(run)
        parameters = found.parameters if sized and parameters is None else parameters
        if speeds.step_s is None and speeds.flops is None and job.samples_at_once == found.samples:
            speeds = replace(speeds, step_s=found.step_s)
    if any(counts) and not job.tables:
        raise UserError(f"--rows and --keys are for the tables of a job, and {what} has none")
    if not sized:
        return make_plan(job, memory_gib, speeds, *counts)
    if parameters is None:
        raise UserError(
            f"{what}: the number of parameters is known once the model is built: give --parameters, such as 25M, "
            "or a run folder of the job in place of its file"
        )
    if (memory_gib is not None and not job.tables) or speeds.flops is not None:
        wrong = "--memory" if speeds.flops is None else "--flops"
        raise UserError(f"{wrong} needs the layers of a model, and {what} has none; the time of a mini-batch is --step")
    return plan_sized(job, parameters, speeds, *counts, memory_gib)


def _network(name: str) -> Network | None:
    """The network of this name; None where the name may be a file's.

    Raises
    ------
    JobError
        It is a bare name, and no network has it.
    """
    if name not in NETWORKS and re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise JobError(f"{name}: no such file, and {_unknown(name)}")
    return NETWORKS.get(name)


def _unknown(name: str) -> str:
    near = nearest(name, NETWORKS)
    hint = f"; did you mean {near}?" if near else ""
    return f"no network of the zoo ({', '.join(NETWORKS)}){hint}"
