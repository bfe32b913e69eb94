"""DiLoCo's quality: ratios of mean losses and bytes, and the jobs of the real runs."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.accuracy import diloco
from dbelief.job import Job, build_job
from dbelief.training.schedule import total_samples

SETTING = diloco.Setting("text", 0, diloco.STEPS)


def job_of(fields: str) -> Job:
    return build_job(diloco.job_fields(SETTING), Path(), "job", diloco.overrides_of(fields))


def test_ratios_are_those_of_the_seeds_that_both_have() -> None:
    losses = {
        "ddp": (2.0, 2.0),
        "alone": (3.0, 2.0),
        "simulated-8": (2.0, 2.4),
        "job-8": (2.2, 2.2),
        "job-32": (2.5, 3.5),
        "int8": (2.75,),
    }
    sent = {"ddp": 600, "alone": 0, "job-8": 75, "job-32": 15}
    rows = [
        {"way": way, "seed": seed, "loss": loss, "ring": 600}
        | ({"sent": sent[way], "received": 2 * sent[way]} if way in sent else {})
        for way, found in losses.items()
        for seed, loss in enumerate(found)
    ]
    means = {mean["way"]: mean for mean in diloco.means_of(rows)}
    assert [means[way]["seeds"] for way in losses] == [2, 2, 2, 2, 2, 1]
    assert [means[way]["over_ddp"] for way in losses] == [None, 1.25, 1.1, 1.1, 1.5, 1.375]
    assert [means[way]["over_simulated"] for way in losses] == [None, None, None, 1.0, None, None]
    assert [means[way]["over_float32"] for way in losses] == [None, None, None, None, None, 1.1]
    assert [means[way]["fewer"] for way in losses] == [
        pytest.approx(2 / 3),
        None,
        None,
        pytest.approx(16 / 3),
        pytest.approx(80 / 3),
        None,
    ]
    (mean,) = diloco.means_of([row for row in rows if row["way"] == "alone"])
    assert (mean["loss"], mean["over_ddp"], mean["over_simulated"]) == (2.5, None, None)


def test_a_ring_of_four_sends_six_bytes_of_a_parameter_and_step() -> None:
    assert diloco.with_ring(1_000, 488) == {"sent": 6 * 1_000 * 488, "received": 6 * 1_000 * 488}


def test_the_job_trains_as_many_windows_as_ddp() -> None:
    job = job_of("steps=32")
    assert total_samples(job.limits, diloco.TRAIN) == 488 * 32 == 2 * diloco.TRAIN
    assert job.strategy.clock_samples == 32 * 8


@pytest.mark.parametrize("fields", diloco.JOBS.values(), ids=diloco.JOBS)
def test_every_way_is_a_job(fields: str) -> None:
    assert job_of(fields).replicas == diloco.LEARNERS


def test_fields_are_of_the_strategy_or_of_the_wire() -> None:
    job = job_of("steps=16,outer.mu=0.9,fragments=4,delay=4,wire.push=int8")
    assert (job.strategy.clock_samples, job.wire.push.name) == (16 * 8, "int8")
    assert job.strategy.model_dump()["outer"] | {"rate": 0.8, "mu": 0.9} == job.strategy.model_dump()["outer"]
    assert diloco.more_way("mine:steps=16,delay=4") == ("mine", "steps=16,delay=4")
    for text in ("mine", ":steps=16", "mine:steps"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not NAME:FIELD=VALUE"):
            diloco.more_way(text)
