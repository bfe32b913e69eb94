"""Assignment of a machine's cores to processes (You et al. 2017, section 6.2, a part of a chip each).

A process that is pinned to its own cores shares no cache of theirs with others, and its memory is near them on machines
with several sockets: the kernel allocates pages at their first access.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from itertools import pairwise

from dbelief.errors import UserError


def parse_cores(text: str) -> tuple[int, ...]:
    """Parse a list of cores, "0-3,8", to ascending numbers.

    Raises
    ------
    ValueError
        The text has another form.
    """
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else not last):
            raise ValueError(f"{text!r}: cores are written as 0-3,8")
        here = range(int(first), int(last or first) + 1)
        if not here:
            raise ValueError(f"{text!r}: {part} ends before it begins")
        cores.update(here)
    return tuple(sorted(cores))


def format_cores(cores: Collection[int]) -> str:
    """Format cores as `parse_cores` reads them."""
    return ",".join(map(str, sorted(cores)))


def available_cores() -> tuple[int, ...]:
    """Cores that this process may run on.

    Raises
    ------
    UserError
        This platform does not support CPU affinity.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise UserError("processes cannot be kept to cores on this platform: it must be Linux")
    return tuple(sorted(os.sched_getaffinity(0)))


def split_cores(cores: Collection[int], parts: int) -> list[tuple[int, ...]]:
    """Split cores into groups of neighbours, whose sizes differ by one core at the most.

    Raises
    ------
    UserError
        There are fewer cores than groups.
    """
    if len(cores) < parts:
        raise UserError(f"{parts} parts cannot each have a core of their own: there are {len(cores)} cores")
    ordered = sorted(cores)
    return [tuple(ordered[a:b]) for a, b in pairwise(part * len(ordered) // parts for part in range(parts + 1))]


def pin(cores: Collection[int]) -> None:
    """Pin this process to these cores: all its present threads, and those that they will start.

    Raises
    ------
    UserError
        It may not run on one of them, or the platform does not support CPU affinity.
    """
    missing = set(cores).difference(available_cores())
    if missing:
        raise UserError(f"core {min(missing)} is none that this process may run on: {format_cores(available_cores())}")
    pinned: set[str] = set()
    while new := set(os.listdir("/proc/self/task")) - pinned:  # again: a thread may start another before it is pinned
        for thread in new:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), cores)
        pinned |= new
