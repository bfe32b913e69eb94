"""The file of a replica's own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError
from dbelief.job import Job, parse_job
from dbelief.script.state_place import state_file


def a_job(folder: Path, **changes: Any) -> Job:
    text = """
name: kept
model: {source: script}
data: {source: script, train: 100}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
"""
    return parse_job(text + "".join(f"{name}: {value}\n" for name, value in changes.items()), folder, "a job")


def test_it_is_in_the_runs_folder_or_in_one_that_is_named(tmp_path: Path) -> None:
    job, run = a_job(tmp_path), tmp_path / "runs/kept"
    run.mkdir(parents=True)
    assert state_file(None, job, str(run), 2) == run / "replicas/replica-2.safetensors"
    assert state_file(tmp_path / "own", job, "/none", 2) == tmp_path / "own/kept/replica-2.safetensors"
    assert (tmp_path / "own/kept").is_dir()


def test_where_nothing_can_be_kept_the_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the run's folder /none is not on this machine: name a folder"):
        state_file(None, a_job(tmp_path), "/none", 0)
    with pytest.raises(
        UserError, match=r"the run is at s3://bucket/runs, which workers do not write to: name a folder"
    ):
        state_file(None, a_job(tmp_path, output="s3://bucket/runs"), str(tmp_path), 0)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/kept: cannot be made: "):
        state_file(tmp_path / "file", a_job(tmp_path), "", 0)
