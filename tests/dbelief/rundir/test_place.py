"""A place of a run's files by URL: what is in the way is named, and what goes on has what it needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dbelief.errors import Deposed, RuntimeFailure, Unavailable, UserError, WriteFailed
from dbelief.job import Job
from dbelief.process.clock import ManualClock
from dbelief.rundir.folder import ADDRESS, found_at
from dbelief.rundir.place import LocalPlace, StoredPlace, place_of
from dbelief.storage.backends import FolderBackend
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url
from tests.jobs import small_job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return small_job(tmp_path, name="far", output=f"file://{tmp_path}/store")


@pytest.fixture
def place(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StoredPlace:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    found = place_of(job)
    assert isinstance(found, StoredPlace)
    return StoredPlace(job, found.where, ManualClock(autojump=True))


def ignore(reason: str) -> None:
    raise AssertionError(reason)


def begin(place: StoredPlace, run_id: int = 1, end: Callable[[Path], None] = lambda folder: None) -> Path:
    """A run that has written some files, and is over."""
    folder = place.prepare(resume=False)
    (folder / "logs").mkdir()
    with place.writing(folder, run_id, ignore):
        (folder / "job.yaml").write_text("name: far")
        (folder / "events.jsonl").write_text('{"event": "state"}\n')
        end(folder)
    return folder


@pytest.mark.parametrize("away", [lambda path: path.rename(path.with_name("other")), shutil.rmtree])
def test_a_folder_that_is_renamed_or_removed_while_it_is_written(tmp_path: Path, away: Callable[[Path], None]) -> None:
    """The next run of that name is left alone by the one before."""
    job = small_job(tmp_path, name="far", output=f"{tmp_path}/runs")
    place, following = place_of(job), place_of(job)
    folder = place.prepare(resume=False)
    with place.writing(folder, 1, ignore) as writing:
        assert place.moved() == ""
        writing.confirm()
        away(folder)
        assert following.prepare(resume=False) == folder
        with pytest.raises(Deposed, match=f"{folder}: the run folder was renamed or removed while its run was active"):
            writing.confirm()
        assert following.moved() == ""
    following.release()
    place.release()


def test_a_file_system_that_numbers_files_anew_moves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(small_job(tmp_path, name="far", output=f"{tmp_path}/runs"))
    folder = place.prepare(resume=False)
    monkeypatch.setattr("os.path.samestat", lambda one, other: False)
    with place.writing(folder, 1, ignore) as writing:
        writing.confirm()
    place.release()


def test_the_address_of_the_next_run_stays(tmp_path: Path) -> None:
    job = small_job(tmp_path, name="far", output=f"{tmp_path}/runs")
    folder = place_of(job).prepare(resume=False)
    with found_at(folder, "host:1", job):
        (folder / ADDRESS).write_text("host:2")
    assert (folder / ADDRESS).read_text() == "host:2"


def test_an_output_that_is_a_folder_is_as_before(tmp_path: Path) -> None:
    job = small_job(tmp_path, name="far", output=f"{tmp_path}/runs")
    place = place_of(job)
    assert isinstance(place, LocalPlace)
    assert place.where == tmp_path / "runs" / "far"
    folder = place.prepare(resume=False)
    assert folder == place.where
    assert place.sets(folder).where == folder / "snapshots"
    place.discard(folder)
    place.finish(folder)
    assert folder.is_dir()


def test_a_run_of_that_name_is_in_the_way(place: StoredPlace) -> None:
    folder = begin(place)
    with pytest.raises(UserError, match=rf"^{place.where}: a run of this name is there; continue it with --resume"):
        place.prepare(resume=False)
    again = place.prepare(resume=True)
    assert again != folder
    assert (again / "events.jsonl").read_text() == '{"event": "state"}\n'


def test_there_must_be_a_run_to_resume(place: StoredPlace) -> None:
    with pytest.raises(UserError, match=rf"^{place.where}: no run to resume$"):
        place.prepare(resume=True)


def test_a_start_that_failed_is_not_in_the_way(place: StoredPlace) -> None:
    """It held the prefix, and wrote nothing."""
    folder = place.prepare(resume=False)
    with place.writing(folder, 1, ignore):
        pass
    assert place.prepare(resume=False).is_dir()


def test_a_coordinator_of_the_same_run_finds_its_place(place: StoredPlace, tmp_path: Path) -> None:
    folder = begin(place)
    assert place.find(place.shown(folder), folder, 1) == folder
    other = place.find(place.shown(folder), None, 1)
    assert other is not None
    assert (other / "events.jsonl").exists()
    assert place.find(str(tmp_path), None, 1) is None


def test_the_folder_goes_once_all_is_uploaded(place: StoredPlace, tmp_path: Path) -> None:
    folder = begin(place)
    (folder / "logs" / "worker-0.log").write_text("done")
    (folder / "curves.png").write_bytes(b"picture")
    place.finish(folder)
    assert not folder.exists()
    stored = tmp_path / "store" / "far"
    assert (stored / "logs" / "worker-0.log").read_text() == "done"
    assert (stored / "curves.png").read_bytes() == b"picture"
    assert not list((tmp_path / "tmp").iterdir())


def test_a_launcher_whose_run_is_continued_elsewhere_writes_nothing(place: StoredPlace, tmp_path: Path) -> None:
    folder = begin(place)
    other = place.prepare(resume=True)
    with place.writing(other, 2, ignore):
        (folder / "events.jsonl").write_text('{"event": "state"}\n{"event": "late"}\n')
        with pytest.raises(RuntimeFailure, match="another process writes there now; what could not be uploaded is in "):
            place.finish(folder)
    assert folder.exists()
    pieces = sorted((tmp_path / "store" / "far" / "events").iterdir())
    assert [json.loads(path.read_text())["event"] for path in pieces] == ["state"]


def test_a_set_fails_where_the_store_cannot_confirm_its_coordinator(
    place: StoredPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a set that cannot be written: it is not begun again and again."""

    def away(store: ObjectStore, prefix: Url) -> Mapping[Url, int]:
        raise Unavailable(f"{prefix}: cannot connect")

    folder = place.prepare(resume=False)
    with place.writing(folder, 1, ignore) as writing:
        writing.confirm()
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "list", away)
            with pytest.raises(WriteFailed, match=r"far/holders: cannot connect$"):
                writing.confirm()


def test_logs_of_a_run_that_did_not_begin_stay(place: StoredPlace, tmp_path: Path) -> None:
    for logs in ((), ("coordinator.log",)):
        folder = place.prepare(resume=False)
        (folder / "logs").mkdir()
        for name in logs:
            (folder / "logs" / name).write_text("why")
        place.finish(folder)
        assert folder.exists() == bool(logs)
    assert not (tmp_path / "store" / "far").exists() or not list((tmp_path / "store" / "far").iterdir())


def test_memory_is_no_place_of_a_job(tmp_path: Path) -> None:
    job = small_job(tmp_path, name="far", output="memory://x")
    with pytest.raises(UserError, match=r"^output: memory://x/far: is the memory of one process, and a job has sever"):
        place_of(job).prepare(resume=False)


def test_a_folder_is_a_store_too(tmp_path: Path, job: Job) -> None:
    assert isinstance(job.output, str)
    store = ObjectStore(FolderBackend())
    assert store.create(job.output / "a", b"one")
    assert not store.create(job.output / "a", b"two")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a"]
