"""What must hold after every fault, whichever it was: the one set of checks that closes each test."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.push import PARAMETERS, Pusher
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.wire.convert import pusher_from_wire

MARK = "DBELIEF_FAULT_TEST"
"""In the environment of every process that one fault test starts: how an orphan is recognised."""


def check_vector(found: np.ndarray, expected: np.ndarray, what: object = "") -> None:
    """Bit for bit."""
    wrong = np.flatnonzero(found.view(np.uint32) != expected.view(np.uint32))
    assert not wrong.size, (
        f"{wrong.size} of {found.size} numbers differ, first number {wrong[0]}: "
        f"{found[wrong[0]]!r}, expected {expected[wrong[0]]!r}; {what}"
    )


def check_ledgers(stats: Sequence[wire.StatsReply], pushed: Mapping[Pusher, int], what: object = "") -> None:
    """Every segment of every shard has every push of every pusher, and knows of no other."""
    for shard, reply in enumerate(stats):
        rows = {
            pusher_from_wire(row.pusher): (row.lowest, row.highest)
            for row in reply.ledgers
            if row.vector == PARAMETERS and pusher_from_wire(row.pusher) in pushed
        }
        expected = {pusher: (count, count) for pusher, count in pushed.items()}
        assert rows == expected, f"shard {shard}: the ledger holds {rows}, pushed were {expected}; {what}"


def check_samples(summary: Mapping[str, Any], samples: int) -> None:
    """No lease is lost and none is counted twice: what replicas trained is what the job asked for."""
    each = summary["samples_per_replica"]
    assert summary["samples"] == samples, f"{summary['samples']} samples trained, {samples} asked for: {summary}"
    assert sum(each.values()) == samples, f"replicas report {each}, {samples} asked for"


def check_gone(pids: Sequence[int]) -> None:
    """These processes have ended, and somebody has waited for them."""
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not left, f"processes {left} are still there"


def marked_processes(mark: str) -> dict[int, str]:
    """Processes with this mark in their environment, however far down: command lines by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue  # it ended while we looked, or belongs to another user
    found.pop(os.getpid(), None)
    return found


def left_files(temporary: Path, work: Path) -> list[str]:
    """What a run may not leave: anything in its temporary folder; half-written files and sockets in its work folder."""
    left = [path for path in temporary.rglob("*") if not path.name.startswith("pymp-")]
    left += [path for path in work.rglob("*") if path.suffix == ".writing" or stat.S_ISSOCK(path.lstat().st_mode)]
    return [str(path) for path in left]
