"""Nodes of a job, from the batch environment and Slurm's commands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dbelief.errors import RuntimeFailure, UserError
from dbelief.launch.slurm.allocation import Allocation, run, task_counts

BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "2(x2),1"}


def _slurm(command: Sequence[str]) -> str:
    answers = {
        ("scontrol", "show", "hostnames", "n[1-3]"): "n1\nn2\nn3\n",
        ("scontrol", "show", "hostnames", "n[1,3]"): "n1\nn3\n",
        ("squeue", "--noheader", "--jobs=7", "--states=all", "--format=%N"): "n[1,3]\n",
    }
    return answers[tuple(command)]


def test_tasks_by_node_in_slurms_order() -> None:
    allocation = Allocation.of(BATCH, _slurm)
    assert (allocation.job, dict(allocation.tasks), allocation.restarts) == ("7", {"n1": 2, "n2": 2, "n3": 1}, 0)
    assert allocation.first == "n1"
    assert Allocation.of({**BATCH, "SLURM_RESTART_COUNT": "2"}, _slurm).restarts == 2


def test_gpus_of_each_worker() -> None:
    assert Allocation.of(BATCH, _slurm).gpus == 0
    assert Allocation.of({**BATCH, "SLURM_JOB_GPUS": "0,1"}, _slurm).gpus == 1
    assert Allocation.of({**BATCH, "SLURM_JOB_GPUS": "0,1", "SLURM_GPUS_PER_TASK": "2"}, _slurm).gpus == 2


def test_a_node_that_slurm_has_taken_out_is_not_left() -> None:
    assert Allocation.of(BATCH, _slurm).left() == ["n1", "n3"]


def test_a_job_that_is_over_has_no_nodes() -> None:
    assert Allocation("7", {"n1": 1}, run=lambda command: "\n").left() == []


def test_missing_slurm_variable_is_named() -> None:
    with pytest.raises(UserError, match="no batch job of Slurm: SLURM_TASKS_PER_NODE is not set"):
        Allocation.of({name: BATCH[name] for name in list(BATCH)[:2]}, _slurm)


@pytest.mark.parametrize(("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])])
def test_counts_as_slurm_writes_them(text: str, counts: list[int]) -> None:
    assert task_counts(text) == counts


def test_a_command_that_is_missing_or_fails_is_a_failure() -> None:
    with pytest.raises(RuntimeFailure, match="no-such-squeue: No such file"):
        run(["no-such-squeue"])
    with pytest.raises(RuntimeFailure, match="false: "):
        run(["false"])
