"""Run folders: an earlier run is moved aside, one that is under way is left alone."""

from pathlib import Path

import numpy as np
import pytest

from dbelief.errors import Mistake
from dbelief.job import Job, build_job
from dbelief.layout import Box, Layout
from dbelief.report.folder import check_resumed, check_start, held, prepare_folder
from dbelief.sets import write_set


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


def test_a_run_goes_on_with_the_layout_that_it_had(job: Job, tmp_path: Path) -> None:
    over_ranks = Layout((Box("w", (4,), 0, (0,), (2,)), Box("w", (4,), 1, (2,), (4,))))
    whole = Layout.of({"w": np.zeros(4, np.float32)})
    check_resumed(job, whole)  # there is no set: it is for the coordinator to say so
    snapshots = prepare_folder(job, resume=False) / "snapshots"
    for number, layout in ((1, whole), (2, over_ranks)):
        (snapshots / f"100-{number}").mkdir()
        write_set(snapshots / f"100-{number}", f"100-{number}", "test", {"layout": layout.digest()})
    (snapshots / "100-3").mkdir()  # begun, and not complete
    check_resumed(job, over_ranks)
    with pytest.raises(Mistake, match="another layout, for the model or the grid was another"):
        check_resumed(job, whole)


@pytest.mark.parametrize("start", ["test", "test.previous", "other/../test"])
def test_a_run_does_not_start_from_what_it_moves_aside(job: Job, tmp_path: Path, start: str) -> None:
    (prepare_folder(job, resume=False) / "mine").write_text("first")
    again = job.model_copy(update={"start_from": str(tmp_path / start)})
    for refuses in (check_start, lambda job: prepare_folder(job, resume=False)):
        with pytest.raises(
            Mistake, match=r"^start_from: .* is moved aside or deleted where a new run named test begins"
        ):
            refuses(again)
    assert (tmp_path / "test" / "mine").read_text() == "first"
    assert prepare_folder(again, resume=True) == tmp_path / "test"


def test_a_run_starts_from_one_of_another_name(job: Job, tmp_path: Path) -> None:
    check_start(job)
    check_start(job.model_copy(update={"start_from": str(tmp_path / "test-2")}))
