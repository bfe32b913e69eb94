"""`events.jsonl`: the event log of a run, one JSON object per line, in chronological order.

Every line has `time` (UTC, ISO 8601), `elapsed_s` (seconds since this log was opened, monotonic) and `event`:

    state        state, reason
    progress     samples, epoch, loss, staleness, samples_per_s, members
    evaluation   samples, set ("validation" or "test"), loss, accuracy
    member       role, id, what ("joined", "left" or "died"), reason
    snapshot     set
    warm_start   samples

and of a batch method, once for each iteration, and for each complete pass over its batch:

    iteration    iteration (from 1), loss and gradient_norm at the new parameters, step (in lengths of its direction),
                 evaluations (passes so far), skipped (pairs that did not count)
    pass         number, iteration (that contains it), bundles, portions, samples, loss (mean, without l2), seconds
                 (from the first bundle assigned to the last one reported), launched and won (backups)
    rolled_back  set, iterations (that are undone)

A line is appended in one write, so a reader may follow the file while it grows. A process that is killed during that
write leaves a torn last line: readers skip it, and opening the log again truncates it.
"""

import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dbelief.errors import DataError
from dbelief.process.clock import Clock, SystemClock

from .json_values import plain

_OWN = ("time", "elapsed_s", "event")


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
        self._lock = threading.Lock()
        _cut_torn_line(path)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one event.

        Numbers may be NumPy's; NaN and infinity are written as null. Once the log is closed, nothing is written: a late
        event of another thread is no error.

        Raises
        ------
        ValueError
            A field has the name of a field that every event has, or cannot be written as JSON.
        """
        taken = [name for name in _OWN if name in fields]
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
                self._file.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        """Return the log itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        whole = end
        while whole > 0:
            start = max(0, whole - 65536)
            file.seek(start)
            at = file.read(whole - start).rfind(b"\n")
            if at >= 0:
                whole = start + at + 1
                break
            whole = start
        if whole < end:
            file.truncate(whole)
