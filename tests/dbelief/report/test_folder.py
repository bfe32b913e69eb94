"""Run folders: an earlier run is moved aside, one that is under way is left alone."""

from pathlib import Path

import pytest

from dbelief.errors import Mistake
from dbelief.job import Job, build_job
from dbelief.report.folder import held, prepare_folder


@pytest.fixture
def job(tmp_path: Path) -> Job:
    fields = {
        "name": "test",
        "model": {"layers": [{"dense": 2}], "loss": "softmax_cross_entropy"},
        "data": {"source": "digits"},
        "strategy": {"name": "downpour", "rule": {"name": "sgd", "rate": 0.1}},
        "limits": {"samples": 100},
        "output": str(tmp_path),
    }
    return build_job(fields, tmp_path)


def test_an_earlier_run_is_kept_under_another_name(job: Job, tmp_path: Path) -> None:
    (prepare_folder(job, resume=False) / "mine").write_text("first")
    folder = prepare_folder(job, resume=False)
    assert not (folder / "mine").exists()
    assert (tmp_path / "test.previous" / "mine").read_text() == "first"


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_under_way_is_left_alone(job: Job, tmp_path: Path, resume: bool) -> None:
    folder = prepare_folder(job, resume=False)
    with held(folder), pytest.raises(Mistake, match="a run is under way there"):
        prepare_folder(job, resume)
    assert [path.name for path in tmp_path.iterdir()] == ["test"]
    assert prepare_folder(job, resume) == folder


def test_there_must_be_something_to_resume(job: Job) -> None:
    with pytest.raises(Mistake, match="no run to resume"):
        prepare_folder(job, resume=True)
