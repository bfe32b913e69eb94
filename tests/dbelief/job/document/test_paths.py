"""Paths of a job file."""

from pathlib import Path

import pytest

from dbelief.errors import JobError
from dbelief.job import parse_job, resolve

HERE = Path("/jobs")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("mnist", "/jobs/mnist"),
        ("/data/mnist", "/data/mnist"),
        ("${DATA}/mnist", "/data/mnist"),
        ("sub/${KIND}.${KIND}", "/jobs/sub/x.x"),
        ("a$b", "/jobs/a$b"),
        ("$DATA", "/jobs/$DATA"),
    ],
)
def test_paths_start_in_the_jobs_folder_and_know_variables(
    text: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("KIND", "x")
    assert resolve(text, HERE) == Path(path)


def test_a_variables_value_is_not_expanded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "${B}")
    monkeypatch.setenv("B", "x")
    assert resolve("${A}", HERE) == HERE / "${B}"


@pytest.mark.parametrize(("name", "state"), [("OTHER", "not set"), ("DATA", "empty")])
def test_an_unset_variable_is_named(name: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA", raising=False)
    monkeypatch.setenv(name, "")
    with pytest.raises(JobError, match=rf"^path '\${{DATA}}/x' of the job file: .* DATA is {state}$"):
        resolve("${DATA}/x", HERE)


def test_a_job_resolves_paths_from_its_folder() -> None:
    text = "{name: x, model: {python: 'm/a.py:B'}, data: {source: none}, limits: {wall_s: 1}, replicas: 0,"
    text += " strategy: {name: downpour, rule: {name: sgd, rate: 1}}}"
    job = parse_job(text, HERE, "x")
    assert job.path("a/b") == HERE / "a/b"
    assert job.model.file == "m/a.py"  # type: ignore[union-attr]
    assert job.model.object == "B"  # type: ignore[union-attr]
