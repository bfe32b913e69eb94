"""The claim of a run folder: one start at a time has it, until its run ends.

A claim is the lock of the file `.claim` in the folder. It moves with the folder, and the kernel frees it when the
process ends, by SIGKILL too. The process that has it decides whether the folder is new, resumed or moved aside.

Coordinators of one run share the folder: the one that a launcher starts in the folder that it holds, and one that goes
on where another is suspended. The file names the holder and the run, by which these are recognised. Each of them locks
the folder itself too, shared, so that no start claims a folder in which a process still writes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dbelief.errors import UserError

log = logging.getLogger(__name__)

TRIES = 20
"""Number of times that a folder is claimed again which was renamed or removed meanwhile."""
CLAIM = ".claim"
"""File of a run folder with the name of the process that has claimed it, and the id of its run."""


class RunInProgress(UserError):
    """Another process has claimed the run folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: a run is in progress there; end it first, or give this one another name")


def process_name() -> str:
    """Name of this process, by which claims and leases name their holder: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Claim:
    """A folder that this process may write, until it is released, or this process ends; see `take` and `join`.

    Attributes
    ----------
    folder
        The folder.
    """

    def __init__(self, folder: Path, lock: _Lock, writer: int) -> None:
        self.folder = folder
        self._lock, self._writer = lock, writer
        _held.add(self)

    @classmethod
    def take(cls, folder: Path, holder: str) -> Claim:
        """Claim a folder that exists, for a process of this name.

        Raises
        ------
        RunInProgress
            Another process has claimed it, or writes there.
        OSError
            It does not exist, or cannot be written.
        """
        while True:
            lock = _Lock(folder)
            try:
                if not lock.acquire():
                    raise RunInProgress(folder)
                if not lock.is_in_place():
                    lock.close()
                    continue  # the folder was renamed between the opening of the file and its lock
                writer = _lock_folder(folder, lock, holder)
            except BaseException:
                lock.close()
                raise
            return cls(folder, lock, writer)

    @classmethod
    def join(cls, folder: Path, holder: str, run_id: int | None = None) -> Claim:
        """Claim a folder, or share it where the process that has it is of this name, or of this run.

        Raises
        ------
        RunInProgress, OSError
            See `take`.
        UserError
            The folder is that of another run than `run_id`, by now.
        """
        try:
            lock = _Lock(folder)
            try:
                found = lock.read()
            finally:
                lock.close()
            if run_id is not None and found.get("run", run_id) != run_id:
                raise UserError(f"{folder}: is the folder of another run by now; --fresh starts this one anew")
            return cls.take(folder, holder)
        except RunInProgress:
            claim = cls(folder, _Lock(folder), _lock_folder(folder))
            found = claim._lock.read()  # after the lock: no other process claims the folder from here on
            if found.get("holder") != holder and (run_id is None or found.get("run") != run_id):
                claim.release()
                raise
            return claim

    def is_in_place(self) -> bool:
        """Whether the folder is still at its path: a person may rename or remove it, and the claim goes with it.

        Cost: two stats, where it is.
        """
        try:
            if os.path.samestat(os.stat(self.folder), os.fstat(self._writer)):
                return True
            # Some network file systems number a file anew at each look: the content of its claim decides there.
            return (self.folder / CLAIM).read_bytes() == self._lock.content()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # of a network file system that does not answer
            return True

    def name_run(self, run_id: int) -> None:
        """Record the id of the run that writes in the folder; without effect where the disk is full."""
        with suppress(OSError):
            self._lock.write({**self._lock.read(), "run": run_id})

    def release(self) -> None:
        """Free the folder; without effect where it is released."""
        if self in _held:
            _held.discard(self)
            with suppress(OSError):
                fcntl.flock(self._writer, fcntl.LOCK_UN)  # of descriptors that a child process has too
            self._lock.free()
            self.close()

    def close(self) -> None:
        """Close the descriptors: what a forked process does, which does not hold the folder."""
        os.close(self._writer)
        self._lock.close()


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make a folder, where it is missing, and claim it within the `with` block, in which it may be removed.

    Raises
    ------
    RunInProgress
        Another process has claimed it.
    UserError
        It cannot be made or written.
    """
    claim = _made(folder)
    try:
        yield
    finally:
        claim.release()


def _made(folder: Path) -> Claim:
    for _ in range(TRIES):
        with usable(folder), suppress(FileNotFoundError):  # another process, which had it, has removed it
            make_folder(folder)
            return Claim.take(folder, process_name())
    raise RunInProgress(folder)


def make_folder(folder: Path) -> None:
    """Make a folder where it is missing; FileNotFoundError where another process has moved it meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # it was a folder, and was moved before `mkdir` looked at what is there
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Name the folder in an error of the system, which becomes a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"run folder {folder}: {error.strerror or error}") from error


class _Lock:
    """The file of a claim, open; its lock, where this process acquires it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CLAIM
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._instead: socket.socket | None = None

    def acquire(self) -> bool:
        """Lock it; False where another process has."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:  # a network file system that has no locks
            log.debug(f"{self._path}: no lock here ({error.strerror}): a name of this machine is used")
            return self._bind()
        return True

    def _bind(self) -> bool:
        """Reserve a name that the kernel frees with this process, for starts on this machine; Linux only."""
        if sys.platform != "linux":
            return True
        name = hashlib.sha256(os.fsencode(self._path.resolve())).hexdigest()[:40]
        self._instead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._instead.bind(f"\0dbelief-claim-{name}")
        except OSError:
            return False
        return True

    def is_in_place(self) -> bool:
        """Whether the file that is open is still that of the folder."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self._path), os.fstat(self._file))
        return False

    def read(self) -> dict[str, object]:
        """Its content; empty where it is new, or is being written."""
        try:
            found = json.loads(self.content())
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def content(self) -> bytes:
        """Its content as it is written."""
        return os.pread(self._file, 4096, 0)

    def write(self, content: dict[str, object]) -> None:
        """Replace its content."""
        text = json.dumps(content).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))

    def free(self) -> None:
        """Free the lock."""
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        if self._instead is not None:
            self._instead.close()


def _lock_folder(folder: Path, lock: _Lock | None = None, holder: str = "") -> int:
    """Lock the folder, shared; returns the descriptor. With `lock`: once no other process has, and name the holder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if lock is not None:
            _flock(descriptor, folder, fcntl.LOCK_EX)
            lock.write({"holder": holder})  # before another process can share the folder: it reads this
        _flock(descriptor, folder, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _flock(descriptor: int, folder: Path, kind: int) -> None:
    """Lock a folder; without effect on network file systems that cannot lock one."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunInProgress(folder) from None
    except OSError:
        pass


_held: set[Claim] = set()


def _forget() -> None:
    for claim in _held:
        claim.close()
    _held.clear()


os.register_at_fork(after_in_child=_forget)
