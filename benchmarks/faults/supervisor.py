"""A supervisor of processes, as systemd or Kubernetes: whatever ends is started again at once, under the same name."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from benchmarks.harness import runs

AGAIN_S = 1.0
"""Pause before a start after a process that ended by itself, lest one that cannot start takes the processor's time."""


@dataclass(frozen=True)
class Death:
    """One end of a process while the job ran.

    Attributes
    ----------
    at_s, wall_s
        Moment by the monotonic clock, and in seconds since 1970.
    start
        Number of the start that ended, from 1.
    part
        What it was at that moment: "leading coordinator", "standby coordinator", else its role.
    code
        Exit code where it ended by itself; None where it was killed.
    """

    at_s: float
    wall_s: float
    name: str
    start: int
    part: str
    code: int | None = None


class Unit:
    """One supervised process.

    Parameters
    ----------
    leads
        File that the process writes when it leads; removed before each start. None: it has no such part.
    ends
        Whether exit code 0 is its end; else it is started again after that too.
    """

    def __init__(
        self, run: runs.Run, name: str, role: str, command: Sequence[str], leads: Path | None = None, ends: bool = True
    ) -> None:
        self.name, self.role, self.ends, self.starts = name, role, ends, 0
        self._leads = leads
        self._begin = functools.partial(run.start_program, name, command)
        self._due_s: float | None = None
        self.start()

    def start(self) -> None:
        """Start the process."""
        if self._leads is not None:
            self._leads.unlink(missing_ok=True)
        self.process: Popen[bytes] = self._begin()
        self.starts += 1
        self._due_s = None

    def start_after(self, seconds: float) -> None:
        """Start the process, which has ended, so long from now."""
        if seconds:
            self._due_s = time.monotonic() + seconds
        else:
            self.start()

    def start_when_due(self, now_s: float) -> None:
        """Start a process that ended by itself, after `AGAIN_S`."""
        if self._due_s is None:
            self._due_s = now_s + AGAIN_S
        elif now_s >= self._due_s:
            self.start()

    @property
    def part(self) -> str:
        """See `Death.part`."""
        if self._leads is None:
            return self.role
        return "leading coordinator" if self._leads.exists() else "standby coordinator"

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.ends and self.process.poll() == 0

    @property
    def waits(self) -> bool:
        """Whether it has ended, and its next start is not due yet."""
        return self._due_s is not None


class Supervisor:
    """All processes of one deployment.

    Attributes
    ----------
    deaths
        Every end so far, in order.
    """

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.deaths: list[Death] = []

    def add(self, unit: Unit) -> None:
        """Supervise this process too."""
        self.units[unit.name] = unit

    def look(self, again: bool = True) -> None:
        """Record what ended by itself; start it again where `again`."""
        for unit in self.units.values():
            code = unit.process.poll()
            if code is None or unit.over:
                continue
            if not unit.waits:
                self._record(unit, code)
            if again:
                unit.start_when_due(time.monotonic())

    def kill(self, names: Sequence[str], away_s: Mapping[str, float]) -> None:
        """Kill these processes together; what runs no more is left alone.

        `away_s`: by role, the seconds until they are started again; others are at once.
        """
        killed = [self.units[name] for name in names if self.units[name].process.poll() is None]
        for unit in killed:
            self._record(unit, None)
            os.kill(unit.process.pid, signal.SIGKILL)
        for unit in killed:
            unit.process.wait()
            unit.start_after(away_s.get(unit.role, 0.0))

    def _record(self, unit: Unit, code: int | None) -> None:
        self.deaths.append(Death(time.monotonic(), time.time(), unit.name, unit.starts, unit.part, code))
