"""Results of the runs of a sweep: the best settings, and the table, as text, JSON and CSV."""

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import number
from dbelief.monitor.status_table import quality
from dbelief.process.atomic_file import write_whole
from dbelief.rundir.summary import Summary

from .grid import SEED, Point, short_names

DONE, FAILED, STOPPED = "done", "failed", "stopped"


@dataclass(frozen=True)
class Row:
    """Result of one run.

    Attributes
    ----------
    run
        Name of its folder.
    state
        done, failed, or stopped by Ctrl-C.
    reason
        Why it ended.
    validation_accuracy, test_accuracy
        Shares of correct answers, 0 to 1; None where there is none, here and below.
    validation_loss, test_loss
        Means per sample.
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

    @classmethod
    def of(cls, point: Point, state: str, reason: str, summary: Summary | None) -> "Row":
        """The row of a run that has ended, with the values of its summary if there is one."""
        figures = {} if summary is None else {name: getattr(summary, name) for name in FIGURES}
        return cls(point.name, point.settings, state, reason, **figures)

    @property
    def loss(self) -> float | None:
        """Loss on validation data; where there is none, on the test set."""
        return self.test_loss if self.validation_loss is None else self.validation_loss

    @property
    def words(self) -> str:
        """The outcome on one line."""
        if self.state != DONE:
            return f"{self.state}: {self.reason}"
        figures = {"validation": (self.validation_accuracy, self.validation_loss)}
        figures["test"] = self.test_accuracy, self.test_loss
        reached = [f"{name} {quality(*pair, {})}" for name, pair in figures.items() if pair != (None, None)]
        return ", ".join([*reached, f"{self.wall_s:.1f} s"]) if self.wall_s is not None else self.reason

    @property
    def without_seed(self) -> tuple[tuple[str, str], ...]:
        """The settings except the seed: equal for runs that differ only in their seed."""
        return tuple((field, value) for field, value in self.settings.items() if field != SEED)


FIGURES = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss", "samples", "wall_s")
_MEASURES = {"validation_accuracy": -1, "validation_loss": 1, "test_accuracy": -1, "test_loss": 1}
"""Criteria for comparing settings: the first one that every run has is used. 1: smaller is better, -1: larger."""


@dataclass(frozen=True)
class Best:
    """The best settings: those of `runs`, by the mean of a criterion over them."""

    by: str
    mean: float
    runs: tuple[str, ...]
    settings: Mapping[str, str]

    @property
    def words(self) -> str:
        """The best settings on one line."""
        settings = " ".join(f"{field}={value}" for field, value in self.settings.items()) or "these settings"
        figure = f"{100 * self.mean:.2f} %" if self.by.endswith("accuracy") else f"{self.mean:.4g}"
        over = f", mean of {len(self.runs)} seeds" if len(self.runs) > 1 else ""
        return f"best by {self.by.replace('_', ' ')}: {settings}: {figure}{over}"


def best_of(rows: Sequence[Row]) -> Best | None:
    """The settings with the best mean over seeds, among those all of whose runs are done; the first of equals.

    By validation accuracy; where runs have none, by validation loss, then by the test set's, which is not meant for
    selection. None where nothing can be compared.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.without_seed, []).append(row)
    whole = {key: group for key, group in groups.items() if all(row.state == DONE for row in group)}
    for by, sign in _MEASURES.items():
        values = {key: [getattr(row, by) for row in group] for key, group in whole.items()}
        if values and all(value is not None for group in values.values() for value in group):
            means = {key: statistics.fmean(group) for key, group in values.items()}
            key = min(means, key=lambda one: sign * means[one])
            return Best(by, means[key], tuple(row.run for row in whole[key]), dict(key))
    return None


def table(rows: Sequence[Row]) -> RenderableType:
    """Table with a row for each run, the best settings marked; then the best settings, and failed runs with reasons."""
    best = best_of(rows)
    fields = short_names(rows[0].settings) if rows else {}
    shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    shown.add_column("")
    for title in fields.values():
        shown.add_column(title, overflow="fold")
    for title in ("validation", "test", "loss", "samples", "seconds"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        marked = best is not None and row.run in best.runs
        shown.add_row(
            "*" if marked else "",
            *(Text(row.settings[field]) for field in fields),
            _percent(row.validation_accuracy),
            _percent(row.test_accuracy),
            number(row.loss, ".4g"),
            number(row.samples, ",d"),
            number(row.wall_s, ".1f"),
            style="bold" if marked else "",
        )
    ends = [Text(f"{row.run}: {row.state}: {row.reason}") for row in rows if row.state != DONE]
    return Group(shown, Text(f"* {best.words}" if best else "nothing can be compared"), *ends)


def _percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, ".2f") + (" %" if share is not None else "")


def write_rows(folder: Path, job: str, rows: Sequence[Row]) -> None:
    """Write sweep.json and sweep.csv, each atomically.

    Raises
    ------
    WriteFailed
        The file cannot be written, for example because the disk is full.
    """
    best = best_of(rows)
    content = {"job": job, "best": None if best is None else asdict(best), "runs": [asdict(row) for row in rows]}
    write_whole(folder / "sweep.json", (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    text = io.StringIO(newline="")
    fields = list(rows[0].settings) if rows else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*fields, *FIGURES, "best", "state", "reason", "run"])
    for row in rows:
        figures = ["" if (value := getattr(row, name)) is None else value for name in FIGURES]
        marked = best is not None and row.run in best.runs
        writer.writerow([*row.settings.values(), *figures, str(marked).lower(), row.state, row.reason, row.run])
    write_whole(folder / "sweep.csv", text.getvalue().encode())
