"""Working folder of a process whose run is in a store: private, and removed by a later start if the process was killed.

The process holds the lock of a file in it for as long as it runs; the kernel releases it after SIGKILL too. A folder
without that file is never removed: what could not be uploaded is kept in such ones.
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

_PREFIX = "dbelief-run-"
MARK = ".working"
"""File in a folder that is removed without its process."""


def make_work_folder(name: str) -> tuple[Path, int]:
    """Make a folder, and remove those of processes that were killed; the folder, and the descriptor of its lock."""
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
    descriptor = os.open(folder / f"{MARK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(folder / f"{MARK}.new", folder / MARK)  # locked before another process can see it
    return folder, descriptor


def keep_work_folder(folder: Path) -> None:
    """Leave a folder to the person that it is named to: it is not removed."""
    (folder / MARK).unlink(missing_ok=True)


def remove_abandoned() -> None:
    """Remove this user's folders whose processes have ended without removing them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), _unlocked(folder) as unlocked:
            if unlocked:
                log.info(f"{folder}: left by a process that was killed, and removed")
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _unlocked(folder: Path) -> Iterator[bool]:
    """Whether a folder is this user's, and of a process that has ended; its lock is held within the block.

    Raises
    ------
    OSError
        It is no such folder.
    """
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        yield False
        return
    descriptor = os.open(folder / MARK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
