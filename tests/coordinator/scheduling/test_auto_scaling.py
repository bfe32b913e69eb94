"""The number of workers that follows the throughput, on simulated jobs, by a manual clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.scheduling.auto_scaling import FORGOTTEN_S, AutoScaling, Totals, WorkersDecision
from dbelief.advise.step_model import Station, queueing_rate
from dbelief.job.scale import AutoScale
from tests.examples import examples

LOOK_S = 2.0
START_S = 4.0
"""Of a worker's process."""
SAMPLES = 32


def saturating(delay_s: float, served_s: float) -> Callable[[int], float]:
    """Samples per second of so many workers that queue at one station."""

    def rate(workers: int) -> float:
        return SAMPLES * queueing_rate(workers, delay_s, [Station(served_s)]) if workers else 0.0

    return rate


@dataclass
class SimulatedJob:
    """A job in virtual time, whose workers die and start again every 30 seconds or so, each at times of its own.

    Attributes
    ----------
    rate
        Samples per second by number of workers that train.
    believed
        What the model says of it.
    """

    rate: Callable[[int], float]
    believed: Callable[[int], float]
    scaling: AutoScaling
    mean_life_s: float | None = None
    seed: int = 0
    now_s: float = 0.0
    samples: float = 0.0
    worker_s: float = 0.0
    decisions: list[tuple[float, WorkersDecision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._back_s: dict[int, float] = {}  # by worker: from when it trains
        self._dies_s: dict[int, float] = {}
        self.scaling.begin(self.now_s)

    def run(self, seconds: float) -> SimulatedJob:
        for _ in range(int(seconds / LOOK_S)):
            self._pass()
            self.scaling.look(Totals(int(self.samples), self.worker_s, None), self.now_s)
            decision = self.scaling.decide(self._model, self.now_s)
            if decision is not None:
                self.decisions.append((self.now_s, decision))
        return self

    def _model(self, first: object, last: object) -> Callable[[int], float]:
        now = self.scaling.count
        return lambda count: self.believed(count) / self.believed(now)

    def _pass(self) -> None:
        self.now_s += LOOK_S
        for number in range(self.scaling.count):
            if number not in self._back_s:
                self._start(number, self.now_s)
            if self.now_s >= self._dies_s[number]:
                self._start(number, self.now_s)
        for number in [one for one in self._back_s if one >= self.scaling.count]:
            del self._back_s[number], self._dies_s[number]
        train = sum(self.now_s >= back_s for back_s in self._back_s.values())
        self.samples += self.rate(train) * LOOK_S
        self.worker_s += train * LOOK_S

    def _start(self, number: int, now_s: float) -> None:
        self._back_s[number] = now_s + START_S
        mean_s = self.mean_life_s
        self._dies_s[number] = now_s + (self._random.expovariate(1 / mean_s) if mean_s else float("inf"))


def job_of(
    rate: Callable[[int], float],
    count: int = 2,
    most: int = 8,
    believed: Callable[[int], float] | None = None,
    **more: float,
) -> SimulatedJob:
    scale = AutoScale(min=1, max=most)
    return SimulatedJob(rate, believed or rate, AutoScaling(scale, count, most), **more)  # type: ignore[arg-type]


def best_of(rate: Callable[[int], float], most: int) -> float:
    return max(rate(count) for count in range(1, most + 1))


def test_workers_are_added_while_they_bring_something() -> None:
    job = job_of(saturating(1.0, 0.05)).run(300)
    assert job.scaling.count == 8
    assert [(made.before, made.after, made.why) for _, made in job.decisions] == [(2, 4, "more"), (4, 8, "more")]
    first = job.decisions[0][1]
    assert first.samples_per_s == pytest.approx(job.rate(2), rel=0.01)
    assert first.training == pytest.approx(2.0)
    assert first.factor == pytest.approx(job.rate(4) / job.rate(2))


def test_workers_that_bring_nothing_go() -> None:
    job = job_of(saturating(0.001, 0.1), count=6).run(300)
    assert job.scaling.count < 6
    assert job.rate(job.scaling.count) >= 0.98 * job.rate(6)
    assert {made.why for _, made in job.decisions} == {"fewer"}


def test_where_the_model_errs_a_change_is_taken_back_and_not_repeated() -> None:
    """It promises twice as much of twice as many, and nothing comes of it."""
    job = job_of(lambda count: min(count, 2) * 100.0, believed=lambda count: float(count)).run(FORGOTTEN_S)
    assert [(made.before, made.after, made.why) for _, made in job.decisions] == [(2, 4, "more"), (4, 2, "back")]
    assert job.decisions[1][1].factor == pytest.approx(1.0, rel=0.05)
    job.run(5 * FORGOTTEN_S)
    backs = [at_s for at_s, made in job.decisions if made.why == "back"]
    assert 2 <= len(backs) <= 3
    assert all(later - earlier > FORGOTTEN_S for earlier, later in pairwise(backs))


def test_between_measured_numbers_the_model_is_not_asked() -> None:
    """A disk serves four; the model does not know of it."""
    job = job_of(lambda count: 100.0 * min(count, 4), believed=lambda count: float(count)).run(FORGOTTEN_S)
    assert [(made.before, made.after) for _, made in job.decisions] == [(2, 4), (4, 8), (8, 4)]
    job = job_of(lambda count: 100.0 * min(count, 4.5), believed=lambda count: float(count)).run(FORGOTTEN_S)
    assert [(made.before, made.after) for _, made in job.decisions] == [(2, 4), (4, 8)]


def test_fewer_that_lose_are_taken_back() -> None:
    job = job_of(lambda count: 100.0 * count, count=4, most=4, believed=lambda _: 1.0).run(FORGOTTEN_S)
    assert [made.why for _, made in job.decisions] == ["fewer", "back"]
    assert job.scaling.count == 4


def test_a_number_set_by_hand_is_measured_first() -> None:
    job = job_of(saturating(1.0, 0.001)).run(30)
    job.scaling.set_by_hand(3, job.now_s)
    job.run(58)
    assert job.decisions == []
    job.run(60)
    assert job.decisions[0][1].before == 3


def test_a_restart_from_a_set_begins_a_new_measurement() -> None:
    job = job_of(saturating(1.0, 0.001)).run(36)
    job.samples = 0.0
    job.run(20)
    assert job.decisions == []


def test_without_training_or_a_model_nothing_is_decided() -> None:
    scaling = AutoScaling(AutoScale(), 2, 4)
    scaling.begin(0.0)
    for second in range(0, 200, 2):
        scaling.look(Totals(0, 0.0), float(second))
        assert scaling.decide(lambda *_: lambda count: float(count), float(second)) is None
        scaling.look(Totals(second, 2.0 * second), float(second))
        assert scaling.decide(lambda *_: None, float(second)) is None


@examples(60)
@given(
    delay_s=st.floats(0.05, 2.0),
    served_s=st.floats(0.001, 0.5),
    count=st.integers(1, 8),
    error=st.floats(0.5, 2.0),
    life_s=st.sampled_from([None, 30.0, 60.0]),
    seed=st.integers(0, 1000),
)
def test_changes_are_rare_and_settle_under_churn(
    delay_s: float, served_s: float, count: int, error: float, life_s: float | None, seed: int
) -> None:
    """At most one a minute, a few in all, and the number never alternates."""
    rate = saturating(delay_s, served_s)
    job = job_of(rate, count, believed=saturating(delay_s * error, served_s), mean_life_s=life_s, seed=seed)  # type: ignore[arg-type]
    job.run(1200)
    times = [at_s for at_s, _ in job.decisions]
    assert all(later - earlier >= 60.0 for earlier, later in pairwise(times))
    assert len(times) <= 10
    backs = [(made.before, at_s) for at_s, made in job.decisions if made.why == "back"]
    for (number, at_s), (again, later_s) in pairwise(backs):
        assert number != again or later_s - at_s >= FORGOTTEN_S
    assert all(1 <= made.after <= 8 for _, made in job.decisions)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("count", [1, 3, 6])
def test_under_churn_nearly_all_of_the_best_number_is_reached(seed: int, count: int) -> None:
    """Twenty minutes beside each fixed number, whose workers die and come back at the same times."""
    rate = saturating(0.2, 0.04)

    def fixed(workers: int) -> float:
        job = job_of(rate, workers, believed=lambda _: 1.0, mean_life_s=30.0, seed=seed)
        job.scaling.scale = AutoScale(min=workers, max=workers)
        job.scaling.most = workers
        return job.run(1200).samples

    best = max(fixed(workers) for workers in range(1, 9))
    assert job_of(rate, count, mean_life_s=30.0, seed=seed).run(1200).samples >= 0.9 * best
