"""How a member is started by srun, and what its end means; srun and Slurm's other commands are not run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.launch.places import Places
from dbelief.launch.slurm.allocation import Allocation
from dbelief.launch.slurm.steps import Nodes, SlurmStep


class _Slurm:
    """A controller that knows which nodes are left, and two steps."""

    def __init__(self) -> None:
        self.left = ["n1", "n2"]
        self.scancel = ""
        self.done: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        if command[:3] == ["scontrol", "show", "hostnames"]:
            return command[3].replace(",", "\n")
        if command[0] == "squeue":
            return "7.0 ps-0\n7.3 worker-0\n" if "--steps" in command else ",".join(self.left)
        if command[0] == "scancel" and self.scancel:
            raise RuntimeFailure(self.scancel)
        self.done.append(list(command))
        return ""


@pytest.fixture
def slurm() -> _Slurm:
    return _Slurm()


@pytest.fixture
def shard(slurm: _Slurm) -> SlurmStep:
    tasks = {"n1": 1, "n2": 1}
    places = Places(tasks)
    places.put("coordinator", "coordinator", ["n1"])
    return SlurmStep("ps", "ps-0", Nodes(Allocation("7", tasks, run=slurm)), places)


def test_step_overlaps_on_one_task_of_one_node(shard: SlurmStep) -> None:
    command = shard.command(["ps", "--number", "0"])
    assert {"--nodes=1", "--ntasks=1", "--nodelist=n2", "--overlap", "--mem=0"} <= set(command)
    assert command[-9:] == [sys.executable, "-P", "-m", "dbelief", "ps", "--listen", "n2:0", "--number", "0"]
    script = ["worker", "--", "train.py", "--rate", "1"]
    assert shard.command(script)[-5:] == script, "it does not listen"


def test_worker_has_its_gpu_and_shard_has_none(slurm: _Slurm) -> None:
    nodes = Nodes(Allocation("7", {"n1": 4}, gpus=1, run=slurm))
    worker = SlurmStep("worker", "worker-0", nodes, Places({"n1": 4})).command([])
    assert {"--exact", "--gpus-per-task=1"} <= set(worker)
    assert "--overlap" not in worker, "steps that overlap share a GPU"
    assert "--gres=none" in SlurmStep("ps", "ps-0", nodes, Places({"n1": 4})).command([])


def test_exit_code_counts_where_the_node_is_alive(shard: SlurmStep) -> None:
    shard.command([])
    assert shard.fate(0) == (0, "on node n2 ended with exit code 0")
    assert shard.possible()


def test_exit_code_0_of_a_lost_node_is_a_failure(shard: SlurmStep, slurm: _Slurm) -> None:
    shard.command([])
    slurm.left = ["n1"]
    assert shard.fate(0) == (1, "was lost with node n2")
    assert shard.possible()
    assert "--nodelist=n1" in shard.command([])


def test_ending_job_loses_no_nodes(shard: SlurmStep, slurm: _Slurm) -> None:
    shard.command([])
    slurm.left = []
    assert shard.fate(0)[0] == 0
    assert shard.possible()


def test_failed_shard_moves_to_another_node(shard: SlurmStep) -> None:
    shard.command([])
    assert shard.fate(1)[0] == 1
    assert "--nodelist=n1" in shard.command([])


def test_only_the_step_of_its_name_is_asked_to_end(shard: SlurmStep, slurm: _Slurm) -> None:
    shard.command([])
    process: subprocess.Popen[bytes] = subprocess.Popen(["true"])
    shard.ask_to_end(process)
    process.wait()
    assert slurm.done == [["scancel", "--signal=TERM", "7.0"]]


@pytest.mark.parametrize(("error", "told"), [("Invalid job id specified", ""), ("Access denied", "ps-0 could not")])
def test_a_step_that_is_not_signalled_is_announced(
    shard: SlurmStep, slurm: _Slurm, capsys: pytest.CaptureFixture[str], error: str, told: str
) -> None:
    """Slurm 22.05 says so of a step that it has signalled."""
    slurm.scancel = f"scancel --signal=TERM 7.0: {error}"
    shard.command([])
    process: subprocess.Popen[bytes] = subprocess.Popen(["sleep", "100"])
    shard.ask_to_end(process)
    process.kill()
    process.wait()
    err = capsys.readouterr().err
    assert err.startswith(told)
    assert bool(err) == bool(told)


def test_silent_shard_is_killed_and_moved(shard: SlurmStep) -> None:
    shard.command([])
    process: subprocess.Popen[bytes] = subprocess.Popen(["sleep", "100"])
    shard.abandon(process, 16.0)
    assert process.wait() < 0
    assert shard.fate(-9) == (1, "was silent on node n2 for 16 s, and is abandoned there")
    assert "--nodelist=n1" in shard.command([])
