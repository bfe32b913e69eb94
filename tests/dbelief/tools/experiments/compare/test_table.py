from __future__ import annotations

from typing import Any

import pytest

from dbelief.tools.experiments.compare.record import Record
from dbelief.tools.experiments.compare.table import StrategyRow, in_markdown, rows_of
from dbelief.tools.experiments.compare.time_to_target import RunPoint

TARGETS = [0.97, 0.988]


def record(label: str, seed: int, seconds: float | None, **more: Any) -> Record:
    """Of a run that reached 97 % half-way to 98.8 %."""
    there: dict[str, RunPoint | None] = {"0.97": None, "0.988": None}
    if seconds is not None:
        there = {"0.97": RunPoint(seconds=seconds / 2, samples=50), "0.988": RunPoint(seconds=seconds, samples=100)}
    fields: dict[str, Any] = {"replicas": 4, "wait_s": 0.0, "digest": "", "accuracy": 0.99, "samples": 1000}
    fields |= {"seconds": 20.0, "staleness": 1.5, "reached": there}
    fields |= {"phase_seconds": {"0": {"compute": 6.0, "data": 1.0, "fetch": 1.0, "push": 1.0, "wait": 1.0}}}
    return Record(label=label, seed=seed, **(fields | more))


def test_times_are_medians_relative_to_the_slowest() -> None:
    records = [record("slow", seed, seconds) for seed, seconds in enumerate((30.0, 90.0, 40.0))]
    records += [record("quick", seed, seconds) for seed, seconds in enumerate((10.0, 11.0, 9.0))]
    slow, quick = rows_of(records, TARGETS)
    assert (slow.label, slow.runs, slow.accuracy, slow.samples_per_s) == ("slow", 3, 0.99, 50.0)
    found = slow.reached["0.988"]
    assert (found.seconds, found.quickest, found.slowest, found.times) == (40.0, 30.0, 90.0, 1.0)
    assert quick.reached["0.988"].times == 4.0
    assert quick.reached["0.97"].seconds == 5.0
    assert quick.shares == pytest.approx({"compute": 0.6, "data": 0.1, "communicate": 0.2, "wait": 0.1})


def test_a_run_that_does_not_get_there_takes_forever() -> None:
    one, most = (
        rows_of([record("a", seed, seconds) for seed, seconds in enumerate(times)], TARGETS)[0].reached["0.988"]
        for times in ((10.0, None, 20.0), (10.0, None, None))
    )
    assert (one.runs, one.seconds, one.slowest) == (2, 20.0, None)
    assert (most.runs, most.seconds, most.quickest) == (1, None, 10.0)


def test_a_strategy_that_fails_is_a_row_with_its_reason() -> None:
    failed = record("broken", 0, None, failed="diverged: the training loss is nan", reached={})
    rows = rows_of([failed, record("good", 0, 10.0)], TARGETS)
    assert [row.runs for row in rows] == [0, 1]
    text = in_markdown("mnist", rows, TARGETS)
    assert "| broken | 4 | – | – | failed |" in text
    assert "* broken, 4 replicas, seed 0: diverged: the training loss is nan" in text


def test_waits_have_tables_of_their_own() -> None:
    rows = rows_of([record("a", 0, 10.0), record("a", 0, 40.0, wait_s=0.1), record("b", 0, 20.0, wait_s=0.1)], TARGETS)
    assert [(row.wait_s, row.reached["0.988"].times) for row in rows] == [(0.0, 1.0), (0.1, 1.0), (0.1, 2.0)]
    text = in_markdown("mnist", rows, TARGETS)
    assert text.count("| strategy |") == 2
    assert "With 100 ms of waiting added to each computation:" in text


def cells(rows: list[StrategyRow]) -> list[list[str]]:
    lines = [line for line in in_markdown("mnist", rows, TARGETS).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_has_a_cell_for_every_title() -> None:
    records = [record("a", seed, seconds) for seed, seconds in enumerate((10.0, None))]
    titles, marks, row = cells(rows_of(records, TARGETS))
    assert len(titles) == len(marks) == len(row)
    named = dict(zip(titles, row, strict=True))
    assert named["s to 98.8 %"] == "– (1 of 2 runs)"
    assert named["communicate"] == "20.0 %"


def test_metrics_of_the_job_are_columns() -> None:
    records = [record("a", seed, 10.0, metrics={"auc": auc}) for seed, auc in enumerate((0.9, 0.8, 0.95))]
    records += [record("b", 0, 10.0, metrics={"top_5": 0.99}), record("b", 1, 10.0)]
    rows = rows_of(records, TARGETS)
    assert [row.metrics for row in rows] == [{"auc": 0.9}, {"top_5": 0.99}]
    head, _, first, second = in_markdown("mnist", rows, TARGETS).splitlines()[2:6]
    assert head.startswith("| strategy | replicas | test accuracy | test auc | test top 5 | samples/s |")
    assert first.startswith("| a | 4 | 99.00 % | 0.9 | – | 50 |")
    assert second.startswith("| b | 4 | 99.00 % | – | 0.99 | 50 |")
