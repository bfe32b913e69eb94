"""A segment's lock, which knows how long it was waited for.

Who finds it free pays for two calls of Python, some 0.3 µs, where a push of a small segment takes 10 and copying a
mebibyte 30 (`benchmarks/locks.py`). The clock is read only by who has to wait. The sums are written with the lock held,
so none is lost.
"""

from __future__ import annotations

import threading
import time


class TimedLock:
    """A lock that is not re-entrant.

    Attributes
    ----------
    waits, waited_s
        How many found it held, and how long they waited together.
    """

    __slots__ = ("_take", "release", "waited_s", "waits")

    def __init__(self) -> None:
        lock = threading.Lock()
        self._take, self.release = lock.acquire, lock.release
        self.waits = 0
        self.waited_s = 0.0

    def acquire(self) -> None:
        """Hold it, after whoever holds it now."""
        if not self._take(False):
            self._wait()

    __enter__ = acquire  # by another name, not by another call

    def _wait(self) -> None:
        began_s = time.perf_counter()
        self._take()
        self.waited_s += time.perf_counter() - began_s
        self.waits += 1

    def __exit__(self, *raised: object) -> None:
        self.release()
