"""Sums that workers make among themselves: what a step takes, with the sum after its mini-batch or beside it."""

from __future__ import annotations

import pytest

from dbelief.simulate.outcome import run

from .fleets import fleet, job, scenario

PARAMETERS, STEP_S = 1000, 1.0


@pytest.mark.parametrize("bytes_per_s", [160_000.0, 16_000.0, 8_000.0])
@pytest.mark.parametrize("form", [2, 3])
def test_a_sum_follows_its_mini_batch_or_travels_beside_the_next(form: int, bytes_per_s: float) -> None:
    elastic = job({"name": "sync-easgd", "form": form, "rate": 0.1, "batch": 10})
    outcome, _ = run(scenario(elastic, fleet(4, step=STEP_S, link=bytes_per_s), parameters=PARAMETERS))
    sum_s = 2 * 2 * 4 * PARAMETERS / bytes_per_s  # two levels of a binomial tree, up and down
    step_s = STEP_S + sum_s if form == 2 else max(STEP_S, sum_s)
    assert outcome.samples_per_s == pytest.approx(
        4 * 10 / step_s, rel=0.02
    )  # a lease ends with a sum that is waited for
    assert outcome.staleness_mean == 0
