"""A segment's lock, which knows how long it was waited for.

Who finds it free pays for two calls of Python, some 0.3 µs, where a push of a small segment takes 10 and copying a
mebibyte 30 (`benchmarks/locks.py`). The clock is read only by who has to wait. The sums are written with the lock held,
so none is lost.
"""

from __future__ import annotations

import threading
import time


class Lock:
    """A lock that is not re-entrant.

    Attributes
    ----------
    waits, waited_s
        How many found it held, and how long they waited together.
    """

    __slots__ = ("_lock", "release", "waited_s", "waits")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release
        self.waits = 0
        self.waited_s = 0.0

    def acquire(self) -> None:
        """Hold it, after whoever holds it now."""
        if not self._lock.acquire(False):
            began_s = time.perf_counter()
            self._lock.acquire()
            self.waited_s += time.perf_counter() - began_s
            self.waits += 1

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *raised: object) -> None:
        self.release()
