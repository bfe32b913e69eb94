"""Jobs and fleets of the tests of simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbelief.job import Job
from dbelief.job.load import build_job
from dbelief.simulate.costs import Costs
from dbelief.simulate.description import Scenario
from dbelief.simulate.fleet import Fleet, MachineGroup

RULE = {"name": "sgd", "rate": 0.1}
FREE = Costs(
    lease_s=0.0,
    report_s=0.0,
    beat_s=0.0,
    join_s=0.0,
    push_call_s=0.0,
    push_number_s=0.0,
    fetch_call_s=0.0,
    fetch_number_s=0.0,
    client_call_s=0.0,
    client_number_s=0.0,
    wake_s=0.0,
    rounds=1.0,
    message_s=0.0,
    message_byte_s=0.0,
    idle=0.0,
    coordinator_wake_s=0.0,
    trips=1.0,
    slowdown=1.0,
    lockstep_trips=1.0,
    lockstep_slowdown=1.0,
    jitter_s=0.0,
    snapshot_byte_s=0.0,
)
"""Calls and bytes that cost nothing beyond the links."""


def job(strategy: dict[str, Any] | None = None, **fields: Any) -> Job:
    """A small job; of Downpour with these fields where they name no other strategy."""
    downpour = {"name": "downpour", "batch": 10, "rule": RULE, "lease": 10_000, "warm_start": None}
    made = strategy if strategy and "name" in strategy else {**downpour, **(strategy or {})}
    whole = {
        "name": "simulated",
        "model": {"layers": [{"dense": 1}], "loss": "square"},
        "data": {"source": "synthetic", "kind": "regression", "samples": 1000, "features": 4, "noise": 0.0},
        "strategy": made,
        "limits": {"wall_s": 1e6},
        "snapshots": {"every_s": None},
        **fields,
    }
    return build_job(whole, Path.cwd())


def fleet(machines: int = 4, shards: int = 1, servers: dict[str, Any] | None = None, **group: Any) -> Fleet:
    """One machine for each worker, and one with all shards."""
    fields: dict[str, Any] = {"name": "workers", "machines": machines, "step": 1.0, "spread": 0.0, **group}
    hosts = {"name": "servers", "workers": 0, "shards": shards, **(servers or {})}
    return Fleet(groups=(MachineGroup(**fields), MachineGroup(**hosts)))


def scenario(of: Job | None = None, on: Fleet | None = None, **fields: Any) -> Scenario:
    """A scenario whose calls are free."""
    return Scenario(of or job(), on or fleet(), **{"parameters": 1000, "costs": FREE, "seconds": 1000.0, **fields})
