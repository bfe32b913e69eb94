"""The user's cache folder, and locks on files there."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

from dbelief.process.runtime import runtime

LOOK_S = 0.05
"""Seconds between two looks whether a lock is free."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/dbelief`, or ~/.cache/dbelief; without a home it is below the system's temporary folder."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "dbelief"
    try:
        return Path.home() / ".cache" / "dbelief"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"dbelief-cache-{os.geteuid()}"


def own_folder(name: str) -> Path:
    """A folder in the cache folder that only its user can read; it is made where it is not there.

    Raises
    ------
    OSError
        It cannot be made, or is another user's, who could change what is in it.
    """
    folder = cache_folder() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in (folder.parent, folder):
        if os.geteuid() and one.stat().st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, f"{one} is another user's")
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def locked(descriptor: int, kind: int, within_s: float) -> bool:
    """Lock an open file, shared or exclusively (`fcntl.LOCK_SH`, `LOCK_EX`), where its file system has locks.

    Returns
    -------
    bool
        False where another process has had it for `within_s` seconds.
    """
    until_s = runtime.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if runtime.monotonic() >= until_s:
                return False
            runtime.sleep(LOOK_S)
        except OSError:  # a file system without locks
            return True
        else:
            return True
