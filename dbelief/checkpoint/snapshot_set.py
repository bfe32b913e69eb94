"""set.json: completes a snapshot set, and holds the coordinator state that is needed to resume from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dbelief.checkpoint.checksummed_json import parse_checksummed
from dbelief.checkpoint.set_files import COMMIT, SetFiles
from dbelief.checkpoint.shard_file import verify_shards
from dbelief.errors import CorruptSnapshot, SnapshotError

FORMAT = 2


class Skipped(NamedTuple):
    """A corrupt set, and the reason."""

    set_id: str
    reason: str


def count_of(set_id: str) -> int:
    """The count of a set: how many were begun before it, and it."""
    return int(set_id.rpartition("-")[2])


def first_valid(sets: Iterable[tuple[str, SetFiles]], job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
    """Id and state of the first valid one of these complete sets, and those before it, which are corrupt.

    Cost: reads all of that set, one segment at a time, and verifies its checksums.

    Raises
    ------
    SnapshotError
        None is valid, or the first one that is not corrupt belongs to another job, rule or format.
    """
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
