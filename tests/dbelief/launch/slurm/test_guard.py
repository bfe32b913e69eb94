"""The guard over the first node: requeue only where Slurm says that the node is dead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.launch.slurm.guard import TRIES, guard


class _Slurm:
    """Answers of `squeue`, one look after the other; what else was asked for."""

    def __init__(self, output: Path, *looks: str | RuntimeFailure, requeues: bool = True) -> None:
        self.output, self.looks, self.requeues = output, list(looks), requeues
        self.done: list[str] = []

    def __call__(self, command: Sequence[str]) -> str:
        if command[0] == "squeue":
            look = self.looks.pop(0)
            if isinstance(look, RuntimeFailure):
                raise look
            return look
        if command[:3] == ["scontrol", "show", "hostnames"]:
            return command[3].replace(",", "\n")
        if command[:3] == ["scontrol", "show", "job"]:
            return f"JobId=7 JobName=dbelief\n   StdErr=/dev/null\n   StdOut={self.output}\n   Power=\n"
        self.done.append(" ".join(command))
        if command[1] == "requeue" and not self.requeues:
            raise RuntimeFailure("scontrol requeue 7: Requeue disabled")
        return ""


@pytest.fixture
def output(tmp_path: Path) -> Path:
    (tmp_path / "slurm-7.out").write_text("before\n")
    return tmp_path / "slurm-7.out"


def test_dead_first_node_requeues_the_job(output: Path) -> None:
    slurm = _Slurm(output, "n1,n2", RuntimeFailure("squeue: timed out"), "", "n2")
    waits: list[float] = []
    guard("7", "n1", waits.append, slurm)
    assert len(waits) == 3  # an answer that is missing, or of a job that is over, requeues nothing
    assert slurm.done == ["scontrol requeue 7"]
    assert "before\nnode n1 of the coordinator failed: job 7 is requeued" in output.read_text()


def test_unrequeueable_job_is_cancelled_with_resume_hint(output: Path) -> None:
    slurm = _Slurm(output, "n2", requeues=False)
    guard("7", "n1", lambda seconds: None, slurm)
    assert slurm.done == [*["scontrol requeue 7"] * TRIES, "scancel 7"]
    assert "again with --resume" in output.read_text()


@pytest.mark.parametrize("known", [True, False])
def test_a_job_whose_output_cannot_be_written_is_requeued(known: bool, tmp_path: Path) -> None:
    """Its file is on the node that failed; or the controller does not answer once."""
    slurm = _Slurm(tmp_path / "gone" / "slurm-7.out", "n2")
    failures = (
        [] if known else [RuntimeFailure("scontrol show: timed out"), RuntimeFailure("scontrol requeue: timed out")]
    )

    def run(command: Sequence[str]) -> str:
        if failures and command[0] == "scontrol" and (command[1], command[2]) != ("show", "hostnames"):
            raise failures.pop(0)
        return slurm(command)

    guard("7", "n1", lambda seconds: None, run)
    assert slurm.done == ["scontrol requeue 7"]
