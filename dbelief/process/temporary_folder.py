"""Temporary folders of processes that may be killed: a later process removes what they have left.

A process locks its folder; the kernel frees the lock with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LAUNCH, REGISTRY = "dbelief-launch-", "dbelief-registry-"
"""What the names of these folders begin with: of a launcher, and of its registry."""
_NEW_S = 60.0
"""Age below which a folder may not be locked yet by the process that has made it, in seconds."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A launcher's folder, which is removed at the end of the `with` block, or by a later launcher."""
    remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=LAUNCH, ignore_cleanup_errors=True) as name:
        lock = lock_folder(Path(name))
        try:
            yield Path(name)
        finally:
            os.close(lock)


def lock_folder(folder: Path) -> int:
    """Lock a folder for as long as this process has the descriptor open, which is returned."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks, where none is removed by others either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def remove_left(parent: Path, older_s: float = _NEW_S) -> None:
    """Remove the folders of this user's processes that have ended, where they are older than some seconds."""
    for prefix in (LAUNCH, REGISTRY):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):  # another process removes it, or its process goes on
                _remove_unlocked(folder, older_s)


def _remove_unlocked(folder: Path, older_s: float) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or time.time() - found.st_mtime < older_s:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)
