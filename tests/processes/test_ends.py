"""How a job of `dbelief train` or `dbelief run` starts and ends: claims, signals, failing scripts, closed streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Operator

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: ends
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 20, rule: {name: adagrad, rate: 0.05}}
limits: {epochs: 100000}
shards: 1
replicas: 1
"""
SCRIPTED = """
name: ends
model: {source: script}
data: {source: script, train: 100, validation: 0}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
"""
MISSING = "import a_module_that_is_missing\n"
REFUSED = "a run is in progress there; end it first, or give this one another name"


@pytest.mark.parametrize("resume", [False, True])
def test_of_two_starts_one_runs(operator: Operator, resume: bool) -> None:
    job, runs = str(operator.write_job(JOB)), operator.folder / "runs"
    options: list[str] = []
    if resume:
        operator.start("earlier", "train", "--quiet", job, "--set", "limits.epochs=1").ends()
        options = ["--resume"]
    both = [operator.start(name, "train", "--quiet", job, *options) for name in ("first", "second")]
    operator.until_samples("ends", 3000)
    codes = [one.process.poll() for one in both]
    (running,) = [one for one, code in zip(both, codes, strict=True) if code is None]
    (refused,) = [one for one, code in zip(both, codes, strict=True) if code is not None]
    assert refused.ends() == 2
    assert refused.log.read_text().splitlines()[-1] == f"Error: {runs}/ends: {REFUSED}"
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 130
    assert [path.name for path in runs.iterdir()] == ["ends"]


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP, as when its terminal is closed")]
)
def test_a_signal_stops_with_a_set_and_is_named(operator: Operator, number: signal.Signals, cause: str) -> None:
    train = operator.start("train", "train", "--quiet", str(operator.write_job(JOB)))
    operator.until_samples("ends", 100)
    train.process.send_signal(number)
    assert train.ends() == 130, train.log.read_text()
    summary = operator.summary("ends")
    assert (summary["state"], summary["reason"]) == ("done", f"stopped by {cause}")
    newest = max(path.name for path in (operator.folder / "runs" / "ends" / "snapshots").iterdir())
    assert newest.startswith(f"{summary['samples']:012d}")


def test_a_terminal_that_is_closed_stops_with_a_set(operator: Operator) -> None:
    """Its output has no place any more."""
    job = str(operator.write_job(JOB))
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(operator.folder)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "dbelief", "train", job])
    os.set_blocking(terminal, False)
    ended = 0
    try:
        operator.until_samples("ends", 100)  # what is written meanwhile has room in the terminal, or is dropped by it
        os.close(terminal)
        ended, status = os.waitpid(pid, 0)
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert operator.summary("ends")["reason"] == "stopped by SIGHUP, as when its terminal is closed"


def test_a_run_whose_folder_is_renamed_leaves_the_next_one_alone(operator: Operator) -> None:
    job, runs = str(operator.write_job(JOB)), operator.folder / "runs"
    moved = operator.start("moved", "train", "--quiet", job)
    operator.until_samples("ends", 100)
    (runs / "ends").rename(runs / "other")
    following = operator.start("following", "train", "--quiet", job, "--set", "limits.epochs=2")
    assert moved.ends() == 1
    assert f"{runs}/ends: the run folder was renamed or removed while its run was active" in moved.log.read_text()
    assert following.ends() == 0, following.log.read_text()
    assert operator.summary("ends")["epochs"] == 2
    assert not (runs / "other" / "summary.json").exists()


def test_a_script_that_cannot_start_ends_the_job_at_once(operator: Operator) -> None:
    script = operator.folder / "script.py"
    script.write_text(MISSING)
    run = operator.start(
        "run", "run", "--quiet", "--job", str(operator.write_job(SCRIPTED)), "--workers", "2", str(script)
    )
    assert run.ends() == 1
    log = run.log.read_text()
    error = f"{script}:1: ModuleNotFoundError: No module named 'a_module_that_is_missing'"
    assert log.splitlines()[-1].startswith(f"ends: the script fails before it joins the job: {error}, ")
    assert operator.summary("ends")["state"] == "failed"
    starts = [(operator.folder / f"runs/ends/logs/worker-{n}.log").read_text().count("Traceback") for n in (0, 1)]
    assert max(starts) <= 2, "the first of them may have been started again before the other had failed"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(tmp_path: Path, closed: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    words = f"{sys.executable} -P -m dbelief train job.yaml --quiet --set limits.epochs=1 {closed}"
    ended = subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "runs" / "ends" / "model.safetensors").exists()
