"""Which settings are best, and the table in its three forms."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dbelief.errors import UserError
from dbelief.tools.experiments.sweep.grid import points
from dbelief.tools.experiments.sweep.rows import RunRow, best_of, criteria_of, table, write_rows
from tests.coordinator.world import make_job


def rows(sets: dict[str, str], *figures: dict[str, Any]) -> list[RunRow]:
    """A row for each point; done unless its figures say otherwise."""
    ended = {"state": "done", "reason": "all trained", "samples": 5000, "wall_s": 2.5}
    found = points(sets)
    return [RunRow(point.name, point.settings, **{**ended, **own}) for point, own in zip(found, figures, strict=True)]


def accuracies(*values: float | None) -> list[dict[str, Any]]:
    return [{"validation_accuracy": value, "validation_loss": 0.5, "test_accuracy": 0.25} for value in values]


FAILED = {"state": "failed", "reason": "gradient of 'w' holds nan"}


def test_the_best_has_the_highest_validation_accuracy() -> None:
    best = best_of(rows({"lr": "1,2,3"}, *accuracies(0.5, 0.75, 0.625)))
    assert best is not None
    assert (best.by, best.mean, best.runs, best.settings) == ("validation_accuracy", 0.75, ("lr-2",), {"lr": "2"})
    assert best.words == "best by validation accuracy: lr=2: 75.00 %"


def test_the_first_of_equals() -> None:
    best = best_of(rows({"lr": "1,2,3"}, *accuracies(0.5, 0.75, 0.75)))
    assert best is not None
    assert best.runs == ("lr-2",)


def test_seeds_are_taken_together() -> None:
    # seeds change slowest: lr 1 and 2 with seed 0, then with seed 1
    best = best_of(rows({"lr": "1,2", "seed": "0,1"}, *accuracies(0.9, 0.7, 0.3, 0.6)))
    assert best is not None
    assert best.mean == pytest.approx(0.65)
    assert best.runs == ("lr-2_seed-0", "lr-2_seed-1")
    assert best.words == "best by validation accuracy: lr=2: 65.00 %, mean of 2 seeds"


def test_settings_with_a_run_that_failed_are_not_the_best() -> None:
    best = best_of(rows({"lr": "1,2", "seed": "0,1"}, *accuracies(0.9, 0.7, 0.9), FAILED))
    assert best is not None
    assert best.settings == {"lr": "1"}
    assert best_of(rows({"lr": "1"}, FAILED)) is None
    assert best_of([]) is None


@pytest.mark.parametrize(
    ("figures", "by", "lr"),
    [
        ([{"validation_loss": 0.25}, {"validation_loss": 0.5}], "validation_loss", "1"),
        ([{"test_accuracy": 0.25}, {"test_accuracy": 0.5}], "test_accuracy", "2"),
        ([{"test_loss": 0.25, "test_accuracy": 0.1}, {"test_loss": 0.5}], "test_loss", "1"),
    ],
)
def test_without_validation_accuracy_the_next_that_all_have(figures: list[dict[str, Any]], by: str, lr: str) -> None:
    best = best_of(rows({"lr": "1,2"}, *figures))
    assert best is not None
    assert (best.by, best.settings) == (by, {"lr": lr})


def shown(found: list[RunRow]) -> str:
    text = io.StringIO()
    Console(width=100, file=text).print(table(found))
    return text.getvalue()


def test_table_marks_the_best_and_lists_failures() -> None:
    lines = shown(rows({"lr": "1,2", "strategy.batch": "32"}, *accuracies(0.5), FAILED)).splitlines()
    assert lines[0].split() == ["lr", "batch", "validation", "test", "loss", "samples", "seconds"]
    assert lines[1].split() == ["*", "1", "32", "50.00", "%", "25.00", "%", "0.5", "5,000", "2.5"]
    assert lines[2].split() == ["2", "32", "–", "–", "–", "5,000", "2.5"]
    assert lines[3].strip() == "* best by validation accuracy: lr=1 strategy.batch=32: 50.00 %"
    assert lines[4].strip() == "lr-2_batch-32: failed: gradient of 'w' holds nan"


def test_nothing_can_be_compared() -> None:
    assert "nothing can be compared" in shown(rows({"lr": "1"}, FAILED))


def test_json_and_csv_match_the_table(tmp_path: Path) -> None:
    found = rows({"lr": "1,2", "data.file": "'a,b'"}, *accuracies(0.5), FAILED)
    write_rows(tmp_path, "small", found)
    told = json.loads((tmp_path / "sweep.json").read_text())
    assert told["job"] == "small"
    assert told["best"]["settings"] == {"lr": "1", "data.file": "'a,b'"}
    assert [RunRow(**row) for row in told["runs"]] == found
    with (tmp_path / "sweep.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["data.file"] for row in read] == ["'a,b'"] * 2
    assert [row["best"] for row in read] == ["true", "false"]
    assert [row["validation_accuracy"] for row in read] == ["0.5", ""]
    assert [row["state"] for row in read] == ["done", "failed"]


def test_how_a_run_ended_on_one_line() -> None:
    done, failed = rows({"lr": "1,2"}, *accuracies(0.5), FAILED)
    assert done.words == "validation 50.00 %, loss 0.5000, test 25.00 %, 2.5 s"
    assert failed.words == "failed: gradient of 'w' holds nan"


def measured(*values: float | None, name: str = "auc") -> list[dict[str, Any]]:
    """Figures of runs with a metric on validation data; None: it is not defined for them."""
    return [
        {"validation_accuracy": 0.5, "validation_metrics": {} if value is None else {name: value}} for value in values
    ]


@pytest.mark.parametrize(
    ("metric", "best", "cells"), [("auc", "2", ["0.75", "0.875"]), ("log_loss", "1", ["0.75", "0.875"])]
)
def test_a_metric_decides_and_which_values_are_better_is_the_metrics_own(
    metric: str, best: str, cells: list[str], tmp_path: Path
) -> None:
    job = make_job(evaluate={"metrics": ["auc", "log_loss"], "best_by": metric})
    found = rows({"lr": "1,2"}, *measured(0.75, 0.875, name=metric))
    assert criteria_of(job) == criteria_of(make_job(evaluate={"metrics": [metric]}), by=metric)
    chosen = best_of(found, criteria_of(job))
    assert chosen is not None
    assert (chosen.by, chosen.settings) == (f"validation_{metric}", {"lr": best})
    text = shown(found)
    assert metric.replace("_", " ") in text.splitlines()[0]
    assert [cell in line for cell, line in zip(cells, text.splitlines()[1:], strict=False)] == [True, True]
    write_rows(tmp_path, "small", found, criteria_of(job))
    assert json.loads((tmp_path / "sweep.json").read_text())["best"]["settings"] == {"lr": best}
    with (tmp_path / "sweep.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row[f"validation_{metric}"] for row in read] == cells
    assert [row["best"] for row in read] == [str(row["lr"] == best).lower() for row in read]


def test_settings_without_the_metric_are_not_the_best_by_it() -> None:
    chosen = best_of(rows({"lr": "1,2,3"}, *measured(0.7, None, 0.8)), [("validation_auc", True), ("test_auc", True)])
    assert chosen is not None
    assert chosen.settings == {"lr": "3"}


def test_an_own_metric_says_which_values_are_better_and_others_are_refused() -> None:
    own = {"name": "cost", "python": "costs.py:cost", "better": "lower"}
    job = make_job(evaluate={"metrics": [own]})
    assert criteria_of(job, by="cost") == [("validation_cost", False), ("test_cost", False)]
    assert criteria_of(job, by="accuracy") == [("validation_accuracy", True), ("test_accuracy", True)]
    with pytest.raises(UserError, match=r"--by auc: must be one of accuracy, loss, cost"):
        criteria_of(job, by="auc")
