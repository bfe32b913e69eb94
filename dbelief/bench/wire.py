"""`dbelief bench wire`: speed of pulling parameters and pushing gradients, compared with a bare socket.

One worker process and one shard process: one vector cut into segments as in a job, over loopback TCP and through shared
memory. Baselines, also between two processes: the same bytes through a bare socket into preallocated memory, once with
default settings, which is the ratios' baseline, and once in the fastest known way; a copy within this process; and if
requested and installed, torch's gloo, torch RPC and Ray. All alternate within each round, for each of several sizes. A
peer that keeps a core busy is measured in separate rounds, together with the socket.

Afterwards several workers pull and push concurrently on several shards; and a model of MNIST's size is pulled from and
pushed to two shards, to measure the processor time of a step on both sides together.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dbelief.errors import RuntimeFailure

from .baselines import Copy, Socket
from .concurrent_workers import crowds, small
from .interleave import Way, figures, rounds
from .ray_peer import Ray
from .shards import Shards
from .torch_peer import Gloo, TorchRpc
from .workers import Ours

SMALLER_MIB, MORE = 32, 4
"""Blocks below `SMALLER_MIB` MiB get `MORE` times as many rounds: they are quick, and percentiles need many samples."""


@dataclass(frozen=True)
class Wanted:
    """Selection of measurements.

    Attributes
    ----------
    transports
        Of "tcp" and "shm".
    sizes
        Of the vector, in MiB.
    rounds
        For each size.
    peers
        Whether torch and Ray are measured.
    workers, shards
        Numbers of workers and of shards in the concurrent measurements.
    turns, crowd_mib
        Pushes, and pulls, of each concurrent measurement; size of each, in MiB.
    steps
        Pulls and pushes of the small model.
    """

    transports: Sequence[str]
    sizes: Sequence[int]
    rounds: int
    peers: bool
    workers: Sequence[int]
    shards: Sequence[int]
    turns: int
    crowd_mib: int
    steps: int


def measure(wanted: Wanted) -> dict[str, Any]:
    """All measurements; see `dbelief bench wire --help`.

    Raises
    ------
    RuntimeFailure
        A required process does not start, or exits.
    """
    with tempfile.TemporaryDirectory(prefix="dbelief-bench-") as name:
        folder = Path(name)
        found: dict[str, Any] = {"rounds": wanted.rounds, "cores": os.cpu_count(), "missing": {}}
        others = _others(wanted, found["missing"]) if wanted.peers else []
        found["ways"] = _beside_each_other(folder, wanted, [one for one in others if not one.busy], found["missing"])
        for other in others:
            if other.busy:
                found["ways"] += _beside_a_socket(folder, wanted, other, found["missing"])
        found["crowds"] = crowds(
            folder, wanted.transports, wanted.workers, wanted.shards, wanted.turns, wanted.crowd_mib << 20
        )
        found["small"] = [small(folder, transport, wanted.steps) for transport in wanted.transports]
    return found


@dataclass(frozen=True)
class Other:
    """A third-party baseline, measured where it is installed; `busy`: its background threads keep cores busy."""

    name: str
    package: str
    make: Callable[[ExitStack, Path], Way]
    busy: bool


def _others(wanted: Wanted, missing: dict[str, str]) -> list[Other]:
    """The baselines that are installed; the others are recorded in `missing`."""
    all_of_them = [
        Other(Gloo.name, "torch", Gloo, busy=False),
        Other(TorchRpc.name, "torch", TorchRpc, busy=True),
        Other(Ray.name, "ray", partial(Ray, largest=max(wanted.sizes) << 20), busy=True),
    ]
    found = [other for other in all_of_them if importlib.util.find_spec(other.package)]
    missing |= {other.name: f"{other.package} is not installed" for other in all_of_them if other not in found}
    return found


def _begin(stack: ExitStack, folder: Path, others: Sequence[Other], missing: dict[str, str]) -> list[Way]:
    """The baselines that start; the others are recorded in `missing`."""
    ways: list[Way] = []
    for other in others:
        try:
            ways.append(other.make(stack, folder))
        except RuntimeFailure as error:
            missing[other.name] = str(error)
    return ways


def _beside_each_other(
    folder: Path, wanted: Wanted, others: Sequence[Other], missing: dict[str, str]
) -> list[dict[str, Any]]:
    rows = []
    with ExitStack() as stack:
        theirs: list[Way] = [Socket(stack, folder), Socket(stack, folder, fast=True), Copy()]
        theirs += _begin(stack, folder, others, missing)
        for mib in wanted.sizes:
            with ExitStack() as here:
                trained = here.enter_context(Shards(folder, mib << 18))
                averaged = here.enter_context(Shards(folder, mib << 18, rule="elastic"))
                ours: list[Way] = [
                    Ours(here, folder, transport, number, trained, averaged)
                    for number, transport in enumerate(wanted.transports)
                ]
                rows += _rows([*ours, *theirs], wanted, mib, None)
    return rows


def _beside_a_socket(folder: Path, wanted: Wanted, other: Other, missing: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of separate rounds with one baseline and the socket; empty where the baseline does not start."""
    with ExitStack() as stack:
        ways = _begin(stack, folder, [other], missing)
        if not ways:
            return []
        ways.append(Socket(stack, folder))
        return [row for mib in wanted.sizes for row in _rows(ways, wanted, mib, other.name)]


def _rows(ways: Sequence[Way], wanted: Wanted, mib: int, beside: str | None) -> list[dict[str, Any]]:
    """Rows of the measured rounds; `beside`: name of the way that keeps cores busy, if it is among them."""
    for way in ways:
        way.prepare(mib << 20)
    count = wanted.rounds * (MORE if mib < SMALLER_MIB else 1)
    return [{"mib": mib, "beside": beside, "rounds": count, **row} for row in figures(rounds(ways, count), mib << 20)]
