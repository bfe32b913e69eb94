from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.core.snapshot_schedule import SnapshotSchedule
from dbelief.checkpoint.checksummed_json import checksum
from dbelief.checkpoint.set_storage import LocalSets, latest_valid, newest_count
from dbelief.core.layout import SegmentSpan
from dbelief.errors import CorruptSnapshot, SnapshotError, UserError
from tests.dbelief.checkpoint.test_shard_file import write

SPANS = (SegmentSpan(0, 0, 7), SegmentSpan(1, 7, 7))


def begun(snapshots: Path, set_id: str, job: str = "digits") -> Path:
    """All shards have written their parts."""
    folder = snapshots / set_id
    folder.mkdir()
    for number, span in enumerate(SPANS):
        write(folder, number, [span], set=set_id, job=job)
    return folder


def written(snapshots: Path, set_id: str, job: str = "digits", state: int = 1) -> Path:
    folder = begun(snapshots, set_id, job)
    LocalSets(snapshots).commit(set_id, job, {"state": state, "segments": len(SPANS)})
    return folder


def newest(snapshots: Path) -> str:
    return latest_valid(LocalSets(snapshots), "digits", "momentum")[0]


def test_round_trip(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001", state=7)
    set_id, state, skipped = latest_valid(LocalSets(tmp_path), "digits", "momentum")
    assert set_id == "000000000100-0001"
    assert state["state"] == 7
    assert skipped == []


def test_the_newest_complete_one_is_taken(tmp_path: Path) -> None:
    turns = SnapshotSchedule(None)
    ids = [turns.begin(samples).set_id for samples in (0, 0, 900, 10_000, 10_000)]
    assert ids == sorted(set(ids))
    for set_id in ids[:-1]:
        written(tmp_path, set_id)
    begun(tmp_path, ids[-1])  # set.json was not there yet
    assert newest(tmp_path) == ids[-2]
    assert newest_count(LocalSets(tmp_path)) == 5


@pytest.mark.parametrize("newer", ["000000000950-0004", "000000000950-10000", "1000000000000-0004"])
def test_a_set_is_newer_by_its_count_alone(newer: str, tmp_path: Path) -> None:
    for set_id in (newer, "000000001000-0003"):
        written(tmp_path, set_id)
    (tmp_path / "notes").mkdir()
    (tmp_path / "000000000000-0009").touch()
    assert newest(tmp_path) == newer
    assert LocalSets(tmp_path).started() == ["000000001000-0003", newer]


def test_a_run_folder_without_a_set_names_the_earlier_one_that_has_one(tmp_path: Path) -> None:
    for name in ("run.2", "run.10", "run.old", "run.12"):
        (tmp_path / name / "snapshots").mkdir(parents=True)
    for name in ("run.2", "run.10", "run.old"):
        written(tmp_path / name / "snapshots", "000000000100-0001")
    with pytest.raises(UserError, match=r"to resume from; the earlier run in \S+/run\.10 has one$"):
        newest(tmp_path / "run" / "snapshots")


# -- damaged sets --------------------------------------------------------------------------------------------


def state_of(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    """Change set.json as a program would have written it."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "set.json").read_text())
        del content["crc32"]
        change(content)
        (folder / "set.json").write_text(json.dumps({**content, "crc32": checksum(content)}))

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty set.json": (lambda f: (f / "set.json").write_text(""), r"set\.json: cannot be read"),
    "a torn set.json": (lambda f: (f / "set.json").write_text('{"format": 2, '), r"set\.json: cannot be read"),
    "a changed set.json": (
        lambda f: (f / "set.json").write_text((f / "set.json").read_text().replace('"state": 2', '"state": 3')),
        r"set\.json: does not match its checksum",
    ),
    "a set.json without segments": (state_of(lambda c: c.pop("segments")), r"set\.json: is no description of a set"),
    "the set.json of another set": (state_of(lambda c: c.update(set="1-1")), r"set\.json: belongs to set 1-1"),
    "a missing manifest": (lambda f: (f / "shard-1.json").unlink(), r"lacks segment 1 \(1 missing\)"),
    "a missing data file": (lambda f: (f / "shard-1.safetensors").unlink(), r"shard-1\.safetensors: cannot be read"),
    "a torn data file": (lambda f: (f / "shard-1.safetensors").write_bytes(b"\0"), r"shard-1\.safetensors: is 1 bytes"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_set_that_is_not_whole_is_skipped(damage: str, tmp_path: Path) -> None:
    do, reason = DAMAGE[damage]
    written(tmp_path, "000000000100-0001", state=1)
    do(written(tmp_path, "000000000200-0002", state=2))
    set_id, state, skipped = latest_valid(LocalSets(tmp_path), "digits", "momentum")
    assert (set_id, state["state"]) == ("000000000100-0001", 1)
    assert [one.set_id for one in skipped] == ["000000000200-0002"]
    with pytest.raises(CorruptSnapshot, match=rf"000000000200-0002.*{reason}"):
        raise CorruptSnapshot(skipped[0].reason)


@pytest.mark.parametrize("damage", DAMAGE)
def test_all_reasons_are_listed_without_a_valid_set(damage: str, tmp_path: Path) -> None:
    do, reason = DAMAGE[damage]
    for set_id in ("000000000100-0001", "000000000200-0002"):
        do(written(tmp_path, set_id, state=2))
    with pytest.raises(SnapshotError, match=rf"^no snapshot set is whole; .*0002.*{reason}.*; .*0001.*{reason}"):
        newest(tmp_path)


def test_quarantined_set_is_skipped(tmp_path: Path) -> None:
    for set_id in ("000000000100-0001", "000000000200-0002"):
        written(tmp_path, set_id)
    LocalSets(tmp_path).quarantine("000000000200-0002")
    assert latest_valid(LocalSets(tmp_path), "digits", "momentum")[::2] == ("000000000100-0001", [])
    assert newest_count(LocalSets(tmp_path)) == 2


def test_another_jobs_set_is_refused_and_not_skipped(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001")
    written(tmp_path, "000000000100-0002", job="mnist")
    with pytest.raises(SnapshotError, match="belongs to job 'mnist', not 'digits'"):
        newest(tmp_path)


def test_another_rules_set_is_refused_and_not_skipped(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001")
    with pytest.raises(SnapshotError, match=r"shard-0\.json: holds the state of rule momentum; the job's is adam"):
        latest_valid(LocalSets(tmp_path), "digits", "adam")


def test_a_newer_format_is_refused_and_not_skipped(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001")
    state_of(lambda content: content.update(format=3))(written(tmp_path, "000000000100-0002"))
    with pytest.raises(SnapshotError, match="format 3 is newer than 2"):
        newest(tmp_path)


# -- how many are kept ---------------------------------------------------------------------------------------


def test_the_newest_complete_sets_are_kept(tmp_path: Path) -> None:
    ids = [f"{100 * count:012d}-{count:04d}" for count in range(1, 7)]
    for set_id in ids:
        written(tmp_path, set_id)
    (tmp_path / "notes").mkdir()
    for incomplete in (1, 3):  # the disk was full
        (tmp_path / ids[incomplete] / "set.json").unlink()
    LocalSets(tmp_path).prune(keep=3)
    assert LocalSets(tmp_path).started() == ids[2:]
    LocalSets(tmp_path).prune(keep=2)
    assert LocalSets(tmp_path).started() == ids[4:]
    LocalSets(tmp_path).prune(keep=5)
    assert LocalSets(tmp_path).started() == ids[4:]
    assert (tmp_path / "notes").exists()


def test_pruning_keeps_the_only_complete_set(tmp_path: Path) -> None:
    written(tmp_path, "000000000100-0001")
    for count in (2, 3, 4):
        shutil.copytree(tmp_path / "000000000100-0001", tmp_path / f"000000000100-{count:04d}")
        (tmp_path / f"000000000100-{count:04d}" / "set.json").unlink()
    LocalSets(tmp_path).prune(keep=2)
    assert newest(tmp_path) == "000000000100-0001"


# -- when one is due -----------------------------------------------------------------------------------------


def test_set_is_due_by_age_of_the_last_complete_one() -> None:
    turns = SnapshotSchedule(every_s=30.0)
    turns.restart_timer(100.0)
    assert not turns.due(129.9)
    assert turns.due(130.0)
    turns.begin(0)
    assert not turns.due(500.0)
    turns.complete(510.0)
    assert not turns.due(539.9)
    assert turns.due(540.0)


def test_a_set_is_due_after_so_many_iterations_too() -> None:
    turns = SnapshotSchedule(every_s=None, every_iterations=5)
    turns.restart_timer(0.0, 3)
    assert not turns.due(1e9, 7)
    assert turns.due(0.0, 8)
    turns.begin(0)
    assert not turns.due(0.0, 20)
    turns.complete(0.0, 9)
    assert not turns.due(0.0, 13)
    turns.restart_timer(0.0, 7)  # back to a set
    assert turns.due(0.0, 12)


def test_without_a_time_none_is_due() -> None:
    assert not SnapshotSchedule(every_s=None).due(1e9)
