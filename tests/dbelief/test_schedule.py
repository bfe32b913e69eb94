"""Learning rates by samples seen, against values worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from dbelief.job import Job, Limits, build_job
from dbelief.schedule import poly, rate_at, step, total_samples


def job(schedule: dict[str, Any], limits: dict[str, Any] | None = None, rate: float = 0.5) -> Job:
    return build_job(
        {
            "name": "x",
            "model": {"python": "a.py:b"},
            "data": {"source": "digits"},
            "strategy": {"name": "downpour", "rule": {"name": "sgd", "rate": rate}},
            "limits": limits or {"samples": 1000},
            "schedule": schedule,
        },
        Path(),
    )


@pytest.mark.parametrize(
    ("samples", "rate"), [(0, 0.5), (99, 0.5), (100, 0.05), (199, 0.05), (200, 0.005), (350, 0.0005)]
)
def test_step_falls_every_so_many_samples(samples: int, rate: float) -> None:
    assert rate_at(job({"kind": "step", "every": 100, "factor": 0.1}), samples) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    ("power", "samples", "rate"),
    # 0.5 * (1 - s/1000)^power: at 750 a quarter is left, whose root is a half
    [(0.5, 0, 0.5), (0.5, 750, 0.25), (0.5, 1000, 0.0), (1, 250, 0.375), (2, 500, 0.125), (2, 5000, 0.0)],
)
def test_poly_falls_to_zero_at_the_limit_and_stays_there(power: float, samples: int, rate: float) -> None:
    assert rate_at(job({"kind": "poly", "power": power}), samples) == pytest.approx(rate, rel=1e-12)


def test_poly_takes_its_own_total_first_then_the_callers_then_the_limits() -> None:
    own = job({"kind": "poly", "power": 1, "total": 200})
    assert rate_at(own, 100, total=400) == 0.25
    none = job({"kind": "poly", "power": 1})
    assert rate_at(none, 100, total=400) == 0.375
    assert rate_at(none, 100) == pytest.approx(0.45)


@pytest.mark.parametrize("limits", [{"epochs": 2}, {"epochs": 2, "samples": 1000}])
def test_poly_in_epochs_needs_the_total(limits: dict[str, Any]) -> None:
    in_epochs = job({"kind": "poly", "power": 1}, limits)
    with pytest.raises(ValueError, match="needs the total number of samples"):
        rate_at(in_epochs, 10)
    assert rate_at(in_epochs, 10, total=20) == 0.25


def test_constant_is_the_rules_rate() -> None:
    assert [rate_at(job({"kind": "constant"}, rate=0.3), samples) for samples in (0, 10**12)] == [0.3, 0.3]


def test_samples_seen_are_never_negative() -> None:
    with pytest.raises(ValueError, match="samples is -1, must be 0 or more"):
        rate_at(job({"kind": "constant"}), -1)


def test_the_plain_functions() -> None:
    assert step(8.0, 7, every=2, factor=0.5) == 1.0
    assert step(8.0, 2000, every=1, factor=2.0) == float("inf")
    assert step(8.0, 2000, every=1, factor=0.5) == 0.0
    assert poly(8.0, 3, power=3, total=4) == 0.125


@pytest.mark.parametrize(
    ("limits", "training", "total"),
    [
        (Limits(samples=500), None, 500),
        (Limits(samples=500), 100, 500),
        (Limits(epochs=2.5), 101, 253),
        (Limits(epochs=2, samples=500), 1000, 500),
        (Limits(epochs=2, samples=5000), 1000, 2000),
        (Limits(epochs=2), None, None),
        (Limits(wall_s=1), 1000, None),
    ],
)
def test_total_samples_is_the_lesser_of_both_limits(limits: Limits, training: int | None, total: int | None) -> None:
    assert total_samples(limits, training) == total
