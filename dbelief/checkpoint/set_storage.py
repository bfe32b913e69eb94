"""The snapshot sets of a run, wherever they are: one interface for the coordinator and the shards."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any, Protocol

from dbelief.checkpoint.checksummed_json import read_checksummed, write_checksummed
from dbelief.checkpoint.row_changes import is_path
from dbelief.checkpoint.set_files import COMMIT, TORN, LocalFiles, SetFiles
from dbelief.checkpoint.snapshot_set import FORMAT, Skipped, count_of, first_valid
from dbelief.errors import CorruptSnapshot, SnapshotError, UserError, WriteFailed
from dbelief.process.atomic_file import disk
from dbelief.url import Url

log = logging.getLogger(__name__)


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
        """Begin a set; False where another attempt has its id.

        Raises
        ------
        WriteFailed
            It cannot be begun.
        """
        ...

    def place(self, set_id: str) -> Path | Url:
        """Where shards write their parts of a set that was begun here, and read those of a complete one."""
        ...

    def commit(self, set_id: str, job: str, state: dict[str, Any]) -> None:
        """Complete a set; `state["parts"]` names its manifests, `state["needs"]` files of earlier sets that it needs.

        Raises
        ------
        WriteFailed
            It is not complete then.
        """

    def abort(self, set_id: str) -> None:
        """Free the space of a set that was begun here and will not be complete."""

    def read(self, set_id: str) -> dict[str, Any]:
        """Content of a complete set's `set.json`.

        Raises
        ------
        CorruptSnapshot, SnapshotError
            It is damaged, or of another format.
        """
        ...

    def complete(self) -> list[str]:
        """Ids of the complete sets, oldest first; their files are not checked."""
        ...

    def started(self) -> list[str]:
        """Ids of all sets, complete or not, oldest first.

        By their count, for samples may decrease when a run resumes.
        """
        ...

    def quarantine(self, set_id: str) -> None:
        """Mark a set as not complete."""

    def prune(self, keep: int) -> None:
        """Remove old sets: keep the newest complete ones, and all that are newer than the oldest of them.

        Files of an older set that a kept one needs stay, and the older set is complete no more.
        """

    def files_at(self, place: str) -> SetFiles | None:
        """The files of a set at a place that the coordinator names; None where it is not below `where`."""
        ...

    def files(self, set_id: str) -> SetFiles:
        """The files of a complete set."""
        ...


def complete_until(sets: SetStorage, set_id: str) -> list[str]:
    """The complete sets that are not newer than this one, newest first; at least this one."""
    return [one for one in reversed(sets.complete()) if count_of(one) <= count_of(set_id)] or [set_id]


def latest_valid(sets: SetStorage, job: str, rule: str) -> tuple[str, dict[str, Any], list[Skipped]]:
    """Id and state of the newest valid set, and the newer ones that are corrupt; as `first_valid`.

    Raises
    ------
    UserError
        There is no complete set.
    """
    complete = sets.complete()
    if not complete:
        hint = _earlier(sets.where.parent) if isinstance(sets.where, Path) else ""
        raise UserError(f"{sets.where}: no complete snapshot set to resume from{hint}")
    return first_valid(((set_id, sets.files(set_id)) for set_id in reversed(complete)), job, rule)


def needed_by(sets: SetStorage, set_ids: Iterable[str]) -> set[str]:
    """Files of earlier sets, below the place of all sets, that these complete sets need.

    Raises
    ------
    SnapshotError
        As `SetStorage.read` does; or what a set names is no such file.
    """
    needed: set[str] = set()
    for set_id in set_ids:
        names = sets.read(set_id).get("needs", ())
        if odd := [name for name in names if not is_path(name)]:
            raise CorruptSnapshot(f"{sets.where / set_id / COMMIT}: needs {odd[0]!r}, which is no file of a set")
        needed.update(names)
    return needed


def newest_count(sets: SetStorage) -> int:
    """The highest count of all sets that left a trace where they were started; 0 where there is none."""
    return max(map(count_of, sets.started()), default=0)


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
        folder = self.where / set_id
        try:
            self.where.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            disk.sync_folder(self.where)  # the set's files are durable only in a folder that is
        except FileExistsError:
            return False
        except OSError as error:
            raise WriteFailed(f"{folder}: cannot be made: {error.strerror or error}") from error
        return True

    def place(self, set_id: str) -> Path:
        """See `SetStorage`."""
        return self.where / set_id

    def commit(self, set_id: str, job: str, state: dict[str, Any]) -> None:
        """See `SetStorage`. It is durable then."""
        write_checksummed(self.where / set_id / COMMIT, FORMAT, {"set": set_id, "job": job, **state})

    def abort(self, set_id: str) -> None:
        """See `SetStorage`. The folder stays, to reserve its count."""
        for path in (self.where / set_id).glob("*"):
            with suppress(OSError):
                path.unlink()

    def read(self, set_id: str) -> dict[str, Any]:
        """See `SetStorage`."""
        return read_checksummed(self.where / set_id / COMMIT, FORMAT)

    def complete(self) -> list[str]:
        """See `SetStorage`."""
        return [set_id for set_id in self.started() if (self.where / set_id / COMMIT).exists()]

    def started(self) -> list[str]:
        """See `SetStorage`."""
        names = [path.name for path in self.where.glob("*-*") if path.is_dir()]
        return sorted((name for name in names if name.rpartition("-")[2].isdecimal()), key=count_of)

    def quarantine(self, set_id: str) -> None:
        """See `SetStorage`. Its other files stay until it is pruned."""
        (self.where / set_id / COMMIT).rename(self.where / set_id / TORN)

    def prune(self, keep: int) -> None:
        """See `SetStorage`."""
        started, complete = self.started(), self.complete()
        if len(complete) <= keep:
            return
        try:
            needed = needed_by(self, complete[-keep:])
        except SnapshotError as error:
            log.warning(f"old snapshot sets are not removed, for what newer ones need of them is not known: {error}")
            return
        for set_id in started[: started.index(complete[-keep])]:
            self._remove(self.where / set_id, {name for name in needed if name.startswith(f"{set_id}/")})

    def _remove(self, folder: Path, needed: Collection[str]) -> None:
        """Remove a set but for these files; its `set.json` first."""
        if not needed:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for path in sorted(folder.glob("*"), key=lambda path: path.name != COMMIT):
            if f"{folder.name}/{path.name}" not in needed:
                with suppress(OSError):
                    path.unlink()

    def files_at(self, place: str) -> SetFiles | None:
        """See `SetStorage`. Links are resolved on both sides."""
        folder = Path(place).resolve()
        return LocalFiles(folder) if self.where.resolve() in folder.parents else None

    def files(self, set_id: str) -> SetFiles:
        """See `SetStorage`."""
        return LocalFiles(self.where / set_id)


def _earlier(run: Path) -> str:
    """Hint at the newest run folder that was renamed NAME.1, NAME.2, ... and has a complete set; "" without one."""
    renamed = [path for path in run.parent.glob(f"{escape(run.name)}.*") if path.suffix[1:].isdecimal()]
    found = [path for path in renamed if LocalSets(path / "snapshots").complete()]
    return f"; the earlier run in {max(found, key=lambda path: int(path.suffix[1:]))} has one" if found else ""
