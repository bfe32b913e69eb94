"""Runs that have ended, as measured jobs: their rates, and the processors of their processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.rundir.summary import Summary
from dbelief.simulate import measured_runs
from dbelief.simulate.calibrate import RATE, SHARDS, WORKERS, MeasuredJob
from tests.dbelief.advise.test_measurements import PROCESSORS, summary

from .fleets import FREE, job


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, replication: int = 1, **used_s: float) -> MeasuredJob:
    """A run of two workers and a shard, which have lived for 10 s; `used_s`: processor seconds by process."""
    rows = {name.replace("_", " "): {**PROCESSORS, "used_s": used} for name, used in used_s.items()}
    each: dict[str, Any] = {
        "steps_per_replica": {"0": 40, "1": 40},
        "pushes_per_replica": {"0": 40, "1": 40},
        "samples_per_replica": {"0": 400, "1": 400},
        "bytes_per_replica": {number: {"sent": 4000, "received": 8000} for number in "01"},
        "phase_seconds": {number: {"compute": 8.0, "data": 0.0, "push": 2.0} for number in "01"},
        "machines": {},
        "processors": rows,
    }
    (folder / "job.yaml").touch()
    found: Summary = summary(**{name: value for name, value in each.items() if name in Summary.model_fields})
    monkeypatch.setattr(measured_runs, "get_status", lambda _: found)
    monkeypatch.setattr(measured_runs, "load_job", lambda _: job(replication=replication))
    return measured_runs.measured_run(folder)


def test_processors_in_use_are_measures_by_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _run(tmp_path, monkeypatch, replica_0=3.0, replica_1=4.0, shard_0=2.5, coordinator=1.0)
    assert one.measured[WORKERS] == pytest.approx(0.7)
    assert one.measured[SHARDS] == pytest.approx(0.25)
    assert one.measured[RATE] > 0
    assert one.predicted(FREE)[WORKERS] > 0


def test_a_role_with_a_process_that_was_not_measured_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _run(tmp_path, monkeypatch, replica_0=3.0, shard_0=2.5, coordinator=1.0)
    assert WORKERS not in one.measured
    assert one.measured[SHARDS] == pytest.approx(0.25)


def test_followers_are_on_the_machine_but_their_processors_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = _run(tmp_path, monkeypatch, 2, replica_0=3.0, replica_1=4.0, shard_0=2.5, coordinator=1.0)
    made = one.scenario(FREE)
    assert (made.fleet.shards, made.shards, made.job.shards) == (2, 1, 1)
    assert SHARDS not in one.measured
    assert one.measured[WORKERS] == pytest.approx(0.7)
