"""Where the files of a job's run are: in a folder, or in a store of objects."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from dbelief.checkpoint.object_sets import ObjectSets
from dbelief.checkpoint.set_storage import LocalSets, SetStorage
from dbelief.errors import Deposed, RuntimeFailure, StorageError, Unavailable, UserError, WriteFailed
from dbelief.job import Job
from dbelief.process.clock import Clock, SystemClock
from dbelief.process.temporary_folder import RUN, keep_folder, make_folder
from dbelief.rundir.claim import Claim, process_name
from dbelief.rundir.folder import claim_earlier, claim_new, folder_of
from dbelief.rundir.stored.copies import fetch_for_resume
from dbelief.rundir.stored.hold import PREFIX, Hold, highest
from dbelief.rundir.stored.publisher import Publisher
from dbelief.storage.object_store import connect
from dbelief.storage.probe import probe
from dbelief.url import Url

log = logging.getLogger(__name__)

_HOLDER = ".holder"
"""File in a working folder with the number of its coordinator's hold."""


class Writing(Protocol):
    """The right of one coordinator to write a run's files."""

    def confirm(self) -> None:
        """Check that no other one has it by now.

        Raises
        ------
        Deposed
            Another one has it.
        WriteFailed
            The store does not answer, so that nothing can be completed there.
        """

    def finish(self) -> None:
        """Upload all files where they are to be uploaded; raises RuntimeFailure where that fails."""


class RunPlace(Protocol):
    """Place of the files of one job's run."""

    @property
    def where(self) -> Path | Url:
        """Where the run's files are in the end."""
        ...

    def shown(self, folder: Path) -> str:
        """What messages, and the registry, name for a run whose coordinator works in this folder."""
        ...

    def sets(self, folder: Path | None = None) -> SetStorage:
        """The run's snapshot sets; `folder`: the run folder where it is not the job's."""
        ...

    def prepare(self, resume: bool, folder: Path | None = None) -> Path:
        """Make and claim the folder that a process works in, for a new run or one that is resumed.

        It is claimed until `release`, against other starts.

        Parameters
        ----------
        folder
            A folder to use; the process that has started this one may have claimed it. None: the run's own.

        Raises
        ------
        UserError
            There is nothing to resume, a run is in the way, or the place cannot be used.
        """
        ...

    def find(self, known: str, folder: Path | None, run_id: int) -> Path | None:
        """The folder in which this coordinator continues an unfinished run; None where it is not to be had here.

        It is claimed as by `prepare`; a coordinator of the same run may have it too.

        Parameters
        ----------
        known
            What the registry names: see `shown`.
        folder
            The folder that this process is to use; None: any.
        run_id
            Of the unfinished run.

        Raises
        ------
        UserError
            Another run is in progress there, or has taken its place.
        """
        ...

    def moved(self) -> str:
        """Why the folder that this process has claimed is not the run's any more; "" where it is; cheap."""
        ...

    def release(self) -> None:
        """Free the folder that this process has claimed, if any."""

    def writing(self, folder: Path, run_id: int, lost: Callable[[str], None]) -> AbstractContextManager[Writing]:
        """Hold the place within a `with` block, against other runs of that name.

        Parameters
        ----------
        run_id
            Of the run: a coordinator that goes on with the same run need not wait for the one before.
        lost
            Called with the reason where another process has taken the place.
        """
        ...

    def finish(self, folder: Path, keep: bool = False) -> None:
        """Upload what is missing of a run whose processes have ended, and remove its working folder, unless `keep`.

        Raises
        ------
        RuntimeFailure
            It cannot be uploaded; the folder stays.
        """

    def discard(self, folder: Path) -> None:
        """Remove the folder that a coordinator has made for itself, once all of it is uploaded."""


class _Claimed:
    """A local folder, which is claimed; its files need no upload."""

    def __init__(self, moved: Callable[[], str]) -> None:
        self._moved = moved

    def confirm(self) -> None:
        """See `Writing`."""
        if why := self._moved():
            raise Deposed(why)

    def finish(self) -> None:
        """See `Writing`."""


class LocalPlace:
    """A run folder, which all processes share; `holder`: name of this process."""

    def __init__(self, job: Job, holder: str) -> None:
        self._job, self._holder = job, holder
        self._claim: Claim | None = None
        self.where = folder_of(job)

    def shown(self, folder: Path) -> str:
        """See `RunPlace`."""
        return str(folder)

    def sets(self, folder: Path | None = None) -> SetStorage:
        """See `RunPlace`."""
        return LocalSets((folder or self.where) / "snapshots")

    def prepare(self, resume: bool, folder: Path | None = None) -> Path:
        """See `RunPlace`."""
        if folder is not None:
            return self._keep(Claim.join(folder, self._holder))
        return self._keep(claim_earlier(self.where, self._holder) if resume else claim_new(self._job, self._holder))

    def find(self, known: str, folder: Path | None, run_id: int) -> Path | None:
        """See `RunPlace`."""
        path = Path(known)
        if not path.is_dir() or folder not in (None, path):
            return None
        return self._keep(Claim.join(path, self._holder, run_id))

    def moved(self) -> str:
        """See `RunPlace`."""
        if self._claim is None or self._claim.is_in_place():
            return ""
        return (
            f"{self._claim.folder}: the run folder was renamed or removed while its run was active; where it is still "
            f"there, `--resume` continues from its last snapshot set once it has its name again"
        )

    def release(self) -> None:
        """See `RunPlace`."""
        if self._claim is not None:
            self._claim.release()

    def _keep(self, claim: Claim) -> Path:
        self._claim = claim
        return claim.folder

    @contextmanager
    def writing(self, folder: Path, run_id: int, lost: Callable[[str], None]) -> Iterator[Writing]:
        """See `RunPlace`."""
        if self._claim is not None:
            self._claim.name_run(run_id)
        yield _Claimed(self.moved)

    def finish(self, folder: Path, keep: bool = False) -> None:
        """See `RunPlace`."""

    def discard(self, folder: Path) -> None:
        """See `RunPlace`. The run folder stays."""


