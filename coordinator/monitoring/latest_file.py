"""Files of a run folder that hold the latest of something that pictures are drawn of.

`last_pass.json`: the last complete pass of a batch method, with who computed what and when. `reduction.json`: who of
the last group of workers took how much from whom. Either may change many times a second, so most of it is never
written: once a second is often enough to look at, and the last one is there when the job has ended.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dbelief.process.atomic_file import write_whole
from dbelief.process.clock import Clock
from dbelief.rundir.json_values import plain

_EVERY_S = 1.0


class ThrottledJsonFile:
    """Keeps the latest, and its file up to date; safe to use from several threads.

    Parameters
    ----------
    path
        The file.
    clock
        What the time between two files runs by.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._unwritten: Mapping[str, Any] | None = None
        self._written_s = clock.now() - _EVERY_S

    def update(self, fields: Mapping[str, Any]) -> None:
        """There is a newer one."""
        self._unwritten = fields

    def flush(self, at_once: bool = False) -> None:
        """Write what has not been written yet; not `at_once`: unless it was written just now.

        Raises
        ------
        NotWritten
            Where the disk is full, say.
        """
        with self._lock:
            now_s = self._clock.now()
            if self._unwritten is None or not (at_once or now_s - self._written_s >= _EVERY_S):
                return
            fields, self._unwritten, self._written_s = self._unwritten, None, now_s
            write_whole(self._path, json.dumps(plain(fields), allow_nan=False).encode())
