"""The table of a comparison: one row for each strategy, number of replicas and wait; medians over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict, Field

from dbelief.monitor.format import number, percent, plural
from dbelief.tools.report.text_report import SHARES, shares

from .record import Record, key_of


class Reached(BaseModel):
    """Medians of how a strategy reached a target; values that do not exist are None.

    A run that did not reach it counts as infinitely long.
    """

    model_config = ConfigDict(frozen=True)

    runs: int = Field(description="that reached it")
    seconds: float | None = Field(description="median over seeds")
    quickest: float | None = Field(description="seconds of the quickest seed")
    slowest: float | None = Field(description="seconds of the slowest seed")
    samples: float | None = Field(description="median over seeds")
    times: float | None = Field(default=None, description="as fast as the slowest strategy with the same wait")


class StrategyRow(BaseModel):
    """One strategy's row."""

    model_config = ConfigDict(frozen=True)

    label: str
    replicas: int
    wait_s: float
    runs: int = Field(description="that ended well")
    failed: list[str] = Field(description="why others did not")
    accuracy: float | None = Field(description="at the end, median")
    metrics: dict[str, float] = Field(description="`evaluate.metrics` on the test set at the end, medians")
    samples_per_s: float | None = Field(description="median")
    staleness: float | None = Field(description="median, versions")
    shares: dict[str, float] = Field(description="of all replicas' time, mean over runs")
    reached: dict[str, Reached] = Field(description="by target, as text")


def rows_of(records: Iterable[Record], targets: Sequence[float]) -> list[StrategyRow]:
    """Rows in the order of their first records."""
    groups: dict[tuple[float, str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.wait_s, record.label, record.replicas), []).append(record)
    by_wait = sorted(groups.items(), key=lambda group: group[0][0])
    rows = [_row(group, [key_of(target) for target in targets]) for _, group in by_wait]
    return [_compared(row, rows) for row in rows]


def _row(records: Sequence[Record], targets: Sequence[str]) -> StrategyRow:
    good = [record for record in records if not record.failed]
    parts = [found for record in good if (found := shares(record.phase_seconds))]
    return StrategyRow(
        label=records[0].label,
        replicas=records[0].replicas,
        wait_s=records[0].wait_s,
        runs=len(good),
        failed=[f"seed {record.seed}: {record.failed}" for record in records if record.failed],
        accuracy=_median(record.accuracy for record in good),
        metrics={
            name: median(record.metrics[name] for record in good if name in record.metrics)
            for name in _metrics_of(good)
        },
        samples_per_s=_median(record.samples / record.seconds if record.seconds else None for record in good),
        staleness=_median(record.staleness for record in good),
        shares={name: fmean(found[name] for found in parts) for name in SHARES} if parts else {},
        reached={target: _reached(good, target) for target in targets},
    )


def _reached(records: Sequence[Record], target: str) -> Reached:
    found = [record.reached.get(target) for record in records]
    seconds = sorted(math.inf if at is None else at.seconds for at in found)
    samples = sorted(math.inf if at is None else at.samples for at in found)
    return Reached(
        runs=sum(at is not None for at in found),
        seconds=_finite(median(seconds)) if seconds else None,
        quickest=_finite(seconds[0]) if seconds else None,
        slowest=_finite(seconds[-1]) if seconds else None,
        samples=_finite(median(samples)) if samples else None,
    )


def _compared(row: StrategyRow, rows: Sequence[StrategyRow]) -> StrategyRow:
    """The row with its speed-up over the slowest row of the same wait that reached the target."""
    reached = {}
    for target, own in row.reached.items():
        others = [other.reached[target].seconds for other in rows if other.wait_s == row.wait_s]
        slowest = max((seconds for seconds in others if seconds is not None), default=None)
        times = slowest / own.seconds if slowest and own.seconds else None
        reached[target] = own.model_copy(update={"times": times})
    return row.model_copy(update={"reached": reached})


def _metrics_of(found: Iterable[Record | StrategyRow]) -> list[str]:
    return list(dict.fromkeys(name for one in found for name in one.metrics))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def in_markdown(name: str, rows: Sequence[StrategyRow], targets: Sequence[float]) -> str:
    """The table as Markdown, one section for each wait."""
    text = [f"# {name}", ""]
    for wait_s in dict.fromkeys(row.wait_s for row in rows):
        if wait_s:
            text += [f"With {1000 * wait_s:g} ms of waiting added to each computation:", ""]
        text += [*_lines([row for row in rows if row.wait_s == wait_s], targets), ""]
    return "\n".join(text)


def _lines(rows: Sequence[StrategyRow], targets: Sequence[float]) -> list[str]:
    metrics = _metrics_of(rows)
    titles = [
        "strategy",
        "replicas",
        "test accuracy",
        *(f"test {name.replace('_', ' ')}" for name in metrics),
        "samples/s",
    ]
    for target in targets:
        titles += [f"s to {100 * target:g} %", f"samples to {100 * target:g} %", "times as fast"]
    titles += [*SHARES, "staleness"]
    cells = [titles, ["---", *["---:"] * (len(titles) - 1)]]
    cells += [_cells(row, targets, metrics) for row in rows]
    failed = [f"{row.label}, {plural(row.replicas, 'replica')}, {reason}" for row in rows for reason in row.failed]
    return ["| " + " | ".join(line) + " |" for line in cells] + [""] * bool(failed) + [f"* {line}" for line in failed]


def _cells(row: StrategyRow, targets: Sequence[float], metrics: Sequence[str]) -> list[str]:
    cells = [
        row.label,
        str(row.replicas),
        percent(row.accuracy),
        *(number(row.metrics.get(name), ".4g") for name in metrics),
        number(row.samples_per_s, ",.0f"),
    ]
    for target in targets:
        reached = row.reached[key_of(target)]
        cells += [_time(reached, row.runs), number(reached.samples, ",.0f"), number(reached.times, ".2f")]
    cells += [percent(row.shares.get(name), ".1f") for name in SHARES]
    return [*cells, number(row.staleness, ".2f")]


def _time(reached: Reached, runs: int) -> str:
    if not reached.runs:
        return "never" if runs else "failed"
    some = f" ({reached.runs} of {runs} runs)" if reached.runs < runs else ""
    spread = f" ({reached.quickest:.1f} to {reached.slowest:.1f})" if runs > 1 and reached.slowest is not None else some
    return number(reached.seconds, ".1f") + spread
