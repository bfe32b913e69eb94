"""`events.jsonl`: the event log of a run, one JSON object per line, in chronological order.

Every line has `time`, `elapsed_s` and `event`; `event_specs.py` specifies the events and their fields.

A line is appended in one write, so a reader may follow the file while it grows. A process that is killed during that
write leaves a torn last line: readers skip it, and opening the log again truncates it. On a full disk events are kept
in memory, and appended when there is room.
"""

import json
import logging
import mmap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from dbelief.errors import DataError
from dbelief.process.clock import Clock, SystemClock
from dbelief.process.runtime import runtime

from .event_specs import COMMON
from .json_values import plain

log = logging.getLogger(__name__)

_KEPT = 8 << 20
"""Bytes of events that are kept while the disk is full."""


class EventLog:
    """Append-only event file; safe to use from several threads.

    Parameters
    ----------
    path
        The file, made if missing; its folder exists.
    clock
        Source of the events' times.
    earlier_s
        Seconds that the run has lasted already.
    """

    def __init__(self, path: Path, clock: Clock | None = None, earlier_s: float = 0.0) -> None:
        self._clock = clock or SystemClock()
        self._start_s = self._clock.now() - earlier_s
        self._lock = runtime.lock()
        _cut_torn_line(path)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""
        self._warned = False

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one event.

        Numbers may be NumPy's; NaN and infinity are written as null. Once the log is closed, nothing is written: a late
        event of another thread is no error.

        Raises
        ------
        ValueError
            A field has the name of a field that every event has, or cannot be written as JSON.
        """
        taken = [name for name in COMMON if name in fields]
        if taken:
            raise ValueError(f"event {event!r}: the field name {taken[0]!r} is taken")
        with self._lock:
            time = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="milliseconds")
            head = {
                "time": time.replace("+00:00", "Z"),
                "elapsed_s": round(self._clock.now() - self._start_s, 3),
                "event": event,
            }
            line = json.dumps({**head, **plain(fields)}, allow_nan=False, ensure_ascii=False)
            if not self._file.closed:
                self._append(line.encode() + b"\n")

    def close(self) -> None:
        """Close the file; events for which there is no room are lost, with a line in the log."""
        with self._lock:
            if self._unwritten and not self._file.closed:
                self._append(b"")
            if self._unwritten:
                lines = self._unwritten.count(b"\n")
                log.warning(f"{self._path}: lacks the last {lines:,} events, for which there was no room")
                self._unwritten = b""
            self._file.close()

    def _append(self, line: bytes) -> None:
        """Write what is not yet written and a line; where there is no room, all is kept for the next try."""
        if len(self._unwritten) < _KEPT:  # else this one is lost
            self._unwritten += line
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) or 0 :]
        except OSError as error:
            if not self._warned:
                self._warned = True
                log.warning(f"{self._path}: {error.strerror}; events are kept in memory until there is room")

    def __enter__(self) -> Self:
        """Return the log itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close the file."""
        self.close()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file, oldest first; a torn last line is skipped.

    Raises
    ------
    DataError
        The file cannot be read, or a line other than the last is no event.
    """
    torn: int | None = None
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if torn is not None:
                    raise DataError(f"{path}, line {torn}: not an event")
                try:
                    event = json.loads(line)
                except ValueError:  # from JSON or UTF-8
                    event = None
                if isinstance(event, dict) and "event" in event:
                    yield event
                else:
                    torn = number
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def _cut_torn_line(path: Path) -> None:
    """Truncate the file to its last complete line, lest the next event be appended to a torn one."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            end, whole = len(content), content.rfind(b"\n") + 1
        if whole < end:
            file.truncate(whole)
