import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dbelief.errors import DataError, WriteFailed
from dbelief.rundir.summary import has_ended, outcome_text, read_summary, write_summary


def values(**other: Any) -> dict[str, Any]:
    return {
        "job": "digits",
        "seed": 0,
        "reason": "samples reached",
        "test_accuracy": np.float64(0.97),
        "test_loss": float("nan"),
        "validation_accuracy": None,
        "validation_loss": None,
        "samples": np.int64(1000),
        "samples_per_replica": {"replica-1": 400, "replica-0": 600},
        "epochs": 0.8,
        "steps": 32,
        "pushes": 32,
        "pushes_trained_twice": 0,
        "staleness_mean": 1.25,
        "wall_s": 3.5,
        "replicas": 2,
        "shards": 2,
        "members_lost": 0,
        "parameters": 2410,
        **other,
    }


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    written = write_summary(path, values(strategy="downpour"))
    assert read_summary(path) == written
    raw = json.loads(path.read_text())
    assert raw["test_accuracy"] == 0.97
    assert raw["test_loss"] is None
    assert raw["strategy"] == "downpour"
    head = '{\n  "bytes_per_replica": {},\n  "delays": null,\n  "died": [],\n  "epochs": 0.8,\n'
    assert path.read_text().startswith(f'{head}  "evaluation_failed": {{}},\n')
    assert list(raw) == sorted(raw)
    assert list(raw["samples_per_replica"]) == ["replica-0", "replica-1"]


def test_a_run_has_its_model_before_it_has_ended(tmp_path: Path) -> None:
    """The summary is there while the model is tested: a process that is killed then leaves both."""
    assert not has_ended(tmp_path)
    before = write_summary(tmp_path / "summary.json", values(state="closing", trained=True))
    assert (before.has_model, before.unevaluated, has_ended(tmp_path)) == (True, True, False)
    done = write_summary(tmp_path / "summary.json", values(state="done", trained=True))
    assert (done.has_model, done.unevaluated, has_ended(tmp_path)) == (True, False, True)
    failed = write_summary(tmp_path / "summary.json", values(state="failed"))
    assert (failed.has_model, failed.unevaluated, has_ended(tmp_path)) == (False, False, True)


def test_failed_evaluations_are_part_of_the_outcome() -> None:
    assert outcome_text("60 samples trained", {}) == "60 samples trained"
    failures = {"validation": "no file", "test": "a gap"}
    text = "the validation evaluation failed: no file; the test evaluation failed: a gap"
    assert outcome_text("60 samples trained", failures) == f"60 samples trained; {text}"
    assert outcome_text("", failures) == text


@pytest.mark.parametrize(("field", "wrong"), [("samples", -1), ("wall_s", float("inf")), ("reason", None)])
def test_a_wrong_value_is_refused(tmp_path: Path, field: str, wrong: object) -> None:
    with pytest.raises(ValidationError, match=field):
        write_summary(tmp_path / "summary.json", values(**{field: wrong}))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_value_is_refused(tmp_path: Path) -> None:
    incomplete = values()
    del incomplete["samples_per_replica"]
    with pytest.raises(ValidationError, match="samples_per_replica"):
        write_summary(tmp_path / "summary.json", incomplete)


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, values(seed=1))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteFailed, match=r"summary\.json: cannot be written: No space"):
        write_summary(path, values(seed=2))
    assert read_summary(path).seed == 1
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


def test_invalid_summary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with pytest.raises(DataError, match=r"summary\.json: No such file"):
        read_summary(path)
    path.write_text("{")
    with pytest.raises(DataError, match=r"summary\.json: Invalid JSON"):
        read_summary(path)
    write_summary(path, values())
    path.write_text(path.read_text().replace('"steps": 32', '"steps": "many"'))
    with pytest.raises(DataError, match=r"summary\.json: steps: "):
        read_summary(path)
