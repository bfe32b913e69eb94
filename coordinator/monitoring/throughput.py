"""Throughput of the job and of each member, from the totals that they report. Used only for display."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from dbelief.process.clock import Clock
from dbelief.process.processors import ProcessorMeter
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.convert import message_row, processors_to_wire

from ..core.members import Member
from ..core.progress import TrainingProgress
from .curves import LearningCurves

WINDOW_S = 30.0
"""Window of a member's rates in seconds; long enough for replicas that take seconds for a mini-batch."""
_MOST_POINTS = 60
"""Points of a window, about: totals that follow each other faster replace the one before."""


class RateWindow:
    """A total and its rate per second over the last `window_s` seconds."""

    def __init__(self, clock: Clock, window_s: float) -> None:
        self._clock = clock
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def note(self, total: float) -> None:
        """Record the total, as of now; one that has fallen belongs to a new incarnation and restarts the window."""
        if not math.isfinite(total):
            return
        now_s, points = self._clock.now(), self._points
        if points and total < points[-1][1]:
            points.clear()
        if len(points) > 1 and now_s - points[-2][0] < self._window_s / _MOST_POINTS:
            points.pop()
        points.append((now_s, total))
        while len(points) > 2 and points[1][0] < now_s - self._window_s:
            points.popleft()

    def per_second(self) -> float:
        """Increase of the total per second; 0 with fewer than two totals, or without a recent one."""
        points = self._points
        if len(points) < 2 or points[-1][0] < self._clock.now() - self._window_s:
            return 0.0
        return _rate(points[0], points[-1])


class Speed:
    """Training throughput in samples per second: over a few seconds, and mean since the run started or was resumed."""

    def __init__(self, clock: Clock, window_s: float = 5.0) -> None:
        self._clock = clock
        self._window = RateWindow(clock, window_s)
        self._latest: tuple[float, float] | None = None
        self._first: tuple[float, float] | None = None  # before the first increase of the count
        self._last: tuple[float, float] | None = None  # at its last increase

    def note(self, samples: int) -> None:
        """Record the count of samples, as of now."""
        point = self._clock.now(), samples
        if self._latest is not None and samples > self._latest[1]:
            self._first = self._first or self._latest
            self._last = point
        self._latest = point
        self._window.note(samples)

    def per_second(self) -> float:
        """Samples per second over the window; 0 with fewer than two counts."""
        return self._window.per_second()

    def mean(self) -> float:
        """Mean samples per second from before the first increase to the last one; 0 before there is any."""
        return _rate(self._first, self._last) if self._first is not None and self._last is not None else 0.0


class MemberThroughput:
    """Throughput of members, last reports of shards, and learning curves. The job does not depend on it.

    Attributes
    ----------
    shard_reports
        Last report of each shard, by its number.
    processors
        Last report of each member on its processors, by kind and number, each with the member's incarnation.
    """

    def __init__(self, clock: Clock, events: Path, iterates: bool) -> None:
        self.curves = LearningCurves(events, iterates)
        self.shard_reports: dict[int, wire.ShardFigures] = {}
        self.processors: dict[tuple[str, int], tuple[int, wire.ProcessorFigures]] = {}
        self._meter = ProcessorMeter()
        self._rates: dict[tuple[str, int, str], RateWindow] = defaultdict(partial(RateWindow, clock, WINDOW_S))

    def record_shard(self, number: int, figures: wire.ShardFigures) -> None:
        """Record a shard's report of its work and contents."""
        self.shard_reports[number] = figures
        self._rates["shard", number, "pushes"].note(figures.pushes)
        self._rates["shard", number, "bytes"].note(figures.bytes_received + figures.bytes_sent)

    def record_processors(self, kind: str, number: int, incarnation: int, figures: wire.ProcessorFigures) -> None:
        """Record a member's report on its processors; one of an incarnation that was replaced is ignored."""
        known, _ = self.processors.get((kind, number), (0, None))
        if incarnation >= known:
            self.processors[kind, number] = incarnation, figures

    def own_processors(self) -> wire.ProcessorFigures:
        """Processors of this process, since this object was made."""
        return processors_to_wire(self._meter.read())

    def processors_by_member(self) -> dict[str, dict[str, Any]]:
        """Fields of the reports by member, and those of the coordinator."""
        members = {f"{kind} {number}": row for (kind, number), (_, row) in self.processors.items()}
        return {name: message_row(row) for name, row in {"coordinator": self.own_processors(), **members}.items()}

    def record_pushers(self, members: Iterable[Member], progress: TrainingProgress) -> None:
        """Record the samples that these replicas and clients have trained since the run's last start or resume."""
        for member in members:
            self._rates["pusher", member.number, "samples"].note(progress.samples_of_since(member.number))

    def per_second(self, member: Member, name: str) -> float:
        """Increase per second of a member's "samples", or a shard's "pushes" and "bytes"; 0 once it has ended."""
        kind = "shard" if member.kind == "shard" else "pusher"
        return self._rates[kind, member.number, name].per_second() if member.alive else 0.0


def _rate(first: tuple[float, float], last: tuple[float, float]) -> float:
    (t0, n0), (t1, n1) = first, last
    return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0
