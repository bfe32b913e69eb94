"""Settings of a script's membership, and what a script or `dbelief run` refuses before it joins."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dbelief
from dbelief.arrays.backend import select_backend
from dbelief.cli.main import main
from dbelief.errors import JobError, UserError
from dbelief.job import parse_job
from dbelief.launch.train import run_job
from dbelief.script.settings import ScriptSettings
from dbelief.security import identity
from dbelief.security.identity import FOLDER
from dbelief.training.session import JobContext
from tests.processes.conftest import Operator
from worker.command import NOT_FOR_SCRIPTS
from worker.command import command as worker_command
from worker.script import run_script

SCRIPT_JOB = """
name: scripts
model: {source: script}
data: {source: script, train: 100}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
threads: 3
"""
OWN_JOB = """
name: own
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
"""
JOINS = "import dbelief; print(dbelief.join().job.folder)"
VARIABLES = ("DBELIEF_NUMBER", "DBELIEF_THREADS", "DBELIEF_SHARED_MEMORY", "DBELIEF_DIRECT_STREAMS")
OTHERS = ("DBELIEF_COORDINATOR", "DBELIEF_NAME", "DBELIEF_PATIENCE", "DBELIEF_JOB_FOLDER")

texts = st.none() | st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=20)
numbers = st.none() | st.integers(0, 10**6)
seconds = st.floats(0, 10**6)
own_folders = st.none() | st.sampled_from([Path("/"), Path("/own data/jobs")])


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *OTHERS, FOLDER):
        monkeypatch.delenv(name, raising=False)


# -- variables -----------------------------------------------------------------------------------------------


@given(st.builds(ScriptSettings, texts, texts, numbers, numbers, st.booleans(), st.booleans(), seconds, own_folders))
def test_settings_are_read_back_from_their_variables(settings: ScriptSettings) -> None:
    variables = settings.variables()
    assert all(name.startswith("DBELIEF_") for name in variables)
    with patch.dict(os.environ, variables):
        assert ScriptSettings.of_environment() == settings


def test_without_variables_all_have_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ScriptSettings(None, None, None, None, shared_memory=True, direct_streams=True)
    assert ScriptSettings.of_environment() == ScriptSettings() == usual
    for name in (*VARIABLES, *OTHERS):
        monkeypatch.setenv(name, "")
    assert ScriptSettings.of_environment() == usual, "empty is not set"


@pytest.mark.parametrize(("name", "value"), [*product(VARIABLES, ["x", "1.5", "yes"]), ("DBELIEF_PATIENCE", "long")])
def test_bad_number_names_its_variable(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"^{name} is '{value}', must be a number$"):
        ScriptSettings.of_environment()


def test_worker_becomes_the_script_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda *arguments: ran.append(arguments))
    monkeypatch.setenv("OTHER", "kept")
    settings = ScriptSettings("host:1", "a", 2, shared_memory=False)
    run_script(["--", "python", "train.py", "--lr", "1"], settings)
    run_script(["train.py", "--lr", "1"], settings)
    (program, command, environment), (own, whole, _) = ran
    assert (program, command) == ("python", ["python", "train.py", "--lr", "1"])
    assert (own, whole) == (sys.executable, [sys.executable, "train.py", "--lr", "1"])
    assert environment["OTHER"] == "kept"
    with patch.dict(os.environ, environment, clear=True):
        assert ScriptSettings.of_environment() == settings


def test_a_script_has_an_option_of_its_worker_or_the_option_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def become(program: str, command: list[str], environment: dict[str, str]) -> None:
        ran.append(environment)
        raise SystemExit

    ran: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.chdir(tmp_path)
    wanted = ScriptSettings("host:1", "a", 2, 3, False, False, 0.5, tmp_path / "own")
    words = ["--coordinator", "host:1", "--name", "a", "--number", "2", "--threads", "3", "--no-shared-memory"]
    words += ["--no-direct-streams", "--patience", "0.5", "--folder", "own", "--at-end", "exit", "--", "python", "t.py"]
    done = CliRunner().invoke(worker_command, words)
    assert done.exit_code == 0, done.output
    with patch.dict(os.environ, ran[0], clear=True):
        assert ScriptSettings.of_environment() == wanted
    passed = {field.name for field in fields(ScriptSettings)} - {"patience_s"} | {"patience", "script"}
    process = {"cores", "credentials", "insecure", "proxy"}  # what holds for a process, whatever it becomes
    options = {str(option.name) for option in worker_command.params} - {"compute_wait_s"}  # for comparisons
    assert options == passed | process | {*NOT_FOR_SCRIPTS}


@pytest.mark.processes
def test_a_script_waits_no_longer_than_its_worker(operator: Operator) -> None:
    words = ["--coordinator", "127.0.0.1:1", "--patience", "0.1", "--", sys.executable, "-c", JOINS]
    worker = operator.start("worker", "worker", *words)
    assert worker.ends() == 1
    assert worker.said("(coordinator at 127.0.0.1:1 did not answer within 0.1 s)")


@pytest.mark.processes
def test_relative_paths_of_a_script_start_from_its_workers_folder(operator: Operator) -> None:
    """Where it stands at the start, though the script changes to another."""
    _, address = operator.coordinator(operator.write_job(SCRIPT_JOB))
    leaves = f"import os; os.chdir('/'); {JOINS}"
    words = ["--coordinator", address, "--folder", "own", "--", sys.executable, "-c", leaves]
    worker = operator.start("worker", "worker", *words)
    assert worker.ends() == 0
    assert worker.log.read_text() == f"{operator.folder / 'own'}\n"


def test_a_script_has_the_credentials_of_its_worker(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def become(program: str, command: list[str], environment: dict[str, str]) -> None:
        ran.append(environment[FOLDER])
        raise SystemExit

    ran: list[str] = []
    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.setattr(identity._Identity, "loaded", None)
    monkeypatch.chdir(folders["ours"])
    words = ["--coordinator", "host:1", "--credentials", "worker", "--", "python", "train.py"]
    done = CliRunner().invoke(worker_command, words)
    assert ran == [str(folders["ours"] / "worker")], f"the script may leave this folder; {done.output}"


def test_program_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no-such-program: cannot be run: No such file or directory"):
        run_script([str(tmp_path / "no-such-program"), "train.py"], ScriptSettings("host:1"))


# -- join ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [None, ""])
def test_join_without_an_address_says_how_to_start_a_script(address: str | None) -> None:
    with pytest.raises(UserError, match=r"no coordinator is named: start the script by `dbelief run --job JOB SCRIPT`"):
        dbelief.join(address)


def joins(text: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, Path | None]]:
    """Let scripts join a job without a coordinator; where they join, for how long they wait, and their folder."""
    job, asked = parse_job(text, Path(), "job"), list[tuple[str, float, Path | None]]()

    def fetch(address: str, patience_s: float, folder: Path | None) -> JobContext:
        asked.append((address, patience_s, folder))
        return JobContext(address, job, None, select_backend("cpu"))

    monkeypatch.setattr(JobContext, "fetch", fetch)
    return asked


def test_a_script_joins_no_job_with_a_model_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    joins(OWN_JOB, monkeypatch)
    with pytest.raises(JobError, match=r"^job own has a model of its own; a script joins those with model source: "):
        dbelief.join("host:1")


def test_arguments_of_join_precede_variables_and_these_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = joins(SCRIPT_JOB, monkeypatch)
    given = ScriptSettings("host:1", "variable", 4, None, False, False, 5.0, Path("own"))
    for name, value in given.variables().items():
        monkeypatch.setenv(name, value)
    found = dbelief.join().membership.settings
    assert found == replace(given, threads=3), "threads are the job's"
    monkeypatch.setenv("DBELIEF_THREADS", "2")
    found = dbelief.join("host:2", 0.0, name="own", shared_memory=True, direct_streams=True).membership.settings
    assert (found.name, found.number, found.threads) == ("own", 4, 2)
    assert found.shared_memory
    assert found.direct_streams
    assert asked == [("host:1", 5.0, Path("own")), ("host:2", 0.0, Path("own"))]


# -- dbelief run ---------------------------------------------------------------------------------------------

BRINGS = "model: must be {source: script}, and data: {source: script, train: N}, for a script that brings both"


def test_run_of_a_job_with_a_model_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a folder is made or a process started."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(OWN_JOB)
    with pytest.raises(JobError) as caught:
        run_job(Path("job.yaml"), {}, quiet=True, script=["train.py"])
    assert str(caught.value) == f"job.yaml: {BRINGS}; `dbelief train` runs this job"
    done = CliRunner().invoke(main, ["run", "--quiet", "--job", "job.yaml", "train.py"])
    assert (done.exit_code, done.output) == (2, f"Error: {caught.value}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


class Ran:
    """What `dbelief run` is about to run."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.command: Sequence[str] = ()

    def __call__(self, file: Path, fields: dict[str, str], script: Sequence[str], **_: Any) -> int:
        self.fields, self.command = fields, script
        return 3


@pytest.mark.parametrize(
    ("words", "fields", "command"),
    [
        (["train.py"], {}, ("train.py",)),
        (["train.py", "--quiet", "--lr=1"], {}, ("train.py", "--quiet", "--lr=1")),
        (["bash", "-c", "python train.py"], {}, ("bash", "-c", "python train.py")),
        (["--workers", "4", "--set", "seed=2", "train.py"], {"replicas": "4", "seed": "2"}, ("train.py",)),
    ],
)
def test_command_of_a_script(
    words: list[str], fields: dict[str, str], command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Ran()
    monkeypatch.setattr("dbelief.launch.train.run_job", ran)
    done = CliRunner().invoke(main, ["run", "--job", "job.yaml", *words])
    assert (done.exit_code, ran.fields, ran.command) == (3, fields, command)


def test_a_script_is_needed_for_its_job(tmp_path: Path) -> None:
    """The other way round: `dbelief train` of a job for scripts."""
    (tmp_path / "job.yaml").write_text(SCRIPT_JOB)
    with pytest.raises(UserError, match="the model of job scripts is the module of its script: run it by `"):
        run_job(tmp_path / "job.yaml", {"output": str(tmp_path / "runs")}, quiet=True)
    assert not (tmp_path / "runs").exists()
