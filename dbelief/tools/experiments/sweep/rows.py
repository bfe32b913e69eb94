"""Results of the runs of a sweep: the best settings, and the table, as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.errors import UserError
from dbelief.job import Job
from dbelief.job.metrics import higher_is_better, name_of
from dbelief.monitor.format import number, percent
from dbelief.monitor.status_table import quality
from dbelief.process.atomic_file import write_whole
from dbelief.rundir.summary import Summary

from .grid import SEED, GridPoint, short_names

_Settings = tuple[tuple[str, str], ...]
DONE, FAILED, STOPPED = "done", "failed", "stopped"
SETS = ("validation", "test")
Criteria = Sequence[tuple[str, bool]]
"""Figures by which settings are compared, each with whether higher values are better: the first that all runs have."""
_USUAL: Criteria = (
    ("validation_accuracy", True), ("validation_loss", False), ("test_accuracy", True), ("test_loss", False)
)  # fmt: skip


def criteria_of(job: Job, by: str | None = None) -> Criteria:
    """The criteria of a job: a metric of it, "accuracy" or "loss"; by default `evaluate.best_by`.

    Raises
    ------
    UserError
        The job has no such metric.
    """
    better = {"accuracy": True, "loss": False}
    better |= {name_of(metric): higher_is_better(metric) for metric in job.evaluate.metrics}
    name = by or job.evaluate.best_by
    if name is None:
        return _USUAL
    if name not in better:
        raise UserError(f"--by {name}: must be one of {', '.join(better)}: what the job measures (evaluate.metrics)")
    return [(f"{one}_{name}", better[name]) for one in SETS]


@dataclass(frozen=True)
class RunRow:
    """Result of one run.

    Attributes
    ----------
    run
        Name of its folder.
    state
        done, failed, or stopped by a signal.
    reason
        Why it ended.
    validation_accuracy, test_accuracy
        Shares of correct answers, 0 to 1; None where there is none, here and below.
    validation_loss, test_loss
        Means per sample.
    validation_metrics, test_metrics
        Metrics of the job, by name.
    samples
        Number of samples whose gradients were applied.
    wall_s
        Seconds from start to end.
    """

    run: str
    settings: Mapping[str, str]
    state: str
    reason: str
    validation_accuracy: float | None = None
    validation_loss: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    samples: int | None = None
    wall_s: float | None = None
    validation_metrics: Mapping[str, float] = field(default_factory=dict)
    test_metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, point: GridPoint, state: str, reason: str, summary: Summary | None) -> RunRow:
        """The row of a run that has ended, with the values of its summary if there is one."""
        names = (*FIGURES, *(f"{one}_metrics" for one in SETS))
        figures = {} if summary is None else {name: getattr(summary, name) for name in names}
        return cls(point.name, point.settings, state, reason, **figures)

    def value(self, name: str) -> float | None:
        """A figure, or a metric as "validation_auc"; None where the run has none."""
        if name in FIGURES:
            found: float | None = getattr(self, name)
            return found
        of, _, metric = name.partition("_")
        metrics: Mapping[str, float] = getattr(self, f"{of}_metrics")
        return metrics.get(metric)

    @property
    def loss(self) -> float | None:
        """Loss on validation data; where there is none, on the test set."""
        return self.test_loss if self.validation_loss is None else self.validation_loss

    @property
    def words(self) -> str:
        """The outcome on one line."""
        if self.state != DONE:
            return f"{self.state}: {self.reason}"
        figures = {"validation": (self.validation_accuracy, self.validation_loss, self.validation_metrics)}
        figures["test"] = self.test_accuracy, self.test_loss, self.test_metrics
        reached = [f"{name} {quality(*these)}" for name, these in figures.items() if these[:2] != (None, None)]
        return ", ".join([*reached, f"{self.wall_s:.1f} s"]) if self.wall_s is not None else self.reason

    @property
    def without_seed(self) -> _Settings:
        """The settings except the seed: equal for runs that differ only in their seed."""
        return tuple((field, value) for field, value in self.settings.items() if field != SEED)


FIGURES = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss", "samples", "wall_s")


@dataclass(frozen=True)
class BestSettings:
    """The best settings: those of `runs`, by the mean of a criterion over them; `higher`: higher values are better."""

    by: str
    higher: bool
    mean: float
    runs: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def words(self) -> str:
        """The best settings on one line."""
        settings = " ".join(f"{field}={value}" for field, value in self.settings.items()) or "these settings"
        figure = percent(self.mean) if self.by.endswith("accuracy") else f"{self.mean:.4g}"
        over = f", mean of {len(self.runs)} seeds" if len(self.runs) > 1 else ""
        return f"best by {self.by.replace('_', ' ')}: {settings}: {figure}{over}"


def best_of(rows: Sequence[RunRow], criteria: Criteria = _USUAL) -> BestSettings | None:
    """The settings with the best mean over seeds, among those all of whose runs are done; the first of equals.

    By the first criterion that all of them have; else by the first that some have, among these: usually validation
    accuracy, validation loss, then the test set's, which is not meant for selection. None where nothing can be
    compared.
    """
    groups: dict[_Settings, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.without_seed, []).append(row)
    whole = {key: group for key, group in groups.items() if all(row.state == DONE for row in group)}
    found = [(by, higher, _means(whole, by)) for by, higher in criteria]
    ranked = [one for one in found if len(one[2]) == len(whole)] or found
    by, higher, means = next((one for one in ranked if one[2]), ("", True, {}))
    if not means:
        return None
    key = (max if higher else min)(means, key=means.__getitem__)
    return BestSettings(by, higher, means[key], tuple(row.run for row in whole[key]), dict(key))


def _means(whole: Mapping[_Settings, Sequence[RunRow]], by: str) -> dict[_Settings, float]:
    """Mean of a figure over seeds, of the settings all of whose runs have it."""
    values = {key: [row.value(by) for row in group] for key, group in whole.items()}
    complete = {key: [one for one in group if one is not None] for key, group in values.items() if None not in group}
    return {key: statistics.fmean(group) for key, group in complete.items()}


def _metrics_of(rows: Sequence[RunRow]) -> list[str]:
    """Metrics of some runs, as "validation_auc"; of the test set those alone that validation lacks."""
    validated = _names_of(rows, "validation")
    tested = [name for name in _names_of(rows, "test") if name not in validated]
    return [*(f"validation_{name}" for name in validated), *(f"test_{name}" for name in tested)]


def _names_of(rows: Sequence[RunRow], one: str) -> list[str]:
    """Names of the metrics of a data set that some run has."""
    return list(dict.fromkeys(name for row in rows for name in getattr(row, f"{one}_metrics")))


def table(rows: Sequence[RunRow], criteria: Criteria = _USUAL) -> RenderableType:
    """Table with a row for each run, the best settings marked; then the best settings, and failed runs with reasons."""
    best, metrics = best_of(rows, criteria), _metrics_of(rows)
    fields = short_names(rows[0].settings) if rows else {}
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    shown.add_column("")
    for title in fields.values():
        shown.add_column(title, overflow="fold")
    titles = [name.removeprefix("validation_").replace("_", " ") for name in metrics]
    for title in ("validation", "test", "loss", *titles, "samples", "seconds"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        marked = best is not None and row.run in best.runs
        shown.add_row(
            "*" if marked else "",
            *(Text(row.settings[field]) for field in fields),
            percent(row.validation_accuracy),
            percent(row.test_accuracy),
            number(row.loss, ".4g"),
            *(number(row.value(name), ".4g") for name in metrics),
            number(row.samples, ",d"),
            number(row.wall_s, ".1f"),
            style="bold" if marked else "",
        )
    ends = [Text(f"{row.run}: {row.state}: {row.reason}") for row in rows if row.state != DONE]
    return Group(shown, Text(f"* {best.words}" if best else "nothing can be compared"), *ends)


def write_rows(folder: Path, job: str, rows: Sequence[RunRow], criteria: Criteria = _USUAL) -> None:
    """Write sweep.json and sweep.csv, each atomically.

    Raises
    ------
    WriteFailed
        The file cannot be written, for example because the disk is full.
    """
    best = best_of(rows, criteria)
    content = {"job": job, "best": None if best is None else asdict(best), "runs": [asdict(row) for row in rows]}
    write_whole(folder / "sweep.json", (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    text = io.StringIO(newline="")
    fields = list(rows[0].settings) if rows else []
    writer = csv.writer(text, lineterminator="\n")
    metrics = [f"{one}_{name}" for one in SETS for name in _names_of(rows, one)]
    writer.writerow([*fields, *FIGURES, *metrics, "best", "state", "reason", "run"])
    for row in rows:
        figures = ["" if (value := row.value(name)) is None else value for name in (*FIGURES, *metrics)]
        marked = best is not None and row.run in best.runs
        writer.writerow([*row.settings.values(), *figures, str(marked).lower(), row.state, row.reason, row.run])
    write_whole(folder / "sweep.csv", text.getvalue().encode())
