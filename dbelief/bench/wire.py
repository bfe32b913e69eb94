"""`dbelief bench wire`: how fast parameters are pulled and gradients pushed, against what a socket gives.

One worker and one shard, each a process: one vector cut into segments as a job cuts it, over loopback TCP and through
shared memory. Against it, between two processes as well: the same bytes through a bare socket into a block made
beforehand, once as a socket comes, which is what ratios are against, and once as fast as one is known to be; a copy
within this process; and where they are asked for, and installed, torch's gloo, torch RPC and Ray. All take turns within
each round, for each of some sizes; what keeps a core busy by itself has rounds of its own, with the socket beside it.

Then some workers pull and push at the same time on some shards; and a model of MNIST's size goes to and fro between
two shards, to see what a step costs in processor time, on both sides together.
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
"""Blocks below so many MiB go so many times as many rounds: they are quick, and a percentile wants many."""


@dataclass(frozen=True)
class Wanted:
    """What is to be measured.

    Attributes
    ----------
    transports
        Of "tcp" and "shm".
    sizes
        Of the vector, in MiB.
    rounds
        For each size.
    peers
        Whether torch and Ray take part.
    workers, shards
        How many of each, of crowds.
    turns, crowd_mib
        Pushes, and pulls, of each crowd; size of each of these.
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
    """All figures; see `dbelief bench wire --help`.

    Raises
    ------
    Failure
        A process that is needed does not come up, or ends.
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
    """What ours is measured against where it is installed; `busy`: it keeps cores busy that nobody asked it to."""

    name: str
    package: str
    make: Callable[[ExitStack, Path], Way]
    busy: bool


def _others(wanted: Wanted, missing: dict[str, str]) -> list[Other]:
    """Those that are installed; the rest is told as missing."""
    all_of_them = [
        Other(Gloo.name, "torch", Gloo, busy=False),
        Other(TorchRpc.name, "torch", TorchRpc, busy=True),
        Other(Ray.name, "ray", partial(Ray, largest=max(wanted.sizes) << 20), busy=True),
    ]
    found = [other for other in all_of_them if importlib.util.find_spec(other.package)]
    missing |= {other.name: f"{other.package} is not installed" for other in all_of_them if other not in found}
    return found


def _begin(stack: ExitStack, folder: Path, others: Sequence[Other], missing: dict[str, str]) -> list[Way]:
    """Those of them that come up; the rest is told as missing."""
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
    """Rows of its own rounds, the socket's too; none where it does not come up."""
    with ExitStack() as stack:
        ways = _begin(stack, folder, [other], missing)
        if not ways:
            return []
        ways.append(Socket(stack, folder))
        return [row for mib in wanted.sizes for row in _rows(ways, wanted, mib, other.name)]


def _rows(ways: Sequence[Way], wanted: Wanted, mib: int, beside: str | None) -> list[dict[str, Any]]:
    """What these came to; `beside`: what keeps cores busy, where that is among them."""
    for way in ways:
        way.prepare(mib << 20)
    count = wanted.rounds * (MORE if mib < SMALLER_MIB else 1)
    return [{"mib": mib, "beside": beside, "rounds": count, **row} for row in figures(rounds(ways, count), mib << 20)]
