"""Learning rates by samples seen, against values worked out by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import JobError
from dbelief.job import Job, Limits
from dbelief.training.schedule import cosine, learning_rate, poly, step, total_samples, warm_up_factor
from tests.jobs import small_job

KINDS: list[dict[str, Any]] = [
    {"kind": "constant"},
    {"kind": "step", "every": 300, "factor": 0.1},
    {"kind": "poly", "power": 0.5},
    {"kind": "poly", "power": 2},
    {"kind": "cosine"},
    {"kind": "cosine", "end": 0.1, "total": 700},
]


def job(schedule: dict[str, Any], limits: dict[str, Any] | None = None, rate: float = 0.5, **fields: Any) -> Job:
    strategy = {"name": "downpour", "rule": {"name": "sgd", "rate": rate}, **fields.pop("strategy", {})}
    return small_job(strategy=strategy, limits=limits or {"samples": 1000}, schedule=schedule, **fields)


@pytest.mark.parametrize(
    ("samples", "rate"), [(0, 0.5), (99, 0.5), (100, 0.05), (199, 0.05), (200, 0.005), (350, 0.0005)]
)
def test_step_falls_every_so_many_samples(samples: int, rate: float) -> None:
    assert learning_rate(job({"kind": "step", "every": 100, "factor": 0.1}), samples) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    ("power", "samples", "rate"),
    # 0.5 * (1 - s/1000)^power: at 750 a quarter is left, whose root is a half
    [(0.5, 0, 0.5), (0.5, 750, 0.25), (0.5, 1000, 0.0), (1, 250, 0.375), (2, 500, 0.125), (2, 5000, 0.0)],
)
def test_poly_falls_to_zero_at_the_limit_and_stays_there(power: float, samples: int, rate: float) -> None:
    assert learning_rate(job({"kind": "poly", "power": power}), samples) == pytest.approx(rate, rel=1e-12)


def test_poly_total_precedence() -> None:
    own = job({"kind": "poly", "power": 1, "total": 200})
    assert learning_rate(own, 100, total=400) == 0.25
    none = job({"kind": "poly", "power": 1})
    assert learning_rate(none, 100, total=400) == 0.375
    assert learning_rate(none, 100) == pytest.approx(0.45)


@pytest.mark.parametrize("limits", [{"epochs": 2}, {"epochs": 2, "samples": 1000}])
@pytest.mark.parametrize("schedule", [{"kind": "poly", "power": 1}, {"kind": "cosine"}])
def test_in_epochs_a_falling_rate_needs_the_total(schedule: dict[str, Any], limits: dict[str, Any]) -> None:
    in_epochs = job(schedule, limits)
    with pytest.raises(ValueError, match=f"a {schedule['kind']} schedule without a total needs the total number of"):
        learning_rate(in_epochs, 10)
    assert learning_rate(in_epochs, 10, total=20) == pytest.approx(0.25, abs=1e-16)


@pytest.mark.parametrize(
    ("end", "samples", "rate"),
    # of 0.5: a third of the way cos(60 degrees) is a half
    [(0.0, 0, 0.5), (0.0, 300, 0.375), (0.0, 600, 0.125), (0.0, 900, 0.0), (0.2, 450, 0.3), (0.2, 5000, 0.1)],
)
def test_cosine_falls_to_its_end_and_stays_there(end: float, samples: int, rate: float) -> None:
    falling = job({"kind": "cosine", "end": end, "total": 900})
    assert learning_rate(falling, samples) == pytest.approx(rate, rel=1e-14, abs=1e-300)


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_cosine_is_that_of_the_definition(end: float, samples: int) -> None:
    wanted = end + (1 - end) * (1 + math.cos(math.pi * samples / 10**6)) / 2
    assert cosine(1.0, samples, end=end, total=10**6) == pytest.approx(wanted, abs=4e-16)


def test_samples_seen_are_never_negative() -> None:
    with pytest.raises(ValueError, match="samples is -1, must be 0 or more"):
        learning_rate(job({"kind": "constant"}), -1)


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


def test_warm_up_starts_at_a_tenth_by_default() -> None:
    assert learning_rate(job({"kind": "constant", "warm_up": {"samples": 100}}, rate=2.0), 0) == 0.2


FACTOR = st.floats(0, 1)
OVER = st.integers(1, 10**6)


@given(st.sampled_from(KINDS), OVER, FACTOR, st.integers(0, 2 * 10**6))
def test_warm_up_scales_any_schedule_then_ends_exactly(
    kind: dict[str, Any], over: int, factor: float, samples: int
) -> None:
    plain, warmed = job(kind), job({**kind, "warm_up": {"samples": over, "start_factor": factor}})
    rate = learning_rate(plain, samples)
    expected = rate if samples >= over else rate * (factor * (over - samples) + samples) / over
    assert learning_rate(warmed, samples) == pytest.approx(expected, rel=1e-12)
    assert learning_rate(warmed, 0) == 0.5 * factor
    assert learning_rate(warmed, over + samples) == learning_rate(plain, over + samples)
    assert learning_rate(warmed, samples) <= rate


@given(OVER, FACTOR, st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_warm_up_never_falls(over: int, factor: float, one: int, more: int) -> None:
    assert (
        factor
        <= warm_up_factor(one, over=over, start_factor=factor)
        <= warm_up_factor(one + more, over=over, start_factor=factor)
        <= 1
    )


@pytest.mark.parametrize(
    ("by", "batch", "reference", "factor"),
    [("linear", 1024, 256, 4.0), ("sqrt", 1024, 256, 2.0), ("linear", 16, 32, 0.5), ("sqrt", 32, 32, 1.0)],
)
def test_batch_and_rate_are_scaled_together(by: str, batch: int, reference: int, factor: float) -> None:
    schedule = {"kind": "constant", "scale": {"reference_batch": reference, "by": by}}
    assert learning_rate(job(schedule, strategy={"batch": batch}), 0) == 0.5 * factor


@pytest.mark.parametrize(
    ("strategy", "batch"),
    [
        ({}, 32),
        ({"staleness": 0}, 128),
        ({"staleness": 3}, 32),
        ({"n_push": 4}, 32),
        ({"name": "sync-sgd"}, 128),
        ({"name": "sync-sgd", "gives": "sum"}, 32),
    ],
)
def test_scaling_is_by_the_batch_of_one_mean(strategy: dict[str, Any], batch: int) -> None:
    """In step a round is the mean of all four replicas' mini-batches; sums of means are longer steps already."""
    made = job({"kind": "constant", "scale": {"reference_batch": 1}}, strategy={"batch": 32, **strategy}, replicas=4)
    assert made.samples_in_a_mean == batch
    assert learning_rate(made, 0) == 0.5 * batch


def test_elastic_replicas_scale_with_their_own_mini_batch() -> None:
    elastic = {"name": "sync-easgd", "rate": 0.1, "batch": 64}
    made: dict[str, Any] = {"replicas": 4, "schedule": {"kind": "constant", "scale": {"reference_batch": 32}}}
    assert learning_rate(small_job(strategy=elastic, **made), 0) == 0.2
    with pytest.raises(JobError, match=r"strategy\.rho: must be at most 1 / rate, scaled to 0\.2: 5$"):
        small_job(strategy={**elastic, "rho": 8.0}, **made)
