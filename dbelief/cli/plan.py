"""Implementation of `dbelief plan` and `dbelief zoo`: resource estimates of a job or a network, without building it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from dbelief.errors import JobError, UserError
from dbelief.job import load_job, nearest
from dbelief.job.document.yaml_document import to_yaml
from dbelief.job.zoo import NETWORKS, Network
from dbelief.plan import NetworkPlan, Plan, Speeds, make_plan, plan_network
from dbelief.plan.tables import planned, zoo_listing
from dbelief.rundir.json_values import plain

REPLICAS, BATCH = 32, 32
"""Batch of a network without a job: the 1,024 samples of FireCaffe's Table 1, on its 32 GPUs."""

_RATE = re.compile(r"([0-9.]+(?:e[-+]?[0-9]+)?) *(?:([kMGT]?)(bit|B)(?:/s)?)?", re.ASCII)


def plan_job(
    what: Path,
    overrides: Mapping[str, str],
    *,
    replicas: int | None = None,
    batch: int | None = None,
    memory_gib: float | None = None,
    speeds: Speeds,
    as_json: bool = False,
) -> None:
    """Print the plan of a job file, or of a zoo network given by name.

    Raises
    ------
    JobError
        There is neither such a file nor such a network, or the job is invalid.
    UserError
        It cannot be planned, or an option was given that does not apply to a network.
    """
    network = None if what.exists() else _network(str(what))
    plan: Plan | NetworkPlan
    if network is None:
        given = {"replicas": replicas, "strategy.batch": batch}
        more = {field: str(value) for field, value in given.items() if value is not None}
        plan = make_plan(load_job(what, {**overrides, **more}), memory_gib, speeds)
    elif overrides or memory_gib is not None:
        raise UserError(f"{what} is a network of the zoo: --set and --memory are for a job that trains it")
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


def bytes_per_s(text: str) -> float:
    """A rate: bytes a second, or with a unit such as 200Mbit, 1Gbit, 125MB.

    Raises
    ------
    ValueError
        The text is not a rate above 0.
    """
    found = _RATE.fullmatch(text.strip())
    rate = float(found[1]) if found is not None and found[1].count(".") < 2 else 0.0
    if found is None or not rate or not math.isfinite(rate):
        raise ValueError(f"{text!r} is no rate: wanted bytes a second, or a unit such as 200Mbit, 1Gbit or 125MB")
    factor = 1e3 ** " kMGT".index(found[2] or " ")
    return rate * factor / (8 if found[3] == "bit" else 1)


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
