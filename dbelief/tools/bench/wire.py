"""`dbelief bench wire`: speed of pulling parameters and pushing gradients, compared with a bare socket.

One worker process and one shard process: one vector cut into segments as in a job, over loopback TCP and through shared
memory. Baselines, also between two processes: the same bytes through a bare socket into preallocated memory, once with
default settings, which is the ratios' baseline, and once in the fastest known way; and a copy within this process. All
alternate within each round, for each of several sizes.

Afterwards several workers pull and push concurrently on several shards; and a model of MNIST's size is pulled from and
pushed to two shards, to measure the processor time of a step on both sides together.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dbelief.launch.child_process import Forked
from dbelief.launch.child_process import Way as StartWay
from dbelief.launch.forked_process import ForkServer, role_modules

from .baselines import MemoryCopy, Socket
from .concurrent_workers import crowds, small
from .interleave import MeasuredWay, figures, rounds
from .peers import DIRECT
from .shards import Shards
from .workers import Ours

SMALLER_MIB, MORE = 32, 4
"""Blocks below `SMALLER_MIB` MiB get `MORE` times as many rounds: they are quick, and percentiles need many samples."""
_OF_SIZES, _OF_CROWDS, _OF_SMALL = 0.3, 0.15, 0.05
"""Shares of the time; processes start in the rest, on slow cores half of it."""


def measure(
    transports: Sequence[str],
    *,
    sizes: Sequence[int],
    rounds: int,
    workers: Sequence[int],
    shards: Sequence[int],
    turns: int,
    crowd_mib: int,
    steps: int,
    seconds: float,
    progress: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """All measurements; see `dbelief bench wire --help`.

    Parameters
    ----------
    transports
        Of "tcp" and "shm".
    sizes
        Of the vector, in MiB.
    rounds
        For each size.
    workers, shards
        Numbers of workers and of shards in the concurrent measurements.
    turns, crowd_mib
        Pushes, and pulls, of each concurrent measurement; size of each, in MiB.
    steps
        Pulls and pushes of the small model.
    seconds
        Of all together, about: where they take longer there are fewer rounds, turns and steps.
    progress
        Called with what is measured next.

    Raises
    ------
    RuntimeFailure
        A required process does not start, or exits.
    """
    prepared = ForkServer([*role_modules(), "dbelief.tools.bench.programs"])
    with tempfile.TemporaryDirectory(prefix="dbelief-bench-") as name, prepared as server:
        folder, way = Path(name), Forked(server)
        ways = measure_ways(folder, transports, sizes, rounds, _OF_SIZES * seconds, progress=progress, way=way)
        progress(f"several workers and shards, {crowd_mib} MiB")
        together = crowds(folder, transports, workers, shards, turns, crowd_mib << 20, _OF_CROWDS * seconds, way)
        progress("a model of MNIST's size")
        limit_s = _OF_SMALL * seconds / len(transports)
        steps_of = [small(folder, transport, steps, limit_s, way) for transport in transports]
        return {"cores": os.cpu_count(), "ways": ways, "crowds": together, "small": steps_of}


def measure_ways(
    folder: Path,
    transports: Sequence[str],
    sizes: Sequence[int],
    count: int,
    limit_s: float = math.inf,
    others: Sequence[MeasuredWay] = (),
    progress: Callable[[str], object] = lambda _: None,
    way: StartWay = DIRECT,
) -> list[dict[str, Any]]:
    """Rows of dbelief's transports, the baselines and `others`; arguments as of `measure`, `limit_s` of all sizes.

    `way` starts dbelief's processes and the sockets' peers.
    """
    rows = []
    with ExitStack() as stack:
        theirs: list[MeasuredWay] = [
            Socket(stack, folder, way=way),
            Socket(stack, folder, fast=True, way=way),
            MemoryCopy(),
            *others,
        ]
        for mib in sizes:
            progress(f"one worker and one shard, {mib} MiB")
            with ExitStack() as here:
                trained = here.enter_context(Shards(folder, mib << 18, way=way))
                averaged = here.enter_context(Shards(folder, mib << 18, rule="elastic", way=way))
                ours: list[MeasuredWay] = [
                    Ours(here, folder, transport, number, trained, averaged, way)
                    for number, transport in enumerate(transports)
                ]
                rows += measure_size([*ours, *theirs], mib, count, limit_s / len(sizes))
    return rows


def measure_size(ways: Sequence[MeasuredWay], mib: int, count: int, limit_s: float = math.inf) -> list[dict[str, Any]]:
    """Rows of `count` rounds with blocks of one size, or of more rounds where that is small; see `rounds`."""
    for way in ways:
        way.prepare(mib << 20)
    count *= MORE if mib < SMALLER_MIB else 1
    return [{"mib": mib, **row} for row in figures(rounds(ways, count, limit_s), mib << 20)]
