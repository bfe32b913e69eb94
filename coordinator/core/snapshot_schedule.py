"""When a snapshot set is written, and under which id. No clock, no file."""

from __future__ import annotations

from dataclasses import dataclass

from .effects import TakeSnapshot
from .members import Member


@dataclass
class SnapshotSchedule:
    """The turns of one job's sets: one at a time.

    Attributes
    ----------
    every_s
        Seconds from one to the next; None: only where the job's course asks for one.
    every_iterations
        Iterations of a batch method from one to the next; None: however many.
    running
        A set is asked for and not complete.
    wanted
        One is to begin as soon as none is running.
    count
        Sets begun, over all lives of the job's coordinator: ids rise even where no sample was trained in between.
    """

    every_s: float | None
    every_iterations: int | None = None
    running: bool = False
    wanted: bool = False
    count: int = 0
    _last_s: float = 0.0
    _last_iteration: int = 0

    def due(self, now_s: float, iterations: int = 0) -> bool:
        """Whether the next one is to begin."""
        if self.running:
            return False
        by_time = self.every_s is not None and now_s - self._last_s >= self.every_s
        done = iterations - self._last_iteration
        return self.wanted or by_time or (self.every_iterations is not None and done >= self.every_iterations)

    def covers(self, member: Member) -> bool:
        """Whether a set that was begun since a shard first asked was tried; if not, one is to come soon."""
        member.leaves_after = member.leaves_after or self.count + 1
        self.wanted = self.wanted or self.count < member.leaves_after
        return self.count - self.running >= member.leaves_after

    def begin(self, samples: int) -> TakeSnapshot:
        """Begin a set; ids sort by age."""
        self.running = True
        self.wanted = False
        self.count += 1
        return TakeSnapshot(f"{samples:012d}-{self.count:04d}")

    def restart_timer(self, now_s: float, iterations: int = 0) -> None:
        """Time and iterations until the next one count from now."""
        self._last_s, self._last_iteration = now_s, iterations

    def complete(self, now_s: float, iterations: int = 0) -> None:
        """The set is complete."""
        self.running = False
        self.restart_timer(now_s, iterations)
