"""Curves and recent events of a run, decimated to display resolution, for displays while the job runs."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dbelief.monitor.event_text import event_text, is_trouble
from dbelief.process.runtime import runtime

MAX_POINTS = 400
"""Maximum points of a curve; where it is reached, every second one is dropped."""
MAX_EVENTS = 100
"""Maximum number of events; older ones are dropped."""


class DecimatedCurve:
    """Curve that keeps about every n-th of its points, with growing n, and always the last one."""

    def __init__(self, over: str) -> None:
        self.over = over
        self._points: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None
        self._every = self._skipped = 1

    def add(self, x: float | None, y: float | None) -> None:
        """Add a point; points at larger x, which a rollback has undone, are dropped. None and NaN are ignored."""
        if x is None or y is None or not math.isfinite(y):
            return
        while self._points and self._points[-1][0] > x:
            self._points.pop()
        self._last = x, y
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        self._points.append(self._last)
        if len(self._points) >= MAX_POINTS:
            del self._points[1::2]  # including the last one, as their number is even
            self._skipped = self._every
            self._every *= 2

    def points(self) -> list[tuple[float, float]]:
        """All points that are kept, by rising x."""
        ahead = self._last is not None and (not self._points or self._last[0] > self._points[-1][0])
        return [*self._points, *([self._last] if ahead and self._last is not None else [])]


@dataclass(frozen=True)
class RecentEvent:
    """One event: seconds since 1970-01-01 UTC, its text, and whether something failed or was lost."""

    time_s: float
    text: str
    trouble: bool


class RecentEvents:
    """The last `MAX_EVENTS` events that have a text. O(1) per event."""

    def __init__(self) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=MAX_EVENTS)
        self._gone: set[tuple[str, int]] = set()

    def add(self, name: str, fields: Mapping[str, Any], time_s: float) -> None:
        """Add an event."""
        text = event_text(name, fields)
        if text is None:
            return
        if name == "member":
            text += self._replaces(str(fields["role"]), int(fields["id"]), fields["what"])
        self._events.append(RecentEvent(time_s, text, is_trouble(name, fields)))

    def _replaces(self, role: str, number: int, what: str) -> str:
        """Suffix of the text where a member gets the number of one that has ended."""
        if what != "joined":
            self._gone.add((role, number))
        elif (role, number) in self._gone:
            self._gone.remove((role, number))
            return f", replaces the former {role} {number}"
        return ""

    def since(self, earlier: RecentEvents) -> list[RecentEvent]:
        """All events of `earlier`, then all of these, limited to the last `MAX_EVENTS`."""
        both: Iterable[RecentEvent] = (*earlier._events, *self._events)
        return list(deque(both, maxlen=MAX_EVENTS))


class Curves:
    """Curves and recent events of a run, or of a portion of one."""

    def __init__(self, iterates: bool) -> None:
        self.recent = RecentEvents()
        self._iterates = iterates
        self.curves = {
            "loss": DecimatedCurve("iterations" if iterates else "samples"),
            "validation_accuracy": DecimatedCurve("samples"),
            "validation_loss": DecimatedCurve("samples"),
        }

    def add(self, event: str, fields: Mapping[str, Any], time_s: float) -> None:
        """Add an event; `time_s`: its time in seconds since 1970-01-01 UTC."""
        self.recent.add(event, fields, time_s)
        if event == "evaluation" and fields.get("set") == "validation":
            self.curves["validation_accuracy"].add(fields.get("samples"), fields.get("accuracy"))
            self.curves["validation_loss"].add(fields.get("samples"), fields.get("loss"))
            for name, value in (fields.get("metrics") or {}).items():
                curve = self.curves.setdefault(f"validation_{name}", DecimatedCurve("samples"))
                curve.add(fields.get("samples"), value)
        elif event == "iteration" and self._iterates:
            self.curves["loss"].add(fields.get("iteration"), fields.get("loss"))
        elif event == "progress" and not self._iterates:
            self.curves["loss"].add(fields.get("samples"), fields.get("loss"))


class LearningCurves:
    """Curves and recent events of a run: those of this coordinator and, once loaded, the earlier ones.

    Parameters
    ----------
    events
        The run's log; of a continued run it holds the earlier events.
    iterates
        Whether the job has a batch method.
    """

    def __init__(self, events: Path, iterates: bool) -> None:
        self._now = Curves(iterates)
        self._before = Curves(iterates)
        self._lock = runtime.lock()
        if events.exists():  # for a run of days loading takes long, and must not block
            size = events.stat().st_size
            runtime.spawn(self._read, "curves", events, size, iterates)

    def _read(self, path: Path, size: int, iterates: bool) -> None:
        before, read = Curves(iterates), 0
        with suppress(OSError, ValueError, KeyError), path.open("rb") as file:
            for line in file:
                read += len(line)
                if read > size:
                    break
                event = json.loads(line)
                before.add(event["event"], event, datetime.fromisoformat(event["time"]).timestamp())
        with self._lock:
            self._before = before

    def add(self, event: str, fields: Mapping[str, Any], time_s: float) -> None:
        """Add an event; `time_s`: its time in seconds since 1970-01-01 UTC."""
        with self._lock:
            self._now.add(event, fields, time_s)

    def recent(self) -> list[RecentEvent]:
        """The last events, the oldest first."""
        with self._lock:
            return self._now.recent.since(self._before.recent)

    def curves(self) -> list[tuple[str, str, list[tuple[float, float]]]]:
        """Name, quantity on the x axis and points of every curve that has points."""
        found = []
        with self._lock:
            now, before = self._now.curves, self._before.curves
            for name, curve in (before | now).items():
                points = now[name].points() if name in now else []
                first = points[0][0] if points else math.inf
                earlier = before[name].points() if name in before else []
                if points := [point for point in earlier if point[0] < first] + points:
                    found.append((name, curve.over, points))
        return found
