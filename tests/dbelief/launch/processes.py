"""What tests of a launcher's processes ask the system."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from dbelief.process.clock import SystemClock

DEADLINE_S = 120.0


def soon(holds: Callable[[], object], what: str) -> None:
    """Wait until a condition holds; `what`: what is the case otherwise."""
    clock, never = SystemClock(), threading.Event()
    until_s = clock.now() + DEADLINE_S
    while not holds():
        assert clock.now() < until_s, what
        clock.wait(never, 0.005)


def runs(pid: int) -> bool:
    """Whether a process exists, and has not ended."""
    return _status(pid)[0] not in ("", "Z")


def parent_of(pid: int) -> int:
    """The process id of its parent; 0 where it does not exist."""
    return int(_status(pid)[1])


def _status(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", "0"]
