"""set.json: what makes a snapshot set complete, and all that a coordinator needs to go on from it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dbelief.checkpoint.checksummed_json import read_checksummed, write_checksummed
from dbelief.checkpoint.shard_file import verify_shards
from dbelief.errors import CorruptSnapshot, SnapshotError, UserError, WriteFailed

FORMAT = 2


class Skipped(NamedTuple):
    """A set that is not whole, and why."""

    set_id: str
    reason: str


def claim_set(snapshots: Path, set_id: str) -> bool:
    """Make the folder of a set that begins; False where it exists, and belongs to another try.

    Raises
    ------
    WriteFailed
        Where it cannot be made.
    """
    folder = snapshots / set_id
    try:
        snapshots.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise WriteFailed(f"{folder}: cannot be made: {error.strerror or error}") from error
    return True


def write_set(folder: Path, set_id: str, job: str, state: dict[str, Any]) -> None:
    """Complete a set, durably, once every shard's manifest is there.

    Raises
    ------
    WriteFailed
        Where set.json cannot be written; the set is not complete then.
    """
    write_checksummed(folder / "set.json", FORMAT, {"set": set_id, "job": job, **state})


def read_set(folder: Path) -> dict[str, Any]:
    """What the coordinator wrote when this set was complete.

    Raises
    ------
    Torn, SnapshotError
        It is damaged, or of a newer format.
    """
    return read_checksummed(folder / "set.json", FORMAT)


def sets_in(snapshots: Path) -> list[Path]:
    """The folders of sets, complete or not, from old to new: by their count, for samples may fall when one resumes."""
    folders = (path for path in snapshots.glob("*-*") if path.is_dir())
    return sorted((path for path in folders if path.name.rpartition("-")[2].isdecimal()), key=_count)


def complete_sets(snapshots: Path) -> list[Path]:
    """The folders of sets that were completed, from old to new; what is in them is not looked at."""
    return [folder for folder in sets_in(snapshots) if _is_complete(folder)]


def newest_count(snapshots: Path) -> int:
    """The highest count of all sets that were ever begun here; 0 where there is none."""
    return max(map(_count, sets_in(snapshots)), default=0)


def prune_sets(snapshots: Path, keep: int) -> None:
    """Keep the newest complete sets, and what is newer than the oldest of them."""
    folders, complete = sets_in(snapshots), complete_sets(snapshots)
    if len(complete) > keep:
        for folder in folders[: folders.index(complete[-keep])]:
            shutil.rmtree(folder, ignore_errors=True)


def abort_set(snapshots: Path, set_id: str) -> None:
    """Make room: what was written of a set that will not be complete goes. Its folder stays, for its count is given."""
    for path in (snapshots / set_id).glob("*"):
        with suppress(OSError):
            path.unlink()


def quarantine_set(snapshots: Path, set_id: str) -> None:
    """Let a set no longer count as complete; what is left of it stays until its turn to go comes."""
    (snapshots / set_id / "set.json").rename(snapshots / set_id / "set.torn")


def _count(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _is_complete(folder: Path) -> bool:
    return (folder / "set.json").exists()


def complete_until(snapshots: Path, set_id: str) -> list[str]:
    """The complete sets that are not newer than this one, from new to old; at least this one."""
    folders = [folder for folder in reversed(sets_in(snapshots)) if _is_complete(folder)]
    return [folder.name for folder in folders if _count(folder) <= _count(snapshots / set_id)] or [set_id]


def latest_valid_set(snapshots: Path, job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
    """Id and state of the newest set of a run that is whole, and the newer ones that are not.

    Cost: reads all of that set, one segment at a time, and holds it against its checksums.

    Raises
    ------
    Mistake
        Where there is no complete set.
    SnapshotError
        Where none is whole, or the newest whole one belongs to another job, rule or format.
    """
    complete = complete_sets(snapshots)
    if not complete:
        raise UserError(f"{snapshots}: no complete snapshot set to resume from")
    skipped: list[Skipped] = []
    for folder in reversed(complete):
        try:
            return folder.name, _is_valid(folder, job, rule), skipped
        except CorruptSnapshot as error:
            skipped.append(Skipped(folder.name, str(error)))
    raise SnapshotError("; ".join(["no snapshot set is whole", *(reason for _, reason in skipped)]))


def _is_valid(folder: Path, job: str, rule: str) -> dict[str, Any]:
    path, state = folder / "set.json", read_set(folder)
    try:
        of_job, set_id, segments = state["job"], state["set"], int(state["segments"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptSnapshot(f"{path}: is no description of a set: {error!r}") from error
    if of_job != job:
        raise SnapshotError(f"{path}: belongs to job {of_job!r}, not {job!r}")
    if set_id != folder.name:
        raise CorruptSnapshot(f"{path}: belongs to set {set_id}")
    verify_shards(folder, set_id, job, rule, segments)
    return state
