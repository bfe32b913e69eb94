"""Metrics of a job: in the events, the summary, the status, and as what ends it and decides on the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import dbelief

pytestmark = [pytest.mark.processes, pytest.mark.long]

SCORES = """
def share_of_zeros(outputs, targets):
    return (targets == 0).mean()
"""
JOB = """
name: measured
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}}
limits: {epochs: 20, validation_metrics: {auc: 0.99}}
evaluate:
  every: 300
  best_by: log_loss
  metrics: [auc, top_2, log_loss, calibration_error, {name: zeros, python: "scores.py:share_of_zeros", better: lower}]
"""


def test_they_are_measured_and_end_the_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "scores.py").write_text(SCORES)
    dbelief("train", "--quiet", "job.yaml", folder=tmp_path)
    folder = tmp_path / "runs/measured"
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert summary["samples"] < 20 * 1257
    assert summary["reason"].startswith("validation auc 0.99")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["event"] == "evaluation" and event["set"] == "validation"]
    assert found[-1]["metrics"]["auc"] >= 0.99
    assert all(event["metrics"]["auc"] < 0.99 for event in found[:-1])
    best = min(found, key=lambda event: event["metrics"]["log_loss"])
    assert summary["validation_metrics"] == best["metrics"]
    assert best["metrics"]["zeros"] == pytest.approx(0.1, abs=0.02)
    assert best["metrics"]["log_loss"] == pytest.approx(summary["validation_loss"], rel=1e-5), "the loss is the same"
    assert best["metrics"]["top_2"] > summary["validation_accuracy"]
    again = json.loads(dbelief("evaluate", str(folder)))
    assert again["metrics"] == pytest.approx(summary["test_metrics"], rel=1e-6)
    assert "auc 0.99" in dbelief("status", str(folder))
