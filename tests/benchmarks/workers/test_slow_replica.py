"""The cost of a slow replica: rates of the others, and the jobs of all ways."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.workers import slow_replica
from dbelief.job import build_job


def summary_of(samples: list[int], seconds: list[float], loss: float) -> dict[str, Any]:
    return {
        "samples_per_replica": {str(number): one for number, one in enumerate(samples)},
        "phase_seconds": {str(number): {"compute": one / 4, "push": 3 * one / 4} for number, one in enumerate(seconds)},
        "test_loss": loss,
        "wall_s": 20.0,
    }


def test_rates_are_of_the_time_of_each_replica() -> None:
    found = slow_replica.figures(summary_of([800, 800, 800, 80], [8.0, 8.0, 10.0, 10.0], 0.5))
    assert found == {"others": 280.0, "slow": 8.0, "loss": 0.5, "wall_s": 20.0}
    assert slow_replica.figures(summary_of([800] * 3, [8.0] * 3, 0.5))["slow"] == 0.0


def test_shares_are_those_of_medians() -> None:
    rows = [
        {"way": way, "others": others, "slow": 1.0, "loss": 0.5}
        for repeat in range(3)
        for way, others in (("without", 300.0 + repeat), ("lockstep", 30.1 - repeat))
    ]
    shares = {row["way"]: row["share"] for row in slow_replica.medians_of(rows)}
    assert shares == {"without": 1.0, "lockstep": pytest.approx(29.1 / 301, abs=1e-3)}
    assert [row["share"] for row in slow_replica.medians_of(rows[1::2])] == [None]


@pytest.mark.parametrize("way", slow_replica.WAYS)
def test_every_way_is_a_job(way: str, tmp_path: Any) -> None:
    job = build_job(slow_replica.job_of(way, 8, 30.0), tmp_path)
    assert job.replicas == (3 if way == "without" else 4)
    assert job.strategy.clock_samples == 64
    quorum = way in ("quorum", "unweighed", "dropped")
    assert job.strategy.model_dump()["quorum"] == (3 if quorum else None)
