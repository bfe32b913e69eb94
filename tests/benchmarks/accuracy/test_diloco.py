"""DiLoCo's quality: ratios of mean losses, and the job of the real run."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.accuracy import diloco
from dbelief.job import parse_job
from dbelief.training.schedule import total_samples


def test_ratios_are_those_of_means() -> None:
    losses = {
        "ddp": (2.0, 2.0),
        "alone": (3.0, 2.0),
        "simulated-8": (2.0, 2.4),
        "job-8": (2.2, 2.2),
        "job-32": (2.5, 2.5),
    }
    rows = [{way: {"loss": found[seed]} for way, found in losses.items()} for seed in range(2)]
    means = {mean["way"]: mean for mean in diloco.means_of(rows, list(losses))}
    assert [means[way]["over_ddp"] for way in losses] == [1.0, 1.25, 1.1, 1.1, 1.25]
    assert [means[way]["over_simulated"] for way in losses] == [None, None, None, 1.0, None]
    assert diloco.means_of(rows, ["alone"]) == [{"way": "alone", "loss": 2.5, "over_ddp": None, "over_simulated": None}]


def test_the_job_trains_as_many_windows_as_ddp(tmp_path: Path) -> None:
    job = parse_job(json.dumps(diloco.job_fields(diloco.Setting("text", 0, diloco.STEPS, 0.001), 32)), tmp_path, "job")
    assert total_samples(job.limits, diloco.TRAIN) == 488 * 32 == 2 * diloco.TRAIN
    assert job.strategy.clock_samples == 32 * 8
