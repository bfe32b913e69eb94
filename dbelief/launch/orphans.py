"""Orphans that a launcher has adopted: it waits for them, so that they do not stay as zombies.

A launcher is the subreaper of its descendants, since its processes are forked for it, or it is the first process of a
container. What a script has started and left then becomes its child. The exit codes of other children are for those who
have started them: a child that this process has started is in its session, or leads one of its own. Whatever is in
another session was adopted. (An orphan that leads a session, as a daemon does, looks like a child.)
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_STATE, _SESSION = 0, 3
"""Places of the fields in /proc/PID/stat behind the name of the program."""


def reap_orphans() -> None:
    """Wait for the adopted children that have ended; without effect where /proc does not list children."""
    own = os.getsid(0)
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for pid in map(int, listed.read_text().split()):
                if _is_adopted_zombie(pid, own):
                    os.waitpid(pid, os.WNOHANG)


def _is_adopted_zombie(pid: int, own_session: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[_STATE] == "Z" and int(fields[_SESSION]) not in (own_session, pid)
