"""`dbelief advise` of jobs that cannot be advised on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.advise.measurements import Measurements
from dbelief.cli import advise as module
from dbelief.cli.advise import advise_job
from dbelief.errors import RuntimeFailure, UserError
from tests.dbelief.advise import situations
from tests.dbelief.advise.test_measurements import summary
from tests.jobs import small_file


def never(seconds: float) -> None:
    raise AssertionError("it is measured")


def test_there_is_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run folder nor HOST:PORT"):
        advise_job(str(tmp_path / "absent"), 1.0, False, False, never)


def test_a_job_that_does_not_train_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_file(tmp_path)
    status: dict[str, Any] = {"job": "small", "state": "waiting", "waiting_for": "1 shard"}
    monkeypatch.setattr(module, "get_status", lambda place: status)
    with pytest.raises(RuntimeFailure, match="job small is waiting, waiting for 1 shard: it is advised on while"):
        advise_job(str(tmp_path), 1.0, False, False, never)


def test_too_little_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = situations.measured([situations.worker(0, compute=5000)])
    monkeypatch.setattr(module, "_measured", lambda *_: found)
    with pytest.raises(UserError, match=r"runs/small: it has not trained long enough to know: .*--over 38"):
        advise_job("runs/small", 10.0, False, False, never)


def test_an_ended_run_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_file(tmp_path)
    ended = summary(
        trained=True,
        phase_seconds={"0": {"compute": 6.0, "push": 2.0}},
        steps_per_replica={"0": 100},
        pushes_per_replica={"0": 50},
    )
    monkeypatch.setattr(module, "get_status", lambda place: ended)
    with pytest.raises(UserError, match="the job has ended, and nothing of it can be changed"):
        advise_job(str(tmp_path), 1.0, False, True, never)


def scaled(found: Measurements, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What was asked of the job where the advice on these measurements was applied."""
    asked: list[tuple[str, str, int]] = []

    def scale(where: str, what: str, count: int) -> str:
        asked.append((where, what, count))
        return "asked"

    monkeypatch.setattr(module, "_measured", lambda *_: found)
    monkeypatch.setattr(module, "scale_job", scale)
    advise_job("runs/small", 10.0, False, True, never)
    return asked


def test_the_best_number_is_applied(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaled(situations.data(), monkeypatch) == [("runs/small", "replica", 4)]
    assert capsys.readouterr().out.endswith("\nasked\n")
    assert scaled(situations.one_shard(), monkeypatch) == [("runs/small", "shard", 2)]


def test_nothing_is_applied_where_no_number_helps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaled(situations.computing(), monkeypatch) == []
    assert "nothing is applied: no other number of workers or shards" in capsys.readouterr().out
