"""The model of a mini-batch: what it is made to give, its limits, and in which direction it moves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.advise.step_model import NOTHING, Change, Geometry, Station, StepModel, queueing_rate, solved
from tests.examples import examples

SECONDS = st.floats(1e-4, 1.0)
ONE_SHARD = Geometry(1.0, 1.0)


def model_of(
    own_s: float = 0.1,
    exchange_s: float = 0.1,
    workers: int = 3,
    processor_s: float = 0.005,
    shard_s: float = 0.001,
    geometry: Geometry = ONE_SHARD,
    lockstep: bool = False,
) -> StepModel:
    rate = workers / (own_s + exchange_s)
    owned = (own_s,) * workers
    return StepModel(
        owned, exchange_s, 0.0, rate, processor_s, 2.0, shard_s, geometry=geometry, lockstep=lockstep
    ).calibrated()


def test_without_queues_workers_are_as_fast_as_each_alone() -> None:
    assert queueing_rate(4, 0.5, []) == pytest.approx(8.0)


def test_one_station_serves_at_most_one_at_a_time() -> None:
    assert queueing_rate(1, 0.1, [Station(0.1)]) == pytest.approx(5.0)
    assert queueing_rate(100, 0.1, [Station(0.1)]) == pytest.approx(10.0, rel=1e-3)


def test_two_workers_at_one_station_by_hand() -> None:
    """Mean value analysis: one waits 0.1 (1 + 0.5) s."""
    assert queueing_rate(2, 0.1, [Station(0.1)]) == pytest.approx(2 / (0.1 + 0.15))


def test_nobody_waits_where_there_is_a_server_for_each() -> None:
    rates = [queueing_rate(count, 0.1, [Station(0.1, 2.0)]) for count in (1, 2, 50)]
    assert rates == pytest.approx([5.0, 10.0, 20.0])


def test_nothing_takes_no_time() -> None:
    assert queueing_rate(3, 0.0, []) == float("inf")


def test_an_argument_is_found_where_a_function_has_a_value() -> None:
    assert solved(lambda x: x * x, 2.0, 10.0) == pytest.approx(2**0.5)


@examples(60)
@given(own_s=SECONDS, exchange_s=SECONDS, workers=st.integers(1, 12), lockstep=st.booleans())
def test_the_calibrated_model_gives_what_was_measured(
    own_s: float, exchange_s: float, workers: int, lockstep: bool
) -> None:
    processor_s = min(own_s, 1 / workers / 4 * (own_s + exchange_s))
    model = model_of(own_s, exchange_s, workers, processor_s, 0.0, lockstep=lockstep)
    assert model.predicted(NOTHING) == pytest.approx(model.rate, rel=0.02)


@examples(60)
@given(own_s=SECONDS, exchange_s=SECONDS, workers=st.integers(1, 8), lockstep=st.booleans())
def test_fewer_bytes_and_more_links_never_cost(own_s: float, exchange_s: float, workers: int, lockstep: bool) -> None:
    model = model_of(own_s, exchange_s, workers, lockstep=lockstep)
    rates = [model.factor(Change(volume=volume)) for volume in (1.0, 0.5, 0.25, 0.1)]
    assert rates == sorted(rates)
    shards = [model.factor(Change(shards=count)) for count in (1, 2, 3, 4)]
    assert all(after >= before - 1e-6 for before, after in itertools.pairwise(shards))
    periods = [model.factor(Change(period=float(period))) for period in (1, 2, 4, 8)]
    assert all(after >= before - 1e-6 for before, after in itertools.pairwise(periods))


@examples(60)
@given(own_s=SECONDS, exchange_s=SECONDS, workers=st.integers(1, 8))
def test_more_free_workers_are_never_slower_and_never_out_of_proportion(
    own_s: float, exchange_s: float, workers: int
) -> None:
    model = model_of(own_s, exchange_s, workers)
    gains = [model.factor(Change(workers=count)) for count in range(1, 3 * workers)]
    assert all(after >= before - 1e-6 for before, after in itertools.pairwise(gains))
    assert all(gain <= count / workers + 1e-6 for count, gain in enumerate(gains, 1) if count >= workers)


def test_processors_bound_the_workers() -> None:
    full = model_of(own_s=0.02, exchange_s=0.001, workers=2, processor_s=0.02, geometry=Geometry())
    assert full.factor(Change(workers=4)) < 1.05
    more = replace(full, processors=4.0)
    assert more.predicted(Change(workers=4)) / full.predicted(NOTHING) == pytest.approx(2.0, rel=0.1)


def test_a_shard_serves_one_push_after_the_other() -> None:
    served = model_of(own_s=0.001, exchange_s=0.03, workers=3, processor_s=0.0, shard_s=0.01, geometry=Geometry())
    assert served.factor(Change(workers=12)) == pytest.approx(100 / served.rate, rel=0.05)
    assert served.factor(Change(workers=12, shards=2)) > 1.5 * served.factor(Change(workers=12))


def test_in_lockstep_all_wait_for_the_slowest() -> None:
    owned = (0.03, 0.03, 0.3)
    step = StepModel(owned, 0.003, 0.0, 3 / 0.303, 0.005, 2.0, 0.001, geometry=Geometry(), lockstep=True).calibrated()
    assert step.factor(Change(without_slowest=1)) == pytest.approx(2 / 0.033 / (3 / 0.303), rel=0.05)
    assert step.factor(Change(lockstep=False)) > 5


def test_more_shards_share_the_bytes() -> None:
    alone = Geometry(1.0, 1.0)
    assert alone.with_shards(1, 2) == Geometry(1.0, 0.5)
    assert Geometry(0.5, 0.25).with_shards(2, 4).own == pytest.approx(0.75)
    assert Geometry().with_shards(1, 4) == Geometry()
