"""Simulations of a paper's setup: only what it states is counted, no cost of this product's calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from dbelief.job import build_job
from dbelief.simulate.costs import Costs
from dbelief.simulate.description import Scenario
from dbelief.simulate.fleet import Fleet, MachineGroup
from dbelief.simulate.outcome import SimulatedOutcome, run

_FACTORS = ("trips", "slowdown", "lockstep_trips", "lockstep_slowdown", "shared")
LINKS_ONLY = Costs(**{field.name: float(field.name in _FACTORS) for field in fields(Costs)})
"""Costs that leave the links and the computing: calls and additions take no time."""
RULE = {"name": "sgd", "rate": 0.1}
LEASE_STEPS = 1_000_000
"""Mini-batches of a lease: so many that leases do not count."""


def outcome_of(
    strategy: Mapping[str, Any],
    groups: list[Mapping[str, Any]],
    parameters: float,
    seconds: float,
    warm_s: float = 0.0,
    costs: Costs = LINKS_ONLY,
) -> SimulatedOutcome:
    """Simulate a strategy on groups of machines.

    Parameters
    ----------
    strategy, groups
        As in a job file, and in a fleet file.
    parameters
        Number of trained parameters.
    seconds, warm_s
        Simulated seconds; of these, those at the start that are not counted.
    """
    job = build_job(
        {
            "name": "published",
            "model": {"layers": [{"dense": 1}], "loss": "square"},
            "data": {"source": "synthetic", "kind": "regression", "samples": 1000, "features": 4, "noise": 0.0},
            "strategy": {"lease": LEASE_STEPS * strategy["batch"], **strategy},
            "limits": {"wall_s": 10 * seconds},
            "snapshots": {"every_s": None},
        },
        Path(),
    )
    fleet = Fleet(groups=tuple(MachineGroup(**group) for group in groups))
    outcome, _ = run(Scenario(job, fleet, round(parameters), costs, seconds=seconds, warm_s=warm_s))
    return outcome


def step_s(outcome: SimulatedOutcome, batch: float) -> float:
    """Seconds in which each worker makes one mini-batch of so many samples, in the mean."""
    return batch * outcome.workers / outcome.samples_per_s
