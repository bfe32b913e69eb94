"""set.json: completes a snapshot set, and holds the coordinator state that is needed to resume from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

from dbelief.checkpoint.checksummed_json import parse_checksummed, read_checksummed, write_checksummed
from dbelief.checkpoint.set_files import COMMIT, LocalFiles, SetFiles
from dbelief.checkpoint.shard_file import verify_shards
from dbelief.errors import CorruptSnapshot, SnapshotError, UserError, WriteFailed
from dbelief.process.atomic_file import disk

FORMAT = 2


class Skipped(NamedTuple):
    """A corrupt set, and the reason."""

    set_id: str
    reason: str


def claim_set(snapshots: Path, set_id: str) -> bool:
    """Make the folder of a new set; False where it exists, and belongs to another attempt.

    Raises
    ------
    WriteFailed
        It cannot be made.
    """
    folder = snapshots / set_id
    try:
        snapshots.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        disk.sync_folder(snapshots)  # the set's files are durable only in a folder that is
    except FileExistsError:
        return False
    except OSError as error:
        raise WriteFailed(f"{folder}: cannot be made: {error.strerror or error}") from error
    return True


def write_set(folder: Path, set_id: str, job: str, state: dict[str, Any]) -> None:
    """Complete a set, durably, once every shard's manifest is written.

    Raises
    ------
    WriteFailed
        set.json cannot be written; the set is not complete then.
    """
    write_checksummed(folder / COMMIT, FORMAT, {"set": set_id, "job": job, **state})


def read_set(folder: Path) -> dict[str, Any]:
    """Content of a set's set.json, which the coordinator wrote.

    Raises
    ------
    CorruptSnapshot, SnapshotError
        It is damaged, or of another format.
    """
    return read_checksummed(folder / COMMIT, FORMAT)


def sets_in(snapshots: Path) -> list[Path]:
    """Folders of sets, complete or not, oldest first: by their count, for samples may decrease when a run resumes."""
    folders = (path for path in snapshots.glob("*-*") if path.is_dir())
    return sorted((path for path in folders if path.name.rpartition("-")[2].isdecimal()), key=_count)


def complete_sets(snapshots: Path) -> list[Path]:
    """Folders of the complete sets, oldest first; their files are not checked."""
    return [folder for folder in sets_in(snapshots) if (folder / COMMIT).exists()]


def _earlier(run: Path) -> str:
    """Hint at the newest run folder that was renamed NAME.1, NAME.2, ... and has a complete set; "" without one."""
    renamed = [path for path in run.parent.glob(f"{escape(run.name)}.*") if path.suffix[1:].isdecimal()]
    found = [path for path in renamed if complete_sets(path / "snapshots")]
    return f"; the earlier run in {max(found, key=lambda path: int(path.suffix[1:]))} has one" if found else ""


def newest_count(snapshots: Path) -> int:
    """The highest count of all sets that were ever started here; 0 where there is none."""
    return max(map(_count, sets_in(snapshots)), default=0)


def prune_sets(snapshots: Path, keep: int) -> None:
    """Remove old sets: keep the newest complete ones, and all that are newer than the oldest of them."""
    folders, complete = sets_in(snapshots), complete_sets(snapshots)
    if len(complete) > keep:
        for folder in folders[: folders.index(complete[-keep])]:
            shutil.rmtree(folder, ignore_errors=True)


def abort_set(snapshots: Path, set_id: str) -> None:
    """Free space: remove the files of a set that will not be complete. Its folder stays, to reserve its count."""
    for path in (snapshots / set_id).glob("*"):
        with suppress(OSError):
            path.unlink()


def quarantine_set(snapshots: Path, set_id: str) -> None:
    """Mark a set as not complete; its other files stay until it is pruned."""
    (snapshots / set_id / COMMIT).rename(snapshots / set_id / "set.torn")


def _count(folder: Path) -> int:
    return count_of(folder.name)


def count_of(set_id: str) -> int:
    """The count of a set: how many were begun before it, and it."""
    return int(set_id.rpartition("-")[2])


def complete_until(snapshots: Path, set_id: str) -> list[str]:
    """The complete sets that are not newer than this one, newest first; at least this one."""
    folders = reversed(complete_sets(snapshots))
    return [folder.name for folder in folders if _count(folder) <= _count(snapshots / set_id)] or [set_id]


def latest_valid_set(snapshots: Path, job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
    """Id and state of the newest valid set of a run, and the newer ones that are corrupt.

    Cost: reads all of that set, one segment at a time, and verifies its checksums.

    Raises
    ------
    UserError
        There is no complete set.
    SnapshotError
        None is valid, or the newest one that is not corrupt belongs to another job, rule or format.
    """
    complete = complete_sets(snapshots)
    if not complete:
        raise UserError(f"{snapshots}: no complete snapshot set to resume from{_earlier(snapshots.parent)}")
    return first_valid(((folder.name, LocalFiles(folder)) for folder in reversed(complete)), job, rule)


def first_valid(sets: Iterable[tuple[str, SetFiles]], job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
    """Id and state of the first valid one of these complete sets, and those before it; raises as `latest_valid_set`."""
    skipped: list[Skipped] = []
    for set_id, files in sets:
        try:
            return set_id, _is_valid(set_id, files, job, rule), skipped
        except CorruptSnapshot as error:
            skipped.append(Skipped(set_id, str(error)))
    raise SnapshotError("; ".join(["no snapshot set is whole", *(reason for _, reason in skipped)]))


def _is_valid(name: str, files: SetFiles, job: str, rule: str) -> dict[str, Any]:
    path, state = files.at(COMMIT), parse_checksummed(files.at(COMMIT), lambda: files.read(COMMIT), FORMAT)
    try:
        of_job, set_id, segments = state["job"], state["set"], int(state["segments"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptSnapshot(f"{path}: is no description of a set: {error!r}") from error
    if of_job != job:
        raise SnapshotError(f"{path}: belongs to job {of_job!r}, not {job!r}")
    if set_id != name:
        raise CorruptSnapshot(f"{path}: belongs to set {set_id}")
    verify_shards(files, set_id, job, rule, segments)
    return state
