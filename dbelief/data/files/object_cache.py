"""Objects of a store that were fetched whole: kept in the user's cache folder, within a bound, for all processes.

objects/DIGEST              an object; DIGEST is of its URL, size and tag, so that one that was written again is another
objects/DIGEST.SIZE.part    what has come of it; a process that fetches it holds a lock on it, and the next one goes on
objects/.room               locked by the process that makes room

An open object holds a shared lock on its file, and stays. Of the others those go first that were not used for longest.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dbelief.errors import DataError, Unavailable
from dbelief.process.runtime import runtime
from dbelief.storage.backends import Stat
from dbelief.url import Url

from .cache_folder import cache_folder, locked, own_folder
from .errors import cause
from .object_ranges import read_range

log = logging.getLogger(__name__)

SETTING, MOST_GIB = "DBELIEF_CACHE_GIB", 20.0
"""Variable with the most that the kept objects take together, in GiB; and the default."""
BLOCK = 8 << 20
"""Bytes of one request."""
STALL_S = 120.0
"""Seconds without progress of another process that fetches the object, after which this one fails."""
_LOCK_S = 30.0


def fetch(url: Url, found: Stat) -> IO[bytes]:
    """Open an object as a file of this machine; it is fetched where it is not kept.

    Parameters
    ----------
    found
        What the store lists of it.

    Raises
    ------
    DataError
        It does not fit among the kept objects, was written again or removed, or the folder cannot be written.
    StorageError, Unavailable
        The store refuses it, or does not answer; or another process that fetches it makes no progress.
    """
    digest = hashlib.sha256(f"{url}\0{found.size}\0{found.tag}".encode()).hexdigest()
    try:
        folder = own_folder("objects")
        until_s, came = runtime.monotonic() + STALL_S, -1
        while True:
            if (kept := _kept(folder / digest)) is not None:
                return kept
            part = folder / f"{digest}.{found.size}.part"
            with _own_part(part, url, found.size) as file:
                if file is not None:
                    if (folder / digest).exists():  # it came between the look and the lock
                        part.unlink()
                    else:
                        _fill(file, url, found)
                        part.rename(folder / digest)
                    continue
            if (now := _size(part)) != came:
                until_s, came = runtime.monotonic() + STALL_S, now
            if runtime.monotonic() >= until_s:
                raise Unavailable(f"{url}: another process fetches it, and has not gone on for {STALL_S:g} s")
            runtime.sleep(0.1)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        way = ": XDG_CACHE_HOME names another folder for it" if full else ""
        raise DataError(f"{url}: cannot be kept in {cache_folder() / 'objects'}: {cause(error)}{way}") from None


def most_bytes() -> int:
    """The most that the kept objects take together.

    Raises
    ------
    DataError
        The variable is no number above 0.
    """
    text = os.environ.get(SETTING, "") or str(MOST_GIB)
    try:
        most = float(text)
    except ValueError:
        most = 0.0
    if not 0 < most < 1e9:
        raise DataError(f"{SETTING}: must be a number of GiB above 0, not {text!r}")
    return int(most * 2**30)


def _kept(path: Path) -> IO[bytes] | None:
    """The object, where it is there, locked against removal until it is closed."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    # The lock is exclusive only while the file gets its name, or is removed.
    if not locked(file.fileno(), fcntl.LOCK_SH, _LOCK_S) or not os.fstat(file.fileno()).st_nlink:
        file.close()
        return None
    with suppress(OSError):
        os.utime(file.fileno())
    return file


@contextmanager
def _own_part(part: Path, url: Url, size: int) -> Iterator[IO[bytes] | None]:
    """What has come of an object, to go on with, locked within the `with` block; None: another process has the lock."""
    with _room(part.parent, url, size, part):
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        mine = locked(descriptor, fcntl.LOCK_EX, 0.0) and _is(part, descriptor)
        yield file if mine else None


def _fill(file: IO[bytes], url: Url, found: Stat) -> None:
    """Fetch what has not come yet."""
    at = min(file.seek(0, os.SEEK_END), found.size)
    file.seek(at)
    if found.size - at > 8 * BLOCK:
        log.info(f"{url}: is fetched, {(found.size - at) / 2**20:,.0f} MiB")
    while at < found.size:
        block = read_range(url, at, min(at + BLOCK, found.size), found.tag)
        file.write(block)
        file.flush()
        at += len(block)


@contextmanager
def _room(folder: Path, url: Url, size: int, part: Path) -> Iterator[None]:
    """Make room for an object that is fetched; what is made within the `with` block counts for the next process."""
    descriptor = os.open(folder / ".room", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locked(descriptor, fcntl.LOCK_EX, _LOCK_S):
            log.warning(f"{folder}: another process has made room for {_LOCK_S:g} s")
        if not part.exists():
            # What is removed by hand is still counted here, until the sum is above the bound and is made again.
            counted = os.pread(descriptor, 24, 0)
            most, taken = most_bytes(), int(counted) if counted.isdigit() else None
            if taken is None or taken + size > most:
                taken = _make_room(folder, url, size, most)
            os.pwrite(descriptor, f"{taken + size:024}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _make_room(folder: Path, url: Url, size: int, most: int) -> int:
    """Remove what was not used for longest, a tenth more than needed; returns the bytes of what is left."""
    kept = dict[Path, tuple[float, int]]()
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if not path.name.startswith("."):
                own = path.stat()
                kept[path] = own.st_mtime, int(path.suffixes[0][1:]) if path.suffix == ".part" else own.st_size
    taken = sum(bytes_ for _, bytes_ in kept.values())
    for path in sorted(kept, key=lambda path: kept[path]):
        if taken + size <= most * 9 // 10:
            break
        if _removed(path):
            taken -= kept[path][1]
    if taken + size > most:
        raise DataError(
            f"{url}: {size:,} bytes do not fit among the kept objects, {most:,} bytes, of which {taken:,} are in use: "
            f"set {SETTING} higher, or give the data as files"
        )
    return taken


def _removed(path: Path) -> bool:
    """Remove an object, or what has come of one; False where a process uses it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return not path.exists()
    try:
        if not locked(descriptor, fcntl.LOCK_EX, 0.0):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    """Whether an open file still has this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
