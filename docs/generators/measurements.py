"""Measured figures of the site: tables from the result files in docs/measurements/, which benchmarks print.

A result file is the line of JSON that a benchmark prints, unchanged; its `measured` names the command, the day and the
processor. `plots` draws the same files, so that no table disagrees with a picture.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tables import code, table

FOLDER = Path(__file__).parents[1] / "measurements"
FAULTS = {"none": "none", "worker": "a worker", "shard": "a shard", "coordinator": "the coordinator"}
FAULTS |= {"registry": "the registry"}
"""Processes that `benchmarks.faults.kills` kills, as they stand in tables and pictures."""
WAYS = {"dbelief, tcp": "dbelief, TCP", "dbelief, shm": "dbelief, shared memory"}
"""Ways of `benchmarks.wire.peers` under another name in tables and pictures."""
TRANSFER_MIB = 64
NEVER_S = 9_000.0
"""A recovery time above it stands for a death after which the speed did not come back."""
JOBS = {"mnist": "MNIST", "elastic": "elastic"}
"""Jobs of `benchmarks.faults.churn`, as they stand in tables."""


@dataclass(frozen=True)
class ReplicaCount:
    """Test accuracies, in percent, of all seeds at one number of replicas."""

    replicas: int
    accuracies: list[float]
    staleness: float
    wall_s: float

    @property
    def median(self) -> float:
        """The median accuracy."""
        return statistics.median(self.accuracies)


@dataclass(frozen=True)
class Fault:
    """Runs in which a process of this role was killed: test accuracies in percent, and pushes lost of each."""

    role: str
    accuracies: list[float]
    pushes_lost: list[int]
    completed: int


@dataclass(frozen=True)
class Transfer:
    """Median milliseconds of a way to move `TRANSFER_MIB` MiB; None where it has no such operation."""

    way: str
    pull_ms: float
    put_ms: float | None
    push_ms: float | None


def load(name: str) -> dict[str, Any]:
    """A result file.

    Raises
    ------
    ValueError
        The file is not the output of a benchmark.
    """
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    if not found.get("measured", {}).get("command"):
        raise ValueError(f"{path}: has no measured.command; redirect the standard output of a benchmark into it")
    return found


def replica_counts(found: dict[str, Any]) -> list[ReplicaCount]:
    """Rows of `benchmarks.accuracy.replicas`, by number of replicas."""
    counts = sorted({row["replicas"] for row in found["runs"]})
    grouped = {count: [row for row in found["runs"] if row["replicas"] == count] for count in counts}
    return [
        ReplicaCount(
            count,
            [100 * row["test_accuracy"] for row in rows],
            statistics.mean(row["staleness_mean"] for row in rows),
            statistics.median(row["wall_s"] for row in rows),
        )
        for count, rows in grouped.items()
    ]


def faults(found: dict[str, Any]) -> list[Fault]:
    """Rows of `benchmarks.faults.kills`, by role in the order of `FAULTS`."""
    grouped = {role: [row for row in found["runs"] if row["role"] == role] for role in FAULTS}
    return [
        Fault(
            role,
            [100 * row["test_accuracy"] for row in rows if row["test_accuracy"] is not None],
            [row["pushes_lost"] for row in rows],
            sum(row["code"] == 0 for row in rows),
        )
        for role, rows in grouped.items()
        if rows
    ]


def transfers(found: dict[str, Any]) -> list[Transfer]:
    """Rows of `benchmarks.wire.peers` of `TRANSFER_MIB` MiB, fastest pull first; the socket without load."""
    times: dict[str, dict[str, float]] = {}
    for row in found["ways"]:
        if row["mib"] == TRANSFER_MIB and row["what"] in ("pull", "put", "push"):
            times.setdefault(row["way"], {}).setdefault(row["what"], row["p50_ms"])
    ways = [_transfer(way, took) for way, took in times.items() if "pull" in took]
    return sorted(ways, key=lambda way: way.pull_ms)


def _transfer(way: str, took: dict[str, float]) -> Transfer:
    name = WAYS.get(way, way)
    if way in WAYS:
        return Transfer(name, took["pull"], took["put"], took["push"])
    return Transfer(name, took["pull"], took["push"], None)  # a baseline's push only stores, as a put does


def replicas_table() -> str:
    """Test accuracy by number of replicas."""
    found = load("replicas")
    rows = replica_counts(found)
    seeds = [f"seed {seed}" for seed in sorted({row["seed"] for row in found["runs"]})]
    head = ("replicas", *seeds, "median", "against one", "staleness, versions", "wall, median")
    lines = [
        (
            str(row.replicas),
            *_percent(row.accuracies),
            f"**{row.median:.2f}**",
            f"{row.median - rows[0].median:+.2f}",
            f"{row.staleness:.2f}",
            f"{row.wall_s:.0f} s",
        )
        for row in rows
    ]
    return origin(found) + table(head, lines)


def kills_table() -> str:
    """Test accuracy after a process was killed."""
    found = load("kills")
    rows = faults(found)
    calm = statistics.median(rows[0].accuracies)
    head = ("process killed", "runs", "completed", "test accuracy, each run", "median against none", "pushes lost")
    lines = [
        (
            FAULTS[row.role],
            str(len(row.pushes_lost)),
            str(row.completed),
            ", ".join(_percent(row.accuracies)),
            "" if row.role == "none" else f"{statistics.median(row.accuracies) - calm:+.2f}",
            ", ".join(map(str, row.pushes_lost)),
        )
        for row in rows
    ]
    return origin(found) + table(head, lines)


def churn_table() -> str:
    """Speed, recovery, accuracy and losses of jobs whose processes die all the time."""
    found = load("churn")
    head = ["system, job, plan", "runs", "kills", "samples/s kept: median, each", "speed back: p50, p99"]
    head += ["the same moments without kills", "accuracy, points", "pushes lost"]
    lines = [
        (
            f"{row['system']}, {JOBS[row['job']]}, {row['plan']}",
            f"{row['repeats']} of {row['seconds']:g} s",
            str(row["kills"]),
            f"**{row['ratio']:.0%}**: {', '.join(f'{after / before:.0%}' for before, after in row['speeds'])}",
            _recovery(row["recovery"]),
            _recovery(row["noise"]),
            "" if row["points"] is None else f"{row['points']:+.2f}",
            f"{sum(row['pushes_lost']):,} of {sum(row['pushes']):,}" if row["pushes"] else "",
        )
        for row in found["results"]
    ]
    return origin(found) + table(head, lines)


def churn_parts_table() -> str:
    """Recovery times of the same jobs by the part of the killed process."""
    rows = load("churn")["results"]
    parts = sorted({part for row in rows for part in row["parts"]})
    head = ("process killed", *(f"{row['system']}, {JOBS[row['job']]}, {row['plan']}" for row in rows))
    lines = [(part, *(_counted(row["parts"].get(part)) for row in rows)) for part in parts]
    return table(head, lines)


def transfers_table() -> str:
    """Milliseconds of one transfer, beside other libraries."""
    found = load("peers")
    head = ("way", f"pull of {TRANSFER_MIB} MiB, ms", "put, ms", "push with Adagrad, ms")
    lines = [(way.way, *map(_ms, (way.pull_ms, way.put_ms, way.push_ms))) for way in transfers(found)]
    return origin(found) + table(head, lines)


def step_table() -> str:
    """Milliseconds of LeNet's step, beside torch's."""
    found = load("lenet_step")
    lines = [("dbelief", _ms(found["step_ms"])), ("torch", _ms(found["torch_ms"]))]
    return (
        origin(found)
        + table((f"loss and gradient of {found['batch']} images", "ms of processor time, median"), lines)
        + f"\nMedian over pairs of steps: {found['over_torch']:.2f} of torch's time.\n"
    )


def candidates_table() -> str:
    """Start-up of own code and of libraries."""
    found = load("candidates")
    head = ("for", "code", "ms of processor time", "MiB", "threads")
    lines = [
        (row["subject"], row["name"], f"{1e3 * row['cpu_s']:.1f}", f"{row['mib']:.1f}", f"{row['threads']:.0f}")
        for row in found["results"]
    ]
    return origin(found) + table(head, lines)


def command(name: str) -> str:
    """The command of a result file, as a paragraph."""
    return f"Measured by {code(load(name)['measured']['command'])}.\n"


def origin(found: dict[str, Any]) -> str:
    """The command of a result file, its day and machine, as a paragraph."""
    measured = found["measured"]
    return f"{code(measured['command'])}, {measured['day']}, {measured['cores']} cores, {measured['processor']}.\n\n"


def _counted(times: dict[str, Any] | None) -> str:
    """Number of deaths, and `_recovery`."""
    return "" if times is None else f"{times['deaths']}: {_recovery(times)}"


def _recovery(times: dict[str, Any]) -> str:
    """The p50 and p99 of a recovery time; "never": the run ended first."""
    if times["p50_s"] is None:
        return ""
    return ", ".join(
        "never" if seconds > NEVER_S else f"{seconds:.1f} s" for seconds in (times["p50_s"], times["p99_s"])
    )


def _percent(values: Iterable[float]) -> Sequence[str]:
    return [f"{value:.2f}" for value in values]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
