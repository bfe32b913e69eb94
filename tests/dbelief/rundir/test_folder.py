"""Run folders: an earlier run is moved aside, one that is under way is left alone."""

from pathlib import Path

import numpy as np
import pytest

from dbelief.checkpoint.set_storage import LocalSets
from dbelief.core.layout import Box, Layout
from dbelief.errors import UserError
from dbelief.job import Job
from dbelief.rundir.claim import CLAIM, claimed
from dbelief.rundir.folder import check_start, claim_earlier, claim_new, folder_of
from dbelief.rundir.resumed import check_resumed
from tests.jobs import small_job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return small_job(tmp_path, name="test", output=str(tmp_path))


def begun(job: Job, resume: bool = False) -> Path:
    """The folder of a run that has begun, and is over."""
    claim = claim_earlier(folder_of(job), "a") if resume else claim_new(job, "a")
    claim.release()
    return claim.folder


def test_every_earlier_run_is_kept_under_a_name_of_its_own(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.previous").mkdir()
    (tmp_path / "test.7th").mkdir()
    (tmp_path / "test.9").write_text("somebody's file")
    for run in ("first", "second", "third"):
        folder = begun(job)
        assert folder == tmp_path / "test"
        assert not (folder / "mine").exists()
        (folder / "mine").write_text(run)
    assert (tmp_path / "test.10" / "mine").read_text() == "first"
    assert (tmp_path / "test.11" / "mine").read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("test", "test.10", "test.11", "test.7th", "test.9", "test.previous"),
    ]
    told = capsys.readouterr().err.splitlines()
    assert [line.partition("the earlier")[2] for line in told] == [
        f" run of this name is kept: {tmp_path}/test is now {tmp_path}/test.{number}" for number in (10, 11)
    ]


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_under_way_is_left_alone(job: Job, tmp_path: Path, resume: bool) -> None:
    folder = begun(job)
    with claimed(folder), pytest.raises(UserError, match="a run is in progress there"):
        begun(job, resume)
    assert [path.name for path in tmp_path.iterdir()] == ["test"]
    assert begun(job, resume) == folder


def test_a_folder_without_files_is_no_earlier_run(job: Job, tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    assert sorted(path.name for path in begun(job).iterdir()) == [CLAIM, "snapshots"]
    assert [path.name for path in tmp_path.iterdir()] == ["test"]


def test_there_must_be_something_to_resume(job: Job) -> None:
    with pytest.raises(UserError, match="no run to resume"):
        begun(job, resume=True)


def test_resume_requires_the_same_layout(job: Job, tmp_path: Path) -> None:
    over_ranks = Layout((Box("w", (4,), 0, (0,), (2,)), Box("w", (4,), 1, (2,), (4,))))
    whole = Layout.of({"w": np.zeros(4, np.float32)})
    check_resumed(job, whole)  # there is no set: it is for the coordinator to say so
    snapshots = begun(job) / "snapshots"
    for number, layout in ((1, whole), (2, over_ranks)):
        (snapshots / f"100-{number}").mkdir()
        LocalSets(snapshots).commit(f"100-{number}", "test", {"layout": layout.digest()})
    (snapshots / "100-3").mkdir()  # begun, and not complete
    check_resumed(job, over_ranks)
    with pytest.raises(UserError, match="another layout, for the model or the grid was another"):
        check_resumed(job, whole)


@pytest.mark.parametrize("start", ["test", "other/../test"])
def test_run_does_not_start_from_its_own_old_folder(job: Job, tmp_path: Path, start: str) -> None:
    (begun(job) / "mine").write_text("first")
    again = job.model_copy(update={"start_from": str(tmp_path / start)})
    for refuses in (check_start, begun):
        with pytest.raises(UserError, match=r"^start_from: .* is moved aside where a new run named test begins"):
            refuses(again)
    assert (tmp_path / "test" / "mine").read_text() == "first"
    assert begun(again, resume=True) == tmp_path / "test"


def test_a_run_starts_from_one_of_another_name(job: Job, tmp_path: Path) -> None:
    check_start(job)
    check_start(job.model_copy(update={"start_from": str(tmp_path / "test-2")}))
    check_start(job.model_copy(update={"start_from": str(tmp_path / "test.1")}))
