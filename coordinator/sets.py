"""set.json: what makes a snapshot set complete, and all that a coordinator needs to go on from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dbelief.errors import Mistake, SnapshotError

FORMAT = 1


def write_set(folder: Path, set_id: str, job: str, state: dict[str, Any]) -> None:
    """Complete a set, durably, once every shard's manifest is there."""
    temporary = folder / "set.writing"
    with open(temporary, "w") as file:
        json.dump({"format": FORMAT, "set": set_id, "job": job, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / "set.json")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # the name is in the folder, which has to reach the disk too
    finally:
        os.close(descriptor)


def by_age(folder: Path) -> tuple[str, str]:
    """Sorts the folders of sets from old to new: by their count, for a resumed job may begin with fewer samples."""
    samples, _, count = folder.name.partition("-")
    return count, samples


def newest_set(snapshots: Path, job: str) -> tuple[str, dict[str, Any]]:
    """Id and state of the newest complete set of a run.

    Raises
    ------
    Mistake
        Where there is none.
    SnapshotError
        Where it cannot be read, or belongs to another job or a newer format.
    """
    complete = sorted(snapshots.glob("*/set.json"), key=lambda path: by_age(path.parent))
    if not complete:
        raise Mistake(f"{snapshots}: no complete snapshot set to resume from")
    path = complete[-1]
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        if state["format"] > FORMAT:
            raise SnapshotError(f"{path}: format {state['format']} is newer than {FORMAT}, which this version reads")
        if state["job"] != job:
            raise SnapshotError(f"{path}: belongs to job {state['job']!r}, not {job!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path}: cannot be read: {error!r}") from error
    return path.parent.name, state
