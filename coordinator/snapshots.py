"""When a snapshot set is written, and under which id. No clock, no file."""

from __future__ import annotations

from dataclasses import dataclass

from .actions import TakeSnapshot


@dataclass
class Snapshots:
    """The turns of one job's sets: one at a time.

    Attributes
    ----------
    every_s
        Seconds from one to the next; None: only where the job's course asks for one.
    running
        A set is asked for and not complete.
    count
        Sets begun, over all lives of the job's coordinator: ids rise even where no sample was trained in between.
    """

    every_s: float | None
    running: bool = False
    count: int = 0
    _last_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """Whether the next one is to begin."""
        return self.every_s is not None and not self.running and now_s - self._last_s >= self.every_s

    def begin(self, samples: int) -> TakeSnapshot:
        """Begin a set; ids sort by age."""
        self.running = True
        self.count += 1
        return TakeSnapshot(f"{samples:012d}-{self.count:04d}")

    def rest(self, now_s: float) -> None:
        """The next one's time runs from now."""
        self._last_s = now_s

    def complete(self, now_s: float) -> None:
        """The set is complete."""
        self.running = False
        self.rest(now_s)
