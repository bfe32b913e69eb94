from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.sets import newest_set, write_set
from coordinator.snapshots import Snapshots
from dbelief.errors import Mistake, SnapshotError


def written(snapshots: Path, set_id: str, job: str = "digits", state: int = 1) -> Path:
    folder = snapshots / set_id
    folder.mkdir()
    write_set(folder, set_id, job, {"state": state})
    return folder / "set.json"


def test_what_is_written_is_found(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001", state=7)
    set_id, state = newest_set(tmp_path, "digits")
    assert set_id == "000000000100-0001"
    assert state["state"] == 7
    assert [path.name for path in (tmp_path / set_id).iterdir()] == ["set.json"]


def test_the_newest_complete_one_is_taken(tmp_path: Path) -> None:
    turns = Snapshots(None)
    ids = [turns.begin(samples).set_id for samples in (0, 0, 900, 10_000, 10_000)]
    assert ids == sorted(set(ids))
    for set_id in ids[:-1]:
        written(tmp_path, set_id)
    (tmp_path / ids[-1]).mkdir()  # its shards were still writing
    assert newest_set(tmp_path, "digits")[0] == ids[-2]


def test_a_later_set_may_hold_fewer_samples(tmp_path: Path) -> None:
    for set_id in ("000000000950-0004", "000000001000-0003"):
        written(tmp_path, set_id)
    assert newest_set(tmp_path, "digits")[0] == "000000000950-0004"


def test_no_set_is_a_mistake_of_the_one_who_resumes(tmp_path: Path) -> None:
    (tmp_path / "000000000100-0001").mkdir()
    with pytest.raises(Mistake, match="no complete snapshot set to resume from"):
        newest_set(tmp_path, "digits")


def test_another_jobs_set_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001", job="mnist")
    with pytest.raises(SnapshotError, match="belongs to job 'mnist', not 'digits'"):
        newest_set(tmp_path, "digits")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"format": 1}', '{"format": "x", "job": "digits"}'])
def test_a_torn_or_foreign_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "000000000100-0001")
    path.write_text(text)
    with pytest.raises(SnapshotError, match=r"set\.json: cannot be read"):
        newest_set(tmp_path, "digits")


def test_a_newer_format_is_refused_as_such(tmp_path: Path) -> None:
    path = written(tmp_path, "000000000100-0001")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(SnapshotError, match="format 2 is newer than 1"):
        newest_set(tmp_path, "digits")


def test_a_set_is_due_when_the_last_one_is_old_enough_and_complete() -> None:
    turns = Snapshots(every_s=30.0)
    turns.rest(100.0)
    assert not turns.due(129.9)
    assert turns.due(130.0)
    turns.begin(0)
    assert not turns.due(500.0)
    turns.complete(510.0)
    assert not turns.due(539.9)
    assert turns.due(540.0)


def test_without_a_time_none_is_due() -> None:
    assert not Snapshots(every_s=None).due(1e9)
