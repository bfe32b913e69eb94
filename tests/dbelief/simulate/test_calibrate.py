"""Costs: their file, fits to runs, what a run that has ended gives, and where a coordinator has all that it can do."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from dbelief.errors import UserError
from dbelief.simulate.calibrate import MEASURES, RATE, SHARDS, STALENESS, WORKERS, MeasuredJob, calibrated
from dbelief.simulate.costs import Costs, costs_yaml, load_costs
from dbelief.simulate.description import Scenario
from dbelief.simulate.fleet import Fleet, MachineGroup

from .fleets import FREE, fleet, job, scenario

TRUE = Costs(push_call_s=6e-3, client_call_s=2e-3, slowdown=1.5)


def _scenario(workers: int, link: float | None, costs: Costs) -> Scenario:
    return scenario(job(), fleet(workers, step=0.05, spread=0.1, link=link), costs=costs, seconds=6.0)


def _run(workers: int, link: float | None) -> MeasuredJob:
    """A run that was simulated with costs that the fit does not know."""
    made = functools.partial(_scenario, workers, link)
    return MeasuredJob(f"{workers}", made, MeasuredJob("", made, {}).predicted(TRUE))


@pytest.mark.long
def test_a_fit_predicts_runs_that_it_has_not_seen() -> None:
    seen = [_run(workers, link) for workers in (1, 6) for link in (None, 2e5)]
    others = [_run(workers, link) for workers in (3, 8) for link in (None, 3e5)]
    before = max(abs(one.errors(Costs())[RATE]) for one in others)
    costs = calibrated(seen)
    after = max(abs(one.errors(costs)[RATE]) for one in others)
    assert before > 0.2
    assert after < 0.05
    assert max(abs(one.errors(costs)[STALENESS]) for one in others) < 0.05


def _shared(workers: int, costs: Costs) -> Scenario:
    """Workers and a shard on one machine of two processors."""
    machine = MachineGroup(name="all", workers=workers, shards=1, processors=2, step=0.02, spread=0.0)
    return scenario(job(), Fleet(groups=(machine,)), costs=costs, seconds=3.0)


def test_a_fit_finds_who_uses_processors() -> None:
    """Where the rate is alike, costs of shards and those of workers differ by the processors that each has used."""
    true = FREE.with_values(push_call_s=8e-3, client_call_s=1e-3)
    swapped = FREE.with_values(push_call_s=1e-3, client_call_s=8e-3)
    runs = [MeasuredJob("", made, MeasuredJob("", made, {}).predicted(true)) for made in (_one, _four)]
    assert max(abs(error) for one in runs for error in one.errors(true).values()) == 0
    assert max(abs(one.errors(swapped)[SHARDS]) for one in runs) > 0.5
    found = calibrated(runs, swapped)
    for one in runs:
        assert one.errors(found)[RATE] == pytest.approx(0, abs=0.05)
        assert one.errors(found)[WORKERS] == pytest.approx(0, abs=0.1)
        assert one.errors(found)[SHARDS] == pytest.approx(0, abs=0.1)


def _one(costs: Costs) -> Scenario:
    return _shared(1, costs)


def _four(costs: Costs) -> Scenario:
    return _shared(4, costs)


def test_errors_are_shares_and_of_staleness_at_least_half_a_version() -> None:
    one = _run(1, None)
    assert set(one.errors(TRUE)) == set(MEASURES)
    assert max(abs(error) for error in one.errors(TRUE).values()) == 0
    shifted = MeasuredJob("", one.scenario, {STALENESS: 0.1, RATE: one.measured[RATE] / 2})
    assert shifted.errors(TRUE) == {STALENESS: pytest.approx(-0.2), RATE: pytest.approx(1.0)}


def test_costs_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text(costs_yaml(TRUE))
    assert load_costs(file) == TRUE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "costs are a mapping with"),
        ("push: 1", "'push' is no cost"),
        ("push_call_s: -1", "push_call_s: must be a number of 0 or more, not -1"),
        ("push_call_s: true", "must be a number of 0 or more, not True"),
    ],
)
def test_errors_of_a_file_of_costs(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_costs(file)


def test_a_coordinator_is_full_where_its_use_is_one() -> None:
    costs, small = Costs(), job()
    full = costs.saturation(small)
    load = [100 * costs.lease_s + costs.background(small, workers, 100.0) for workers in (full - 1, full)]
    assert load[0] < 1 <= load[1]
    assert costs.with_values(beat_s=costs.beat_s / 2).saturation(small) > 1.5 * full
