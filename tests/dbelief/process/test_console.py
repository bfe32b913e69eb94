"""The end of commands: one line, the exit code, and a traceback only on request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dbelief.errors import DataError, Interrupted, RuntimeFailure
from dbelief.process.log import DEBUG
from dbelief.process.terminal.console import cause_of, cli_errors, interrupt_event

JOB = """
name: none
model: {layers: [{dense: 1}], loss: square}
data: {source: synthetic, kind: regression, samples: 50, features: 3, noise: 0.1}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
"""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (DataError("x.npz: is empty"), 2, "Error: x.npz: is empty"),
        (RuntimeFailure("shard 1 is gone"), 1, "Error: shard 1 is gone"),
        (Interrupted("stopped"), 130, "Error: stopped"),
        (OSError(28, "No space left on device", "x"), 1, "Error: [Errno 28] No space left on device: 'x'"),
        (ValueError("shapes (2,)\nand (3,)"), 1, "Error: ValueError: shapes (2,) and (3,) (PLACE)"),
        (click.BadParameter("no"), 2, "Error: Invalid value: no"),
    ],
)
@pytest.mark.parametrize("wanted", [False, True])
def test_an_error_is_one_line_and_a_code(
    error: Exception,
    code: int,
    line: str,
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(DEBUG, "1" if wanted else "")
    with pytest.raises(SystemExit) as ended, cli_errors():
        raise error
    assert ended.value.code == code
    here = traceback.extract_tb(ended.value.__context__.__traceback__)[-1].lineno if ended.value.__context__ else 0
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == line.replace("PLACE", f"{__file__}, line {here}")
    traced = wanted and not isinstance(error, click.ClickException)
    assert [text for text in said[:-1] if text.startswith("Traceback")] == [
        "Traceback (most recent call last):"
    ] * traced
    assert traced or len(said) == 1


def test_each_problem_of_a_message_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), cli_errors():
        raise DataError("job.yaml: limits.epoch: no such field\njob.yaml: name: is missing")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["Error: job.yaml: limits.epoch: no such field", "Error: job.yaml: name: is missing"]


@pytest.mark.processes
def test_a_reader_that_ends_early_is_no_error() -> None:
    command = f"{sys.executable} -P -m dbelief help resume | head -n 1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout.strip() == "Stop and resume a job"
    assert ended.stderr == ""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["", pytest.param("--debug", marks=pytest.mark.long), DEBUG])
def test_tracebacks_option_reaches_child_processes(how: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    snapshots = tmp_path / "runs" / "none" / "snapshots"
    snapshots.mkdir(parents=True)
    flags = [how] * how.startswith("--")
    environment = {name: value for name, value in os.environ.items() if name != DEBUG}
    environment |= {DEBUG: "1"} if how == DEBUG else {}
    command = [sys.executable, "-P", "-m", "dbelief", *flags, "train", "--quiet", "--resume", "job.yaml"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    log = (tmp_path / "runs" / "none" / "logs" / "coordinator.log").read_text()
    for said in (ended.stderr, log):
        assert said.splitlines()[-1] == f"Error: {snapshots}: no complete snapshot set to resume from"
        assert ("Traceback (most recent call last):" in said) == bool(how)


def test_signal_inside_the_wait_is_received() -> None:
    with interrupt_event() as asked:
        with asked._cond:  # type: ignore[attr-defined]  # where Event.wait is each time it begins and ends
            signal.raise_signal(signal.SIGTERM)
        assert asked.wait(60)


@pytest.fixture
def terminal() -> Iterator[None]:
    """SIGHUP as it is outside of `nohup`, where the tests may run."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGINT, "Ctrl-C"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGHUP, "SIGHUP, as when its terminal is closed"),
    ],
)
def test_a_signal_is_named(number: signal.Signals, cause: str) -> None:
    before = signal.getsignal(number)
    with interrupt_event() as asked:
        signal.raise_signal(number)
        assert asked.wait(60)
        assert cause_of(asked) == cause
        assert signal.getsignal(number) == (signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
    assert signal.getsignal(number) == before


@pytest.mark.usefixtures("terminal")
def test_the_first_signal_is_the_cause() -> None:
    with interrupt_event() as asked:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # of the shell in a terminal that is closed
        signal.raise_signal(signal.SIGTERM)
        assert asked.wait(60)
        assert cause_of(asked) == "SIGHUP, as when its terminal is closed"
    assert cause_of(threading.Event()) == "a signal"


def test_under_nohup_the_terminal_may_be_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_event() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert not asked.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
