"""What a job has done in a window, from two statuses and its events, and the processors that were used meanwhile."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

from dbelief.advise.measurements import Measurements, of_statuses
from dbelief.job import Job
from dbelief.process.processor_times import processor_times

LEAST_EVENTS = 5
BENCHMARK = "benchmark"
Status = Mapping[str, Any]
Processors = dict[str, float]
"""Seconds so far by name of the process, and of all programs of the machine by the name ""."""


def processors(known: Mapping[str, Popen[bytes]]) -> Processors:
    """Of the processes that descend from this one, by name, or by program where it is not known; and of the machine."""
    names = {os.getpid(): BENCHMARK, **{process.pid: name for name, process in known.items()}}
    parents, found = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            program, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        fields, pid = rest.split(), int(folder.name)
        parents[pid] = int(fields[1])
        found[pid] = (program, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    times: Processors = {"": processor_times().busy_s}
    for pid, (program, used_s) in found.items():
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            name = names.get(pid, program)
            times[name] = times.get(name, 0.0) + used_s
    return times


def processors_used(before: Processors, after: Processors, seconds: float) -> tuple[dict[str, float], float]:
    """Mean numbers of processors in use: by each process that was there at both times, and by other programs."""
    own = {name: after[name] - before[name] for name in after if name and name in before}
    others = max(0.0, after[""] - before[""] - sum(own.values()))
    return {name: round(used_s / seconds, 4) for name, used_s in own.items()}, round(others / seconds, 3)


def speed(events: Iterable[Mapping[str, Any]], begin_s: float, end_s: float) -> float | None:
    """Samples a second, by a line through the job's events of progress between two moments of `elapsed_s`.

    None: there are fewer than `LEAST_EVENTS`.
    """
    seen = [one for one in events if one["event"] == "progress" and begin_s <= one["elapsed_s"] <= end_s]
    if len(seen) < LEAST_EVENTS:
        return None
    return float(statistics.linear_regression([e["elapsed_s"] for e in seen], [e["samples"] for e in seen]).slope)


def passes_speed(events: Iterable[Mapping[str, Any]], begin_s: float, end_s: float) -> float | None:
    """Samples a second of a batch method, over the whole passes that ended between two moments, with their pauses.

    None: there are fewer than two.
    """
    ended = [one for one in events if one["event"] == "pass" and begin_s <= one["elapsed_s"] <= end_s]
    if len(ended) < 2:
        return None
    return float(sum(one["samples"] for one in ended[1:]) / (ended[-1]["elapsed_s"] - ended[0]["elapsed_s"]))


def rows_of(found: Measurements) -> list[dict[str, Any]]:
    """By worker: what it did in its own time."""
    return [
        {
            "number": one.number,
            "samples": one.samples,
            "steps": one.steps,
            "pushes": one.pushes,
            "sent": one.sent,
            "received": one.received,
            "seconds": {phase: round(seconds, 4) for phase, seconds in one.seconds.items()},
        }
        for one in found.workers
    ]


def worker_rows(job: Job, before: Status, after: Status) -> list[dict[str, Any]]:
    """By worker: samples, mini-batches, pushes, bytes, and seconds of each phase, between two statuses."""
    return rows_of(of_statuses(job, before, after))


def batch_rows(before: Status, after: Status) -> list[dict[str, Any]]:
    """The same of a batch method, which has no mini-batches: bundles, which are pushes, and bytes."""
    old = {row["id"]: row["totals"] for row in before["members"] if row["role"] == "worker"}
    rows = []
    for row in after["members"]:
        if row["role"] == "worker" and row["id"] in old:
            new, was = row["totals"], old[row["id"]]
            moved = {name: new[name] - was[name] for name in ("steps", "pushes", "sent", "received")}
            seconds = {phase: all_s - was["seconds"].get(phase, 0.0) for phase, all_s in new["seconds"].items()}
            rows.append({"number": row["id"], **moved, "seconds": seconds})
    return rows


def staleness(before: Status, after: Status) -> float | None:
    """Mean staleness of the pushes between two statuses, in versions; None where there was none."""
    (old_sum, old), (new_sum, new) = (_stale(status) for status in (before, after))
    return (new_sum - old_sum) / (new - old) if new > old else None


def _stale(status: Status) -> tuple[float, float]:
    """Sum of all pushes' staleness, and their number."""
    rows = [row for row in status["members"] if row["role"] == "worker" and row["staleness"] is not None]
    pushes = [row["totals"]["pushes"] for row in rows]
    return sum(row["staleness"] * count for row, count in zip(rows, pushes, strict=True)), sum(pushes)


def bytes_per_s(rows: Sequence[Mapping[str, Any]], way: str, samples_per_s: float, window_s: float) -> float:
    """Bytes of parameters "sent" or "received" by all workers a second.

    Where samples are known, those of a sample times the samples a second: both come in the same reports, which need not
    be as old at the begin of a window as at its end.
    """
    moved, samples = sum(row[way] for row in rows), sum(row.get("samples", 0) for row in rows)
    return float(moved / samples * samples_per_s if samples else moved / window_s)


def group_bytes(traffic: Mapping[str, Any]) -> float:
    """Bytes that all workers of a group send each other in a step, from the run's `reduction.json`: a mean."""
    steps = max(worker["steps"] for worker in traffic["workers"])
    return float(sum(edge["bytes"] for edge in traffic["edges"]) / steps)
