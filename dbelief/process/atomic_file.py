"""A file that is there whole or not at all, however the machine dies while it is written."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dbelief.errors import WriteFailed

_TEMPORARY = re.compile(r"\.dbelief-[0-9a-f]{16}\.writing")


class Disk:
    """The steps that make a file durable, in the order of their names here; a test may record or fail each."""

    def create(self, path: Path) -> BinaryIO:
        """Create a file and open it for writing. A name that exists, as a symbolic link too, is an error."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o666), "wb")

    def sync(self, file: BinaryIO) -> None:
        """Write the file's content through to the disk."""
        file.flush()
        os.fsync(file.fileno())

    def rename(self, temporary: Path, path: Path) -> None:
        """Give the file its name; a file of that name is replaced at once."""
        temporary.rename(path)

    def sync_folder(self, folder: Path) -> None:
        """Write the folder's names through to the disk."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


DISK = Disk()


@contextmanager
def atomic_write(path: Path, disk: Disk = DISK) -> Iterator[BinaryIO]:
    """A file to be written in any order; it appears under its name at the end of the block, and is durable then.

    Until then it has a temporary name in the same folder. That name is random and the writer's own: two writers of
    one path both write whole files, and the later one stays. No file of another name is touched.

    Raises
    ------
    WriteFailed
        Where the disk is full, say; names the file. What has that name already stays as it was.
    """
    try:
        temporary, file = _begin(path.parent, disk)
        try:
            with file:
                yield file
                disk.sync(file)
                disk.rename(temporary, path)
            disk.sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise WriteFailed(f"{path}: cannot be written: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file as `whole_file` does.

    Raises
    ------
    WriteFailed
        As `whole_file` does.
    """
    with atomic_write(path) as file:
        file.write(content)


def sweep(folder: Path) -> None:
    """Remove the temporary files of writers that have died, in a folder of the project's own and those below it.

    A writer holds a lock on its temporary file; one that is locked stays. Where the file system has no locks, all stay.
    """
    for path in folder.rglob(".dbelief-*.writing"):
        if _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # its writer lives, or another process has removed it
                _remove_unlocked(path)


def _begin(folder: Path, disk: Disk) -> tuple[Path, BinaryIO]:
    """Create a temporary file and lock it."""
    while True:
        temporary = folder / f".dbelief-{secrets.token_hex(8)}.writing"
        file = disk.create(temporary)
        with suppress(OSError):  # a file system without locks: `sweep` removes nothing there
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()  # `sweep` removed it before it was locked


def _remove_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)
