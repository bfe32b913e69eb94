"""Reports of the processes that train (`trainers/work.py`): speed, and samples lost and doubled.

Samples are counted per source, a process that trains, as ranges of its own numbers. The ledger has the ranges that were
applied to the model, in order; a model that begins anew, or from a checkpoint, cuts the ledger to its first samples.
Lost are trained samples that the ledger does not have in the end; samples of a source that still runs, after the last
that was applied, are on their way. Doubled are samples that the ledger has more than once.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.faults.recovery_time import spread

STEP_S = 0.1
Range = tuple[str, int, int]
"""Source, and its first and last sample."""


@dataclass(frozen=True)
class Line:
    """One report.

    Attributes
    ----------
    at_s
        By the monotonic clock.
    kind
        "trained", "applied", or "state".
    samples
        A range; of "state" the source is "", and the last sample the number of samples.
    """

    at_s: float
    kind: str
    samples: Range


@dataclass(frozen=True)
class Counted:
    """Samples of a whole run."""

    trained: int
    lost: int
    doubled: int


def parse(text: str) -> Line | None:
    """A line of a file; None where its process died in the middle of it."""
    try:
        found = json.loads(text)
        at_s = found.pop("at")
        ((kind, samples),) = found.items()
    except (ValueError, KeyError):
        return None
    if kind == "state":
        return Line(at_s, kind, ("", 1, int(samples)))
    source, first, last = samples
    return Line(at_s, kind, (source, int(first), int(last)))


class Follower:
    """Reads what is new in the files of a folder.

    Attributes
    ----------
    lines
        All so far; `ordered` has them by time.
    """

    def __init__(self, folder: Path) -> None:
        self.lines: list[Line] = []
        self._folder, self._read = folder, dict[Path, int]()

    def look(self) -> None:
        """Read what was added since the last look; a line that is not complete is read later."""
        for path in self._folder.glob("*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            self.lines += filter(None, map(parse, whole.decode().splitlines()))

    def ordered(self) -> list[Line]:
        """All lines by time."""
        return sorted(self.lines, key=lambda line: line.at_s)


def sources(lines: Iterable[Line]) -> set[str]:
    """All that have trained."""
    return {line.samples[0] for line in lines if line.kind == "trained"}


def size(samples: Range) -> int:
    """Number of samples of a range."""
    return samples[2] - samples[1] + 1


def trained_in(lines: Iterable[Line], from_s: float, to_s: float) -> int:
    """Samples that were trained after one time, up to another."""
    return sum(size(line.samples) for line in lines if line.kind == "trained" and from_s < line.at_s <= to_s)


def looks(lines: Iterable[Line]) -> list[tuple[float, float]]:
    """(time, samples since the source's last report), spread evenly over the time between."""
    by_source: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if line.kind == "trained":
            by_source.setdefault(line.samples[0], []).append((line.at_s, float(size(line.samples))))
    return [look for one in by_source.values() for look in spread(one)]


def back_s(
    looks: Sequence[tuple[float, float]], killed_s: float, ended_s: float, wanted: float, window_s: float
) -> float | None:
    """Seconds from a kill until a window begins in which the speed is as wanted, and half of it in the one after.

    None: there are no such two before the end.

    Parameters
    ----------
    looks
        Result of `looks`.
    wanted
        Samples/s.
    """
    ordered = np.array(sorted(looks), np.float64).reshape(-1, 2)
    total = np.concatenate([[0.0], np.cumsum(ordered[:, 1])])
    begins_s = killed_s + STEP_S * np.arange(max(0, int((ended_s - 2 * window_s - killed_s) / STEP_S) + 1))

    def samples(from_s: np.ndarray) -> np.ndarray:
        ends = (np.searchsorted(ordered[:, 0], at_s, side="right") for at_s in (from_s, from_s + window_s))
        first, last = (total[end] for end in ends)
        return np.asarray(last - first)

    good = np.flatnonzero(
        (samples(begins_s) >= wanted * window_s) & (samples(begins_s + window_s) >= wanted * window_s / 2)
    )
    return round(float(begins_s[good[0]] - killed_s), 1) if len(good) else None


def step_s(lines: Iterable[Line]) -> float | None:
    """Median seconds between two reports of a source; None where none has reported twice."""
    last: dict[str, float] = {}
    between: list[float] = []
    for line in lines:
        if line.kind == "trained":
            source = line.samples[0]
            between += [line.at_s - last[source]] if source in last else []
            last[source] = line.at_s
    return statistics.median(between) if between else None


def ledger(lines: Iterable[Line]) -> list[Range]:
    """Ranges that the model has in the end."""
    found: list[Range] = []
    for line in lines:
        if line.kind == "applied":
            found.append(line.samples)
        elif line.kind == "state":
            found = _first(found, size(line.samples))
    return found


def _first(ranges: Sequence[Range], wanted: int) -> list[Range]:
    found: list[Range] = []
    for source, first, last in ranges:
        if wanted <= 0:
            break
        last = min(last, first + wanted - 1)
        found.append((source, first, last))
        wanted -= last - first + 1
    return found


def count(lines: Sequence[Line], running: Collection[str]) -> Counted:
    """Samples of a run.

    Parameters
    ----------
    lines
        By time.
    running
        Sources that ran at the end.
    """
    last: dict[str, int] = {}
    for line in lines:
        if line.kind == "trained":
            source, _, end = line.samples
            last[source] = max(last.get(source, 0), end)
    applied: dict[str, list[Range]] = {}
    for samples in ledger(lines):
        applied.setdefault(samples[0], []).append(samples)
    lost = doubled = 0
    for source, end in last.items():
        missing, repeated, reached = _cover(applied.get(source, ()), end)
        doubled += repeated
        lost += missing - (end - reached if source in running else 0)
    return Counted(sum(last.values()), lost, doubled)


def _cover(ranges: Iterable[Range], end: int) -> tuple[int, int, int]:
    """Of samples 1 to `end`: how many no range has; how many are had again; and the last one that a range has."""
    reached = missing = repeated = 0
    for _, first, last in sorted(ranges):
        missing += max(0, first - reached - 1)
        repeated += max(0, min(last, reached) - first + 1)
        reached = max(reached, last)
    return missing + max(0, end - reached), repeated, reached
