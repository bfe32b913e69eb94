"""`dbelief bench wire`: speed of pulling parameters and pushing gradients, compared with a bare socket.

One worker process and one shard process: one vector cut into segments as in a job, over loopback TCP and through shared
memory. Baselines, also between two processes: the same bytes through a bare socket into preallocated memory, once with
default settings, which is the ratios' baseline, and once in the fastest known way; and a copy within this process. All
alternate within each round, for each of several sizes.

Afterwards several workers pull and push concurrently on several shards; and a model of MNIST's size is pulled from and
pushed to two shards, to measure the processor time of a step on both sides together.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .baselines import Copy, Socket
from .concurrent_workers import crowds, small
from .interleave import Way, figures, rounds
from .shards import Shards
from .workers import Ours

SMALLER_MIB, MORE = 32, 4
"""Blocks below `SMALLER_MIB` MiB get `MORE` times as many rounds: they are quick, and percentiles need many samples."""


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
    progress
        Called with what is measured next.

    Raises
    ------
    RuntimeFailure
        A required process does not start, or exits.
    """
    with tempfile.TemporaryDirectory(prefix="dbelief-bench-") as name:
        folder = Path(name)
        ways = measure_ways(folder, transports, sizes, rounds, progress=progress)
        progress(f"several workers and shards, {crowd_mib} MiB")
        together = crowds(folder, transports, workers, shards, turns, crowd_mib << 20)
        progress("a model of MNIST's size")
        steps_of = [small(folder, transport, steps) for transport in transports]
        return {"rounds": rounds, "cores": os.cpu_count(), "ways": ways, "crowds": together, "small": steps_of}


def measure_ways(
    folder: Path,
    transports: Sequence[str],
    sizes: Sequence[int],
    count: int,
    others: Sequence[Way] = (),
    progress: Callable[[str], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Rows of dbelief's transports, the baselines and `others`; arguments as of `measure`."""
    rows = []
    with ExitStack() as stack:
        theirs: list[Way] = [Socket(stack, folder), Socket(stack, folder, fast=True), Copy(), *others]
        for mib in sizes:
            progress(f"one worker and one shard, {mib} MiB")
            with ExitStack() as here:
                trained = here.enter_context(Shards(folder, mib << 18))
                averaged = here.enter_context(Shards(folder, mib << 18, rule="elastic"))
                ours: list[Way] = [
                    Ours(here, folder, transport, number, trained, averaged)
                    for number, transport in enumerate(transports)
                ]
                rows += measure_size([*ours, *theirs], mib, count)
    return rows


def measure_size(ways: Sequence[Way], mib: int, count: int) -> list[dict[str, Any]]:
    """Rows of `count` rounds with blocks of one size, or of more rounds where that is small."""
    for way in ways:
        way.prepare(mib << 20)
    count *= MORE if mib < SMALLER_MIB else 1
    return [{"mib": mib, "rounds": count, **row} for row in figures(rounds(ways, count), mib << 20)]
