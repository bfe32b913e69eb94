"""A command that is submitted to Slurm, and the job that it is followed as, with commands in Slurm's place."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.launch.slurm import submission
from dbelief.launch.slurm.submission import BatchJob, submit
from dbelief.process.terminal.console import Interrupt

RECORDS = """#!/bin/sh
printf '%s\\n' "$@" > words
cat > script
{ends}
"""


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a program in the place of `sbatch`."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stand_in(folder: Path, ends: str) -> None:
    (folder / "sbatch").write_text(RECORDS.format(ends=ends))
    (folder / "sbatch").chmod(0o755)


def test_the_batch_script_is_the_command(sbatch: Path) -> None:
    stand_in(sbatch, "echo '17;cluster'")
    words = ["train", "a job.yaml", "--on", "slurm", "--set", "note='x'"]
    assert submit("digits", words, 5, ["--time=10"]) == "17"
    given = (sbatch / "words").read_text().splitlines()
    assert given[:3] == ["--parsable", "--job-name=digits", "--ntasks=5"]
    assert given[-1] == "--time=10"
    first, run = (sbatch / "script").read_text().splitlines()
    assert first == "#!/bin/sh"
    assert run.endswith(""" -m dbelief train 'a job.yaml' --on slurm --set 'note='"'"'x'"'"''""")


def test_a_refused_submission(sbatch: Path) -> None:
    stand_in(sbatch, "echo 'sbatch: error: invalid partition' >&2; exit 1")
    with pytest.raises(RuntimeFailure, match=r"^sbatch: error: invalid partition$"):
        submit("digits", [], 5, [])


def test_no_slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeFailure, match=r"^sbatch: No such file or directory; --on slurm needs Slurm's commands$"):
        submit("digits", [], 5, [])


class Slurm:
    """Answers of `scontrol show job` in order, the last one for ever; an exception is raised."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.cancelled: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> str:
        if command[0] == "scancel":
            self.cancelled.append(command)
            return ""
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def shown(state: str, code: str = "0:0", output: str = "/nowhere", reason: str = "None") -> str:
    """The part of it that counts."""
    first = f"JobId=17 JobName=digits\n   JobState={state} Reason={reason} Dependency=(null)\n"
    return f"{first}   Requeue=1 ExitCode={code}\n   StdOut={output}\n"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "LOOK_S", 0.0)


def test_states_and_output_are_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output, written = tmp_path / "with a space.out", list[str]()
    pending = shown("PENDING", reason="Resources", output=str(output))
    down = RuntimeFailure("scontrol did not answer")

    def running(command: Sequence[str]) -> str:
        with output.open("a") as file:
            file.write("trains\n")
        return slurm(command)

    slurm = Slurm(pending, pending, down, shown("RUNNING", output=str(output)), shown("COMPLETED", output=str(output)))
    assert BatchJob("17", written.append, running).follow(Interrupt()) == 0
    assert [record.message for record in caplog.records if "Slurm" in record.message] == [
        "Slurm job 17: pending (Resources)",
        "Slurm job 17: running",
        "Slurm job 17: completed",
    ]
    assert "".join(written) == "trains\n" * 5


@pytest.mark.parametrize(("given", "code"), [("3:0", 3), ("0:9", 137), ("2:0", 2)])
def test_the_exit_code_is_the_jobs(given: str, code: int) -> None:
    assert BatchJob("17", str, Slurm(shown("FAILED", given))).follow(Interrupt()) == code


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (shown("TIMEOUT"), "Slurm job 17: timeout"),
        (shown("CANCELLED"), "Slurm job 17: cancelled"),
        (shown("PREEMPTED"), "Slurm job 17: preempted"),
        (RuntimeFailure("scontrol show job 17: slurm_load_jobs error: Invalid job id specified"), "Invalid job id"),
        (RuntimeFailure("scontrol did not answer within 60 s"), "did not answer"),
    ],
)
def test_ends_that_are_none_of_the_command(answer: str | Exception, words: str) -> None:
    with pytest.raises(RuntimeFailure, match=words):
        BatchJob("17", str, Slurm(answer)).follow(Interrupt())


@pytest.mark.parametrize(
    ("state", "end", "cancels"),
    [
        ("PENDING", "CANCELLED", ["scancel", "17"]),
        ("RUNNING", "COMPLETED", ["scancel", "--batch", "--signal=TERM", "17"]),
    ],
)
def test_a_signal_ends_the_job(state: str, end: str, cancels: list[str]) -> None:
    interrupted, slurm = Interrupt(), Slurm(shown(state), shown(state), shown(end))
    interrupted.set()
    assert BatchJob("17", str, slurm).follow(interrupted) == 130
    assert slurm.cancelled == [cancels]


def test_a_job_that_is_requeued_meanwhile_is_cancelled_too() -> None:
    interrupted = Interrupt()
    slurm = Slurm(shown("RUNNING"), shown("PENDING"), shown("CANCELLED"))
    interrupted.set()
    assert BatchJob("17", str, slurm).follow(interrupted) == 130
    assert [command[-2] for command in slurm.cancelled] == ["--signal=TERM", "scancel"]


def test_scancel_is_tried_again() -> None:
    interrupted, slurm = Interrupt(), Slurm(*[shown("RUNNING")] * 3, shown("COMPLETED"))
    interrupted.set()
    tries = []

    def busy(command: Sequence[str]) -> str:
        if command[0] == "scancel":
            tries.append(command)
            if len(tries) == 1:
                raise RuntimeFailure("scancel did not answer")
        return slurm(command)

    assert BatchJob("17", str, busy).follow(interrupted) == 130
    assert len(tries) == 2


def test_a_closed_terminal_leaves_the_job_running() -> None:
    interrupted, slurm = Interrupt(), Slurm(shown("RUNNING"))
    interrupted.number = signal.SIGHUP
    interrupted.set()
    assert BatchJob("17", str, slurm).follow(interrupted) == 130
    assert slurm.cancelled == []
