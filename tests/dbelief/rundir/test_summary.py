import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dbelief.errors import DataError, WriteFailed
from dbelief.rundir.summary import read_summary, write_summary


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
    assert path.read_text().startswith(
        '{\n  "bytes_per_replica": {},\n  "died": [],\n  "epochs": 0.8,\n  "job": "digits",\n'
    )
    assert list(raw) == sorted(raw)
    assert list(raw["samples_per_replica"]) == ["replica-0", "replica-1"]


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
