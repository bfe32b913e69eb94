"""Temporary folders of processes that may be killed: a later start removes what they have left.

A process holds the lock of a file in its folder; the kernel frees it with the process. A folder without that file is
never removed: it is another's, or what is in it is kept for a person.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

LAUNCH, REGISTRY, RUN = "dbelief-launch-", "dbelief-registry-", "dbelief-run-"
"""What the names of these folders begin with: of a launcher, of its registry, of a process whose run is in a store."""
MARK = ".in-use"
"""File in a folder that is removed without its process."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A launcher's folder, which is removed at the end of the `with` block, or by a later launcher."""
    folder, lock = make_folder(LAUNCH)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def make_folder(prefix: str) -> tuple[Path, int]:
    """Make a private folder, and remove what killed processes left beside it; as `hold_folder`, with the folder."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    return folder, hold_folder(folder)


def hold_folder(folder: Path) -> int:
    """Hold a folder for as long as this process has the descriptor open, which is returned; remove others beside it."""
    remove_left(folder.parent)
    descriptor = os.open(folder / f"{MARK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks, where none is removed by others either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(folder / f"{MARK}.new", folder / MARK)  # locked before another process can see it
    return descriptor


def keep_folder(folder: Path) -> None:
    """Leave a folder to the person that it is named to: it is not removed."""
    (folder / MARK).unlink(missing_ok=True)


def remove_left(parent: Path) -> None:
    """Remove this user's folders of these prefixes whose processes have ended without removing them."""
    for prefix in (LAUNCH, REGISTRY, RUN):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):  # it is no such folder, its process goes on, or another process removes it
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return
    descriptor = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        log.debug(f"{folder}: left by a process that was killed, and removed")
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
