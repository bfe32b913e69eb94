"""Measurements of a running job, by two statuses, and of one that is over, by its summary."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dbelief.advise.measurements import of_statuses, of_summary
from dbelief.errors import UserError
from dbelief.rundir.summary import Summary
from tests.jobs import small_job

from . import situations

PROCESSORS = {
    "machine": "m",
    "network": "n",
    "cores": 2.0,
    "used_s": 1.0,
    "busy_s": 4.0,
    "lived_s": 10.0,
    "answer_s": 0.01,
}


def member(role: str = "worker", incarnation: int = 1, times: float = 1.0, **more: Any) -> dict[str, Any]:
    """A member after so many times ten seconds."""
    used = {**PROCESSORS, **{name: times * PROCESSORS[name] for name in ("used_s", "busy_s", "lived_s")}}  # type: ignore[operator]
    totals: dict[str, Any] = {
        "incarnation": incarnation,
        "steps": int(100 * times),
        "pushes": 50.0 * times,
        "sent": int(1000 * times),
        "received": int(2000 * times),
        "seconds": {"compute": 6.0 * times, "push": 4.0 * times},
        "processors": used,
    }
    row = {"role": role, "id": 0, "state": "training", "samples": int(800 * times), "totals": totals}
    return {**row, "follows": False, "parameters": 650, **more}


def status(*members: dict[str, Any], elapsed_s: float = 10.0) -> dict[str, Any]:
    return {
        "members": list(members),
        "elapsed_s": elapsed_s,
        "processors": PROCESSORS,
        "lease_samples": 80,
        "total_samples": 5000,
        "unleased_samples": 100,
    }


def test_what_happened_between_two_statuses() -> None:
    before = status(member(), member("ps"))
    after = status(member(times=2.0), member("ps", times=3.0), elapsed_s=20.0)
    found = of_statuses(small_job(), before, after)
    (worker,), (shard,) = found.workers, found.shards
    assert (worker.samples, worker.steps, worker.pushes, worker.sent, worker.received) == (800, 100, 50, 1000, 2000)
    assert worker.seconds == {"compute": 6.0, "push": 4.0}
    assert found.samples_per_s == pytest.approx(80.0)
    assert worker.processors is not None
    assert shard.processors is not None
    assert (worker.processors.used, shard.processors.busy) == pytest.approx((0.1, 0.4))
    assert found.window_s == 10.0
    assert (found.lease_samples, found.total_samples, found.unleased_samples) == (80, 5000, 100)
    (machine,) = found.machines
    assert (machine.workers, machine.cores) == (1, 2.0)
    assert machine.used == pytest.approx(0.2)  # the coordinator's figures have not changed
    assert not found.across_links


def test_processors_of_another_incarnation_count_from_its_start() -> None:
    after = status(member(incarnation=2, times=1.5), elapsed_s=20.0)
    (worker,) = of_statuses(small_job(), status(member()), after).workers
    assert worker.steps == 50
    assert worker.processors is not None
    assert worker.processors.used == pytest.approx(0.1)


def test_who_has_joined_counts_and_who_has_gone_does_not() -> None:
    gone, new = member(id=1, state="died"), member(id=2)
    found = of_statuses(small_job(), status(member(), gone), status(member(), copy.deepcopy(gone), new, elapsed_s=20.0))
    assert [(one.number, one.steps) for one in found.workers] == [(0, 0), (2, 100)]


def test_followers_are_no_shards() -> None:
    found = of_statuses(small_job(), status(), status(member("ps"), member("ps", follows=True), elapsed_s=20.0))
    assert len(found.shards) == 1


def summary(**fields: Any) -> Summary:
    required: dict[str, Any] = {name: None for name, one in Summary.model_fields.items() if one.is_required()}
    numbers = ("seed", "epochs", "steps", "pushes", "pushes_trained_twice", "replicas", "shards", "members_lost")
    plain = dict.fromkeys(numbers, 1) | {"job": "small", "reason": "", "samples": 800, "wall_s": 12.0}
    return Summary.model_validate(required | plain | {"parameters": 650, "samples_per_replica": {"0": 800}} | fields)


def test_a_run_that_is_over() -> None:
    found = of_summary(
        small_job(),
        summary(
            trained=True,
            phase_seconds={"0": {"compute": 6.0, "push": 2.0}},
            steps_per_replica={"0": 100},
            pushes_per_replica={"0": 50},
            bytes_per_replica={"0": {"sent": 10, "shared_sent": 5, "received": 7}},
            processors={"replica 0": PROCESSORS, "shard 0": PROCESSORS, "coordinator": PROCESSORS},
            lease_samples=80,
        ),
    )
    (worker,) = found.workers
    assert (worker.samples, worker.steps, worker.sent, worker.received) == (800, 100, 15, 7)
    assert found.samples_per_s == pytest.approx(100.0)
    assert found.over
    assert (found.total_samples, found.lease_samples) == (800, 80)
    assert found.machines[0].used == pytest.approx(0.3)


def test_a_run_of_an_older_version_has_too_few_figures() -> None:
    with pytest.raises(UserError, match="small: its summary has no figures by replica"):
        of_summary(small_job(), summary())


def test_a_batch_method_has_no_mini_batches() -> None:
    job = small_job(strategy={"name": "sandblaster", "iterations": 3})
    with pytest.raises(UserError, match="sandblaster has no mini-batches to advise on"):
        of_statuses(job, status(), status(elapsed_s=20.0))


def test_what_others_use_is_not_free() -> None:
    (machine,) = situations.computing().machines
    assert machine.others == pytest.approx(0.05)
    assert machine.free == pytest.approx(1.95)
    assert machine.busy_share == 1.0


def test_others_leave_half_of_the_processors() -> None:
    (machine,) = situations.measured([situations.worker(0, compute=50, push=1, used=0.1, busy=2.0)]).machines
    assert machine.free == 1.0
    assert machine.busy_share == pytest.approx(0.15)