class _Published:
    """A prefix that is held, with a publisher."""

    def __init__(self, hold: Hold, publisher: Publisher) -> None:
        self._hold, self.finish = hold, publisher.finish

    def confirm(self) -> None:
        """See `Writing`."""
        try:
            self._hold.confirm()
        except (Unavailable, StorageError) as error:
            raise WriteFailed(str(error)) from None


class StoredPlace:
    """A prefix in a store of objects. Processes work in folders of their own, which hold nothing that is needed again.

    Parameters
    ----------
    where
        The run's prefix.
    """

    def __init__(self, job: Job, where: Url, clock: Clock | None = None) -> None:
        self._job, self.where = job, where
        self._clock = clock or SystemClock()
        self._store = connect(where)

    def shown(self, folder: Path) -> str:
        """See `RunPlace`."""
        return self.where

    def sets(self, folder: Path | None = None) -> SetStorage:
        """See `RunPlace`."""
        return ObjectSets(self._store, self.where / "snapshots")

    def prepare(self, resume: bool, folder: Path | None = None) -> Path:
        """See `RunPlace`. A store cannot rename an earlier run, so that a new one is refused there."""
        if folder is not None:
            return folder  # its prefix is held by `writing`
        if self.where.scheme == "memory":
            raise UserError(f"output: {self.where}: is the memory of one process, and a job has several")
        probe(self._store, self.where)
        there = [url for url in self._store.list(self.where) if url.parent != self.where / PREFIX]
        if resume and not there:
            raise UserError(f"{self.where}: no run to resume")
        if there and not resume:
            raise UserError(
                f"{self.where}: a run of this name is there; continue it with --resume, or give this one another name"
            )
        return self._work_folder()

    def moved(self) -> str:
        """See `RunPlace`. The hold of `writing` notices it."""
        return ""

    def release(self) -> None:
        """See `RunPlace`. The prefix is held by `writing` alone."""

    def find(self, known: str, folder: Path | None, run_id: int) -> Path | None:
        """See `RunPlace`."""
        return (folder or self._work_folder()) if known == self.where else None

    @contextmanager
    def writing(self, folder: Path, run_id: int, lost: Callable[[str], None]) -> Iterator[Writing]:
        """See `RunPlace`."""
        hold = Hold.acquire(self._store, self.where, run_id, self._clock, lost)
        (folder / _HOLDER).write_text(str(hold.number))
        try:
            publisher = Publisher(self._store, self.where, folder, self._clock, hold.confirm, lost)
            publisher.start()
            try:
                yield _Published(hold, publisher)
            finally:
                publisher.stop()
            publisher.finish()
        except RuntimeFailure as error:
            if not isinstance(error, Deposed):  # else all is of another process's run by now
                keep_folder(folder)
            raise
        finally:
            hold.release()

    def finish(self, folder: Path, keep: bool = False) -> None:
        """See `RunPlace`."""
        try:
            held_by = (folder / _HOLDER).read_text()
        except FileNotFoundError:
            if any(path.is_file() for path in (folder / "logs").glob("*")):
                keep_folder(folder)
                log.info(f"the run did not begin; its logs are in {folder}")
            else:
                self.discard(folder)
            return

        def confirm() -> None:
            if str(highest(self._store, self.where)) != held_by:
                raise Deposed(f"{self.where}: another process writes there now")

        try:
            confirm()
            Publisher(self._store, self.where, folder, self._clock, confirm).finish()
        except (Deposed, Unavailable, StorageError) as error:
            keep_folder(folder)
            raise RuntimeFailure(f"{error}; what could not be uploaded is in {folder}") from None
        except RuntimeFailure:  # of the publisher, which names the folder
            keep_folder(folder)
            raise
        if keep:
            keep_folder(folder)
        else:
            self.discard(folder)

    def discard(self, folder: Path) -> None:
        """See `RunPlace`."""
        shutil.rmtree(folder, ignore_errors=True)

    def _work_folder(self) -> Path:
        folder, self._lock = make_folder(f"{RUN}{self._job.name}-")
        fetch_for_resume(self._store, self.where, folder)
        return folder


def place_of(job: Job, holder: str | None = None) -> RunPlace:
    """The place of a job's run; `holder`: name of this process in a claim, which its children may have too."""
    if isinstance(job.output, Url):
        return StoredPlace(job, job.output / job.name)
    return LocalPlace(job, holder or process_name())
