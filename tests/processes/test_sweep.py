"""`dbelief sweep`, by real processes: what is done, what fails, and what is not run again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: small
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 32, warm_start: null, rule: {name: caffe-momentum, rate: 0.1, weight_decay: 1e-4}}
schedule: {kind: poly, power: 0.5, warm_up: {samples: 320}, scale: {reference_batch: 16}}
limits: {samples: 960}
shards: 1
"""


def told(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "runs" / "small-sweep" / "sweep.json").read_text())
    return found


@pytest.mark.long
def test_diverged_run_is_a_row_and_finished_runs_are_reused(operator: Operator) -> None:
    job = str(operator.write_job(JOB))
    first = operator.start("first", "sweep", job, "--set", "lr=0.05,1e38")
    assert first.ends() == 0
    fine, bad = told(operator.folder)["runs"]
    assert (fine["state"], fine["samples"], fine["run"]) == ("done", 960, "lr-0.05")
    assert fine["test_accuracy"] > 0.5
    assert (bad["state"], bad["test_accuracy"]) == ("failed", None)
    assert "not finite" in bad["reason"]
    summary = json.loads((operator.folder / "runs" / "small-sweep" / "lr-0.05" / "summary.json").read_text())
    assert fine["validation_accuracy"] == summary["validation_accuracy"]
    assert fine["wall_s"] == summary["wall_s"]

    again = operator.start("again", "sweep", job, "--set", "lr=0.05")
    assert again.ends() == 0
    assert "1 of 1 runs are done already, and not run again" in again.log.read_text()
    assert told(operator.folder)["runs"] == [fine]


def test_ctrl_c_ends_it_with_the_table_so_far(operator: Operator) -> None:
    job = str(
        operator.write_job(JOB.replace("samples: 960", "wall_s: 600").replace("power: 0.5", "power: 0.5, total: 960"))
    )
    sweep = operator.start("sweep", "sweep", job, "--set", "lr=0.05,0.1", "--seeds", "0,1")
    sweep.said("(run 1 of 4: lr=0.05 seed=0)")
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.ends() == 130
    assert "3 of 4 runs were not begun" in sweep.log.read_text()
    (row,) = told(operator.folder)["runs"]
    assert row["state"] == "stopped"
