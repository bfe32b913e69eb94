"""The snapshot sets of a run, wherever they are: one interface for the coordinator and the shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from dbelief.checkpoint.set_files import LocalFiles, SetFiles
from dbelief.checkpoint.snapshot_set import (
    Skipped,
    abort_set,
    claim_set,
    complete_sets,
    complete_until,
    latest_valid_set,
    newest_count,
    prune_sets,
    quarantine_set,
    read_set,
    sets_in,
    write_set,
)
from dbelief.url import Url


class SetStorage(Protocol):
    """Snapshot sets of one run, by id. Errors are those of `dbelief.checkpoint.snapshot_set`."""

    @property
    def where(self) -> Path | Url:
        """The folder, or the prefix, that all sets are below; shards get it as text."""
        ...

    @property
    def disk(self) -> Path | None:
        """Folder whose file system they fill; None: no file system of this machine."""
        ...

    def claim(self, set_id: str) -> bool:
        """Begin a set; False where another attempt has its id."""
        ...

    def place(self, set_id: str) -> Path | Url:
        """Where shards write their parts of a set that was begun here, and read those of a complete one."""
        ...

    def commit(self, set_id: str, job: str, state: dict[str, Any]) -> None:
        """Complete a set; `state["parts"]` names its manifests.

        Raises
        ------
        WriteFailed
            It is not complete then.
        """

    def abort(self, set_id: str) -> None:
        """Free the space of a set that was begun here and will not be complete."""

    def read(self, set_id: str) -> dict[str, Any]:
        """Content of a complete set's `set.json`."""
        ...

    def complete(self) -> list[str]:
        """Ids of the complete sets, oldest first."""
        ...

    def started(self) -> list[str]:
        """Ids of all sets, complete or not, oldest first."""
        ...

    def complete_until(self, set_id: str) -> list[str]:
        """The complete sets that are not newer than this one, newest first; at least this one."""
        ...

    def newest_count(self) -> int:
        """The highest count of all sets that were ever started; 0 where there is none."""
        ...

    def latest_valid(self, job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
        """Id and state of the newest valid set, and the newer ones that are corrupt."""
        ...

    def quarantine(self, set_id: str) -> None:
        """Mark a set as not complete."""

    def prune(self, keep: int) -> None:
        """Remove old sets: keep the newest complete ones, and all that are newer than the oldest of them."""

    def files_at(self, place: str) -> SetFiles | None:
        """The files of a set at a place that the coordinator names; None where it is not below `where`."""
        ...

    def files(self, set_id: str) -> SetFiles:
        """The files of a complete set."""
        ...


class LocalSets:
    """Sets in a folder, which coordinator and shards share.

    Parameters
    ----------
    snapshots
        The run's folder `snapshots`.
    """

    def __init__(self, snapshots: Path) -> None:
        self.where = self.disk = snapshots

    def claim(self, set_id: str) -> bool:
        """See `SetStorage`."""
        return claim_set(self.where, set_id)

    def place(self, set_id: str) -> Path:
        """See `SetStorage`."""
        return self.where / set_id

    def commit(self, set_id: str, job: str, state: dict[str, Any]) -> None:
        """See `SetStorage`."""
        write_set(self.where / set_id, set_id, job, state)

    def abort(self, set_id: str) -> None:
        """See `SetStorage`. The folder stays, to reserve its count."""
        abort_set(self.where, set_id)

    def read(self, set_id: str) -> dict[str, Any]:
        """See `SetStorage`."""
        return read_set(self.where / set_id)

    def complete(self) -> list[str]:
        """See `SetStorage`."""
        return [folder.name for folder in complete_sets(self.where)]

    def started(self) -> list[str]:
        """See `SetStorage`."""
        return [folder.name for folder in sets_in(self.where)]

    def complete_until(self, set_id: str) -> list[str]:
        """See `SetStorage`."""
        return complete_until(self.where, set_id)

    def newest_count(self) -> int:
        """See `SetStorage`."""
        return newest_count(self.where)

    def latest_valid(self, job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
        """See `SetStorage`."""
        return latest_valid_set(self.where, job, rule)

    def quarantine(self, set_id: str) -> None:
        """See `SetStorage`. Its other files stay until it is pruned."""
        quarantine_set(self.where, set_id)

    def prune(self, keep: int) -> None:
        """See `SetStorage`."""
        prune_sets(self.where, keep)

    def files_at(self, place: str) -> SetFiles | None:
        """See `SetStorage`. Links are resolved on both sides."""
        folder = Path(place).resolve()
        return LocalFiles(folder) if self.where.resolve() in folder.parents else None

    def files(self, set_id: str) -> SetFiles:
        """See `SetStorage`."""
        return LocalFiles(self.where / set_id)
