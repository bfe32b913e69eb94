"""The last exchange fails while it travels: the script ends, with the cause and an exit code, and others can go on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.errors import Rejected, Unavailable
from dbelief.job import parse_job
from dbelief.script.job import ScriptJob
from dbelief.script.membership import Membership
from dbelief.script.settings import ScriptSettings
from tests.processes.conftest import Operator

LAST = Path(__file__).with_name("last.py")
JOB = """
name: last
model: {{source: script}}
data: {{source: script, train: 40}}
strategy: {strategy}
limits: {{epochs: 1}}
deadlines: {{progress_s: {progress_s}}}
"""
ADDS = "{name: downpour, batch: 10, lease: 40, rule: {name: add}, n_push: 4, n_fetch: 4, overlap: true}"
ROUNDS = "{name: diloco, batch: 10, lease: 40, steps: 4, delay: 4}"
"""One exchange in all."""


@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.parametrize(
    ("fault", "end", "strategy", "progress_s", "said"),
    [("gone", "breaks", ADDS, 4, "no segment for"), ("rejected", "waits", ROUNDS, 60, "the job has no such replica")],
    ids=["gone", "rejected"],
)
def test_a_script_ends_with_its_last_exchange(
    fault: str, end: str, strategy: str, progress_s: int, said: str, operator: Operator
) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    coordinator, address = operator.coordinator(
        operator.write_job(JOB.format(strategy=strategy, progress_s=progress_s))
    )
    (shard,) = operator.members(address, 1, 0)
    command = [sys.executable, str(LAST), fault, end, str(shard.process.pid)]
    worker = operator.start("worker", "worker", "--coordinator", address, "--", *command)
    assert worker.ends() == 1
    log = worker.log.read_text()
    assert "steps 4" in log, "the exchange travels"
    assert "ends well" not in log
    assert worker.said(rf"(Error: push: shard 0 at .*{said})")
    assert coordinator.said(rf"(replica 0 \(.*\) failed: .*push: shard 0 at .*{said})"), "others do not wait for it"


class Left:
    """A session, and how it was left."""

    def __init__(self) -> None:
        self.ways: list[tuple[str, bool]] = []

    def close(self, reason: str, failed: bool = False) -> None:
        self.ways.append((reason, failed))


def member(session: Left, folder: Path) -> Membership:
    job = parse_job(JOB.format(strategy=ROUNDS, progress_s=60), folder, "last")
    made = Membership(cast(Any, SimpleNamespace(job=job)), ScriptSettings())
    made._session = cast(Any, session)
    return made


def failing(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("place", ["settle", "at_end"])
@pytest.mark.parametrize(
    ("error", "code", "traced"),
    [
        (Rejected("push: shard 0: no such replica"), 1, False),
        (Unavailable("push: shard 0: no segment for 60 s"), 1, False),
        (OSError("no space left"), 1, True),
        (KeyError("moments"), 2, True),
    ],
)
def test_an_error_at_the_end_of_the_block(
    error: Exception, code: int, traced: bool, place: str, tmp_path: Path, caplog: Any, capsys: Any
) -> None:
    session = Left()
    ending = member(session, tmp_path)
    setattr(ending, place, lambda: failing(error))
    with pytest.raises(SystemExit) as ended, ScriptJob(ending):
        pass
    assert ended.value.code == code
    assert session.ways == [(f"{type(error).__name__}: {error}", True)]
    assert str(error) in caplog.records[-1].message
    assert caplog.records[-1].levelname == "ERROR"
    assert ("Traceback" in capsys.readouterr().err) is traced


def test_the_scripts_own_error_is_not_followed_by_an_exchange(tmp_path: Path) -> None:
    session = Left()
    ending = member(session, tmp_path)
    ending.settle = lambda: failing(AssertionError("settled"))
    with pytest.raises(SystemExit) as ended, ScriptJob(ending):
        raise ValueError("its own")
    assert ended.value.code == 2
    ((reason, failed),) = session.ways
    assert "ValueError: its own" in reason
    assert failed
