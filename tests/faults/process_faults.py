"""What a plan does to processes and to their files: by pid and by path, never by a name."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from .plan import Accident, Harm


def carry_out(accident: Accident, pids: Mapping[str, int], files: Callable[[str], list[Path]]) -> None:
    """Let it happen.

    Parameters
    ----------
    pids
        Of the processes that the test started, by name.
    files
        What a process of that name has written; the newest last.
    """
    pid = pids[accident.process]
    if accident.harm is Harm.KILL:
        os.kill(pid, signal.SIGKILL)
    elif accident.harm is Harm.PAUSE:
        pause(pid, accident.amount)
    elif accident.harm is Harm.DISK_FULL:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (int(accident.amount), resource.RLIM_INFINITY))
    elif accident.harm is Harm.TORN_FILE:
        tear(files(accident.process)[-1], accident.amount)
    else:
        flip(files(accident.process)[-1], accident.amount)


def pause(pid: int, seconds: float) -> None:
    """Stop a process, and let it go on: as a machine that swaps, or sleeps."""
    os.kill(pid, signal.SIGSTOP)
    try:
        threading.Event().wait(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can be made durable, as on a disk that is full."""

    def fails(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch.object(os, "fsync", fails):
        yield


def tear(path: Path, share: float) -> None:
    """Let a file end at this share of its length, as one whose end never reached the disk."""
    os.truncate(path, int(share * path.stat().st_size))


def flip(path: Path, share: float) -> None:
    """Turn one bit at this share of a file over."""
    data = bytearray(path.read_bytes())
    at = min(int(share * 8 * len(data)), 8 * len(data) - 1)
    data[at // 8] ^= 1 << at % 8
    path.write_bytes(data)
