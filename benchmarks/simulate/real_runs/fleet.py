"""The machines of a configuration, as a user writes them in a fleet file for `dbelief simulate`.

A worker that waits is a machine of its own with one processor, of which its mini-batch takes as long as it waits and
computes. Groups that share this machine's processors have the same `host`.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

from benchmarks.simulate.plan import COORDINATOR, Configuration
from benchmarks.simulate.real_runs.deployed_job import Places
from benchmarks.simulate.real_runs.own_step import OwnStep

HOST = "here"
PAUSE_S = 1e-3
"""Between leases of members that ask without a pause: a fleet's workers need some time."""


@dataclass(frozen=True)
class Processors:
    """Speed of this machine's processors: see `processor_speed`."""

    speed: float
    together: float

    def fields(self) -> dict[str, Any]:
        """Of a group."""
        own = {"speed": round(self.speed, 3), "together": round(self.together, 3)}
        return {"processors": os.cpu_count() or 1, **own}


def fleet_of(one: Configuration, alone: OwnStep | None, machine: Processors) -> dict[str, Any]:
    """The fleet file's content; `alone`: of the job's mini-batch, None where its members train nothing."""
    cores = machine.fields()
    if one.kind == COORDINATOR:
        served = {"machines": 1, "workers": 0, "shards": 1, "coordinator": True, **cores, "host": HOST}
        step = {"step": f"{(one.every_s or PAUSE_S) / members_steps(one):g}s"}
        return {"groups": [{"name": "servers", **served}, {"name": "members", **_members(one), **step}]}
    assert alone is not None
    shards = one.job["shards"] * one.job["replication"]
    if one.link is None and not one.waiting:
        whole = {"machines": 1, "workers": len(one.waits_s), "shards": shards, "coordinator": True}
        return {"groups": [{"name": "machine", **whole, **cores, **_step(0.0, alone)}]}
    if one.link is None:
        served = {"machines": 1, "workers": 0, "shards": shards, "coordinator": True}
        rows: list[dict[str, Any]] = [{**served, **cores, "host": HOST}]
        for wait_s, same in itertools.groupby(one.waits_s):
            own: dict[str, Any] = {"workers": 1, "shards": 0, "coordinator": False, **cores}
            rows.append({"machines": len(list(same)), **own, **_step(wait_s, alone), "host": HOST})
    else:
        rows = _hosts(one, alone, cores)
    return {"groups": [{"name": f"group-{number}", **row} for number, row in enumerate(rows)]}


def members_steps(one: Configuration) -> int:
    """Mini-batches in a lease of the simulated members."""
    strategy = one.job["strategy"]
    return int(strategy["lease"] // strategy["batch"])


def _members(one: Configuration) -> dict[str, Any]:
    return {"machines": one.members, "workers": 1, "shards": 0, "coordinator": False, "processors": 1, "host": HOST}


def _step(wait_s: float, alone: OwnStep) -> dict[str, Any]:
    """Fields of a mini-batch's time; the waiting has no spread."""
    step_s = wait_s + alone.seconds
    busy = alone.seconds / step_s
    return {"step": f"{1e3 * step_s:.4g}ms", "busy": round(busy, 6), "spread": round(alone.spread * busy, 4)}


def _hosts(one: Configuration, alone: OwnStep, cores: dict[str, Any]) -> list[dict[str, Any]]:
    """Groups of hosts on links, with equal ones that follow each other together; followers are shards too."""
    assert one.link is not None
    places, link = Places.of(one), one.link
    rows: list[dict[str, Any]] = []
    for host in range(1, places.count + 1):
        mine = [wait_s for place, wait_s in zip(places.workers, one.waits_s, strict=True) if place == host]
        shards = sum(place == host for place in places.shards)
        row: dict[str, Any] = {"workers": len(mine), "shards": shards, "coordinator": host == 1, **cores}
        row |= _step(mine[0], alone) if mine else {}
        row |= {"link": f"{link.rate_mbit:g}Mbit", "latency": f"{link.delay_ms:g}ms", "host": HOST}
        if rows and rows[-1].items() >= row.items():
            rows[-1]["machines"] += 1
        else:
            rows.append({"machines": 1, **row})
    return rows
