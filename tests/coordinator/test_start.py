from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.sets import write_set
from coordinator.start import make_machine
from coordinator.states import Shape
from dbelief.errors import Mistake
from dbelief.job import Job

MakeJob = Callable[..., Job]


def test_sizes_are_those_of_the_data(a_job: MakeJob, tmp_path: Path) -> None:
    machine = make_machine(a_job(limits={"epochs": 2}), tmp_path, resume=False)
    assert machine.shape == Shape(1257, 180, 360)
    assert machine.total == 2514


def test_without_data_there_are_none(a_job: MakeJob, tmp_path: Path) -> None:
    job = a_job(data={"source": "none"}, limits={"samples": 100}, replicas=0)
    assert make_machine(job, tmp_path, resume=False).shape == Shape(0, 0, 0)


def test_a_resumed_job_goes_on_from_the_newest_set_in_a_new_epoch(a_job: MakeJob, tmp_path: Path) -> None:
    state = {"leases": {"epoch_samples": 1257}, "incarnations": 9, "sets": 4, "shard_epoch": 3, "layout": ""}
    folder = tmp_path / "snapshots" / "000000000100-0004"
    folder.mkdir(parents=True)
    write_set(folder, folder.name, "test", state)
    machine = make_machine(a_job(), tmp_path, resume=True)
    assert machine.shard_epoch == 4
    assert machine.members.incarnations == 9
    assert machine.training.snapshots.count == 4


def test_there_must_be_something_to_resume(a_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="no complete snapshot set"):
        make_machine(a_job(), tmp_path, resume=True)
