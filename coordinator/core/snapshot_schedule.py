"""Schedule and ids of the snapshot sets. No clock, no file."""

from __future__ import annotations

from dataclasses import dataclass

from .effects import TakeSnapshot
from .members import Member


@dataclass
class SnapshotSchedule:
    """The schedule of one job's snapshot sets: one at a time.

    Attributes
    ----------
    every_s
        Seconds between sets; None: no such interval.
    every_iterations
        Iterations of a batch method between sets; None: no such interval.
    running
        A set is requested and not complete.
    wanted
        A set is to begin as soon as none is running.
    count
        Sets begun, over all incarnations of the coordinator: ids rise even where no sample was trained in between.
    """

    every_s: float | None
    every_iterations: int | None = None
    running: bool = False
    wanted: bool = False
    count: int = 0
    _last_s: float = 0.0
    _last_iteration: int = 0

    def due(self, now_s: float, iterations: int = 0) -> bool:
        """Whether the next set is to begin."""
        if self.running:
            return False
        by_time = self.every_s is not None and now_s - self._last_s >= self.every_s
        done = iterations - self._last_iteration
        return self.wanted or by_time or (self.every_iterations is not None and done >= self.every_iterations)

    def covers(self, member: Member) -> bool:
        """Whether a set begun since a shard first requested to leave was tried; if not, one is scheduled."""
        member.leaves_after = member.leaves_after or self.count + 1
        self.wanted = self.wanted or self.count < member.leaves_after
        return self.count - self.running >= member.leaves_after

    def begin(self, samples: int) -> TakeSnapshot:
        """Begin a set; ids sort by age."""
        self.running = True
        self.wanted = False
        self.count += 1
        return TakeSnapshot(f"{samples:012d}-{self.count:04d}")

    @staticmethod
    def samples_in(set_id: str | None) -> int:
        """Samples trained when a set was begun; 0 without a set."""
        return int(set_id.partition("-")[0]) if set_id else 0

    def restart_timer(self, now_s: float, iterations: int = 0) -> None:
        """Restart the time and the iteration count until the next set."""
        self._last_s, self._last_iteration = now_s, iterations

    def complete(self, now_s: float, iterations: int = 0) -> None:
        """The set is complete."""
        self.running = False
        self.restart_timer(now_s, iterations)
