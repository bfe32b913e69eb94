"""Errors of predictions: their arithmetic, what is missing, and which records are used for what."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulate import accuracy
from benchmarks.simulate.plan import CALIBRATION, PREDICTED


def record(number: int, part: str, others: float = 0.0, **measured: float | None) -> dict[str, Any]:
    one = {"number": number, "part": part}
    return {"configuration": one, "name": f"run {number}", "measured": measured, "others": others, "error": None}


class Fixed:
    """Predicts what the runs for the calibration had in the mean."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Any]] = []

    def calibrated(self, runs: Sequence[accuracy.Record]) -> float:
        return float(sum(run["measured"]["samples_per_s"] for run in runs) / len(runs))

    def predict(self, configuration: accuracy.Record, costs: Any) -> Mapping[str, float | None]:
        self.seen.append(configuration)
        return {"samples_per_s": costs, "failover_s": None}


def test_an_error_is_a_share_of_what_was_measured() -> None:
    assert accuracy.error_of("samples_per_s", 200.0, 150.0) == 0.25
    assert accuracy.error_of("samples_per_s", 200.0, 250.0) == 0.25
    assert accuracy.error_of("staleness_mean", 0.0, 0.0) == 0.0
    assert accuracy.error_of("staleness_mean", 0.1, 0.15) == pytest.approx(0.1), "as a share of 0.5 versions"
    assert accuracy.error_of("samples_per_s", 200.0, None) == math.inf
    assert accuracy.error_of("samples_per_s", 200.0, math.nan) == math.inf


def test_only_the_calibration_is_seen_with_its_measurement() -> None:
    fixed = Fixed()
    found = [record(0, CALIBRATION, samples_per_s=90.0), record(1, CALIBRATION, samples_per_s=110.0)]
    found += [record(2, PREDICTED, samples_per_s=80.0, failover_s=2.0), record(3, PREDICTED, samples_per_s=100.0)]
    rows = accuracy.compared(found, fixed)
    assert [(row["number"], row["measure"], row["error"]) for row in rows] == [
        (2, "samples_per_s", 0.25),
        (2, "failover_s", math.inf),
        (3, "samples_per_s", 0.0),
    ]
    assert [one["number"] for one in fixed.seen] == [2, 3]
    assert all("measured" not in one for one in fixed.seen)


def test_a_sum_has_median_quantile_and_misses() -> None:
    rows = [{"error": share / 100} for share in range(1, 21)]
    assert accuracy.summed_up(rows) == {"of": 20, "median": 0.11, "quantile_90": 0.19, "misses": 5}
    assert accuracy.summed_up([{"error": 0.0}, {"error": math.inf}])["quantile_90"] is None
    assert accuracy.summed_up([]) == {"of": 0, "median": None, "quantile_90": None, "misses": 0}


def test_sums_are_of_each_measure_and_of_calm_runs() -> None:
    found = [record(0, CALIBRATION, samples_per_s=100.0), record(1, PREDICTED, 0.1, samples_per_s=100.0)]
    found += [record(2, PREDICTED, 1.5, samples_per_s=50.0, failover_s=1.0)]
    by_measure = {one["measure"]: one for one in accuracy.summaries(accuracy.compared(found, Fixed()), 0.5)}
    assert list(by_measure) == ["samples_per_s", "failover_s", accuracy.ALL]
    assert (by_measure["samples_per_s"]["of"], by_measure["samples_per_s"]["misses"]) == (2, 1)
    assert by_measure["samples_per_s"]["calm"] == {"of": 1, "median": 0.0, "quantile_90": 0.0, "misses": 0}
    assert (by_measure[accuracy.ALL]["of"], by_measure[accuracy.ALL]["misses"]) == (3, 2)


def test_records_without_a_measurement_are_left_out(tmp_path: Path) -> None:
    for number, error in ((7, None), (8, "TimeoutError: waited")):
        (tmp_path / f"{number:02}").mkdir()
        written = {**record(number, PREDICTED, samples_per_s=1.0), "error": error}
        (tmp_path / f"{number:02}" / "run.json").write_text(json.dumps(written))
    (one,) = accuracy.records(tmp_path)
    assert one["configuration"]["number"] == 7
    assert one["configuration"]["fleet_file"] == str(tmp_path / "07" / "fleet.yaml")
