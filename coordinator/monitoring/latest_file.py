"""Files of a run folder that hold the latest value of something drawn as a picture.

`last_pass.json`: the last complete pass of a batch method, with each task's replica and times. `reduction.json`: the
traffic between the workers of the last group. Either may change many times a second, so writes are limited to one per
second. The last value is written when the job ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dbelief.process.atomic_file import write_whole
from dbelief.process.clock import Clock
from dbelief.process.runtime import runtime
from dbelief.rundir.json_values import plain

_EVERY_S = 1.0


class ThrottledJsonFile:
    """Latest value of a JSON file, written at most once a second; safe to use from several threads.

    Parameters
    ----------
    path
        The file.
    clock
        Measures the time between two writes.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = runtime.lock()
        self._unwritten: Mapping[str, Any] | None = None
        self._written_s = clock.now() - _EVERY_S

    def update(self, fields: Mapping[str, Any]) -> None:
        """Replace the latest value."""
        self._unwritten = fields

    def flush(self, at_once: bool = False) -> None:
        """Write an unwritten value; without `at_once`, only if the last write was at least a second ago.

        Raises
        ------
        WriteFailed
            The file cannot be written, for example because the disk is full.
        """
        with self._lock:
            now_s = self._clock.now()
            if self._unwritten is None or not (at_once or now_s - self._written_s >= _EVERY_S):
                return
            fields, self._unwritten, self._written_s = self._unwritten, None, now_s
            write_whole(self._path, json.dumps(plain(fields), allow_nan=False).encode())
