"""Threads, locks, queues, time and randomness of a process, behind one object that a simulation can replace.

The programs, and what they share, make these by `runtime.lock()`, `runtime.spawn(...)` and so on, never by `threading`,
`queue`, `time` or `secrets`: the linter refuses those (`pyproject.toml`). Code inside a `use_runtime` block gets its
primitives from the `Runtime` that the block names. Operations on a lock or queue cost what they cost without it.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, TypeVar

from dbelief.process.processor_times import ProcessorTimes, processor_times
from dbelief.process.replaceable import replaceable

T = TypeVar("T")

Empty = queue.Empty
"""Error of `Queue.get` after its timeout."""


class Lock(Protocol):
    """Mutual exclusion, as `threading.Lock` and `threading.RLock`; also a semaphore."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire it, waiting `timeout` seconds at most (negative: for ever); whether it was acquired."""
        ...

    def release(self) -> None:
        """Release it."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Condition(Lock, Protocol):
    """Lock whose holder can wait for a notification, as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait for a notification, reacquire the lock; False after `timeout` seconds."""
        ...

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until the predicate is true, or `timeout` seconds have passed; its last value."""
        ...

    def notify(self, n: int = 1) -> None:
        """Wake `n` waiting threads."""
        ...

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        ...


class Event(Protocol):
    """Flag that threads can wait for, as `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it is set."""
        ...

    def set(self) -> None:
        """Set it, and wake all waiting threads."""
        ...

    def clear(self) -> None:
        """Clear it."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, `timeout` seconds at most; whether it is set."""
        ...


class Queue(Protocol[T]):
    """First in, first out, between threads, as `queue.SimpleQueue`."""

    def put(self, item: T) -> None:
        """Append an item."""
        ...

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Remove the oldest item; raises `Empty` where there is none within `timeout` seconds."""
        ...

    def qsize(self) -> int:
        """Number of items."""
        ...


class Thread(Protocol):
    """Running thread, as `threading.Thread`."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, `timeout` seconds at most."""
        ...

    def is_alive(self) -> bool:
        """Whether it runs."""
        ...


class Runtime:
    """Primitives of the operating system. A simulation overrides every method.

    Times are in seconds. `monotonic` and `monotonic_ns` count since an arbitrary start, the same in all processes of a
    machine; `wall` since 1970-01-01 UTC.
    """

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """Monotonic seconds, for durations and deadlines."""
    monotonic_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    """Monotonic nanoseconds."""
    wall: Callable[[], float] = staticmethod(time.time)
    """Seconds since 1970, for display."""
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    """Suspend the calling thread for some seconds."""
    processor_times: Callable[[], ProcessorTimes] = staticmethod(processor_times)
    """Processor seconds of this process, and of all programs of the machine."""
    lock: Callable[[], Lock] = staticmethod(threading.Lock)
    """A lock; not reentrant."""
    reentrant_lock: Callable[[], Lock] = staticmethod(threading.RLock)
    """A lock that its holder can acquire again."""
    semaphore: Callable[[int], Lock] = staticmethod(threading.Semaphore)
    """A lock that a number of threads can hold at once."""
    condition: Callable[[], Condition] = staticmethod(threading.Condition)
    """A condition with a reentrant lock of its own."""
    event: Callable[[], Event] = staticmethod(threading.Event)
    """An event that is not set."""
    queue: Callable[[], Queue[Any]] = staticmethod(queue.SimpleQueue)
    """An empty queue without a bound."""
    executor: Callable[[int, str], Executor] = staticmethod(ThreadPoolExecutor)
    """A pool of so many threads of this name, each started where it is needed first."""
    random_bytes: Callable[[int], bytes] = staticmethod(secrets.token_bytes)
    """So many unpredictable bytes, for tokens and names."""

    def spawn(self, target: Callable[..., object], name: str, *arguments: Any) -> Thread:
        """Start a daemon thread that calls `target(*arguments)`."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def random_id(self) -> int:
        """Unpredictable number from 1 to 2**63 - 1: of a run, of a request that may be repeated."""
        number = 0
        while not number:
            number = int.from_bytes(self.random_bytes(8)) >> 1
        return number


runtime, use_runtime = replaceable(Runtime())
