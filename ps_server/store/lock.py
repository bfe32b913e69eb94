"""Segment lock that measures how long threads waited for it.

An uncontended acquisition costs two Python calls, some 0.3 µs, where a push of a small segment takes 10 and copying a
mebibyte 30 (`benchmarks/locks.py`). Only a thread that has to wait reads the clock. The sums are written with the lock
held, so no update is lost.
"""

from __future__ import annotations

import threading
import time


class TimedLock:
    """A lock that is not re-entrant.

    Attributes
    ----------
    waits, waited_s
        Number of acquisitions that found it held, and the sum of their waiting times.
    """

    __slots__ = ("_take", "release", "waited_s", "waits")

    def __init__(self) -> None:
        lock = threading.Lock()
        self._take, self.release = lock.acquire, lock.release
        self.waits = 0
        self.waited_s = 0.0

    def acquire(self) -> None:
        """Acquire the lock, waiting while another thread holds it."""
        if not self._take(False):
            self._wait()

    __enter__ = acquire  # an alias: no extra call

    def _wait(self) -> None:
        began_s = time.perf_counter()
        self._take()
        self.waited_s += time.perf_counter() - began_s
        self.waits += 1

    def __exit__(self, *raised: object) -> None:
        self.release()
