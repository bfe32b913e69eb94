"""Atomic, durable files: complete or absent, even if the machine fails during the write."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dbelief.errors import WriteFailed
from dbelief.process.replaceable import replaceable
from dbelief.process.runtime import runtime

_TRIED = 1 << 18
"""Bytes that are written to find out whether there is room."""
_TEMPORARY = re.compile(r"\.dbelief-[0-9a-f]{16}\.writing")


class Disk:
    """Steps that make a file durable, in the order of their names here. A simulation overrides each."""

    def create(self, path: Path) -> BinaryIO:
        """Create a file and open it for writing. An existing name, also a symbolic link, is an error."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o666), "wb")

    def sync(self, file: BinaryIO) -> None:
        """Flush the file's content to the disk."""
        file.flush()
        os.fsync(file.fileno())

    def rename(self, temporary: Path, path: Path) -> None:
        """Rename the file; an existing file of that name is replaced atomically."""
        temporary.rename(path)

    def sync_folder(self, folder: Path) -> None:
        """Flush the folder's entries to the disk."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


disk, use_disk = replaceable(Disk())


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file for writing in any order; it gets its name at the end of the `with` block, and is durable then.

    Until then it has a temporary name in the same folder. That name is random and unique: of two writers of one path
    both write complete files, and the later one wins. No file of another name is changed.

    Raises
    ------
    WriteFailed
        For example, the disk is full; names the file. An existing file of that name is unchanged.
    """
    try:
        temporary, file = _begin(path.parent)
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
    """Write a small file as `atomic_write` does.

    Raises
    ------
    WriteFailed
        As `atomic_write` does.
    """
    with atomic_write(path) as file:
        file.write(content)


def why_unwritable(folder: Path) -> str:
    """Why nothing can be written into a folder, as where its disk is full, with its name; "" where something can."""
    try:
        temporary, file = _begin(folder)
        try:
            with file:
                file.write(bytes(_TRIED))
                disk.sync(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""


def sweep(folder: Path) -> None:
    """Remove the temporary files of writers that have exited, in a folder of the project and its subfolders.

    A writer holds a lock on its temporary file; a locked file is kept. If the file system has no locks, all are kept.
    """
    for path in folder.rglob(".dbelief-*.writing"):
        if _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # its writer is running, or another process has removed it
                _remove_unlocked(path)


def _begin(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a temporary file and lock it."""
    while True:
        temporary = folder / f".dbelief-{runtime.random_bytes(8).hex()}.writing"
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
