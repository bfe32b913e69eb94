"""A disk that keeps what was flushed, and loses the rest when its machine fails; a `Disk`."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dbelief.process.atomic_file import Disk
from dbelief.process.runtime import runtime

from .scheduler import Process, Scheduler

STEP_S = 0.002
"""Mean time of a step, in seconds."""


@dataclass
class _Renamed:
    process: Process
    path: Path
    before: Path | None  # a second name of the file that was replaced


class SimulatedDisk(Disk):
    """Files of one folder, on which all processes write.

    Attributes
    ----------
    full_until_s
        Until this virtual time every step of some processes fails, as on a full disk; by process.
    """

    def __init__(self, scheduler: Scheduler, spare: Path) -> None:
        self._scheduler = scheduler
        self._spare = spare
        self._unsynced: dict[Path, Process] = {}
        self._renamed: list[_Renamed] = []
        self._paths: dict[int, Path] = {}
        self._kept = 0
        self.full_until_s: dict[Process, float] = {}

    def _step(self) -> Process:
        runtime.sleep(self._scheduler.random.expovariate(1 / STEP_S))
        assert self._scheduler.current is not None
        process = self._scheduler.current.process
        if self._scheduler.now_s < self.full_until_s.get(process, 0.0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return process

    def create(self, path: Path) -> BinaryIO:
        process = self._step()
        file = super().create(path)
        self._unsynced[path] = process
        self._paths[id(file)] = path
        return file

    def sync(self, file: BinaryIO) -> None:
        self._step()
        file.flush()
        self._unsynced.pop(self._paths.pop(id(file)), None)

    def rename(self, temporary: Path, path: Path) -> None:
        process = self._step()
        before: Path | None = None
        if path.exists():
            self._kept += 1
            before = self._spare / f"before-{self._kept}"
            os.link(path, before)
        self._renamed.append(_Renamed(process, path, before))
        if temporary in self._unsynced:
            self._unsynced[path] = self._unsynced.pop(temporary)
        super().rename(temporary, path)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        self._renamed = [one for one in self._renamed if one.path.parent != folder]

    def machine_failed(self, process: Process) -> list[str]:
        """Lose what a process has not flushed: the end of a file, or a new name; returns what was lost."""
        lost = []
        for path in [path for path, owner in self._unsynced.items() if owner is process]:
            del self._unsynced[path]
            if path.exists():
                os.truncate(path, int(self._scheduler.random.random() * path.stat().st_size))
                lost.append(f"end of {path.name}")
        for one in [one for one in self._renamed if one.process is process]:
            self._renamed.remove(one)
            if self._scheduler.random.random() < 0.5 and one.path.exists():
                one.path.unlink()
                if one.before is not None:
                    with suppress(FileNotFoundError):
                        os.link(one.before, one.path)
                lost.append(f"new name {one.path.name}")
        return lost
