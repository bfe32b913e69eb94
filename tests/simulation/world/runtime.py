"""Locks, queues, threads, time and randomness of simulated processes: the `Runtime` of a simulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Literal

from dbelief.process.processor_times import ProcessorTimes
from dbelief.process.runtime import Empty, Runtime

from .scheduler import Process, Scheduler, Task, join_task


class SimulatedLock:
    """A lock; also a semaphore, with `free` above one."""

    __slots__ = ("_free", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler, free: int = 1) -> None:
        self._scheduler = scheduler
        self._free = free
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        scheduler.maybe_switch()
        while not self._free:
            if not blocking:
                return False
            if not scheduler.wait_among(self._waiting, None if timeout < 0 else timeout):
                return False
        self._free -= 1
        return True

    def release(self, *_: object) -> None:
        self._free += 1
        if self._waiting:
            self._scheduler.wake_one(self._waiting)
        self._scheduler.maybe_switch()

    def release_at_once(self) -> None:
        """Release it without a task switch."""
        self._free += 1
        self._scheduler.wake_one(self._waiting)

    __enter__ = acquire
    __exit__ = release


class SimulatedReentrantLock:
    """A lock that its holder can acquire again."""

    __slots__ = ("_count", "_holder", "_lock", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = SimulatedLock(scheduler)
        self._holder: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = self._scheduler.current
        if self._count and self._holder is task:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._holder, self._count = task, 1
        return True

    def release(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._holder = None
            self._lock.release()

    def release_all(self) -> int:
        """Release it completely, without a task switch; returns how often it was acquired."""
        count, self._count, self._holder = self._count, 0, None
        self._lock.release_at_once()
        return count

    def restore(self, count: int) -> None:
        """Acquire it again, as often as before `release_all`."""
        self._lock.acquire()
        self._holder, self._count = self._scheduler.current, count

    __enter__ = acquire
    __exit__ = release


class SimulatedCondition(SimulatedReentrantLock):
    """A condition with a reentrant lock of its own."""

    __slots__ = ("_notified",)

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._notified: list[Task] = []

    def wait(self, timeout: float | None = None) -> bool:
        count = self.release_all()
        woken = self._scheduler.wait_among(self._notified, timeout)
        self.restore(count)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        task = self._scheduler.current
        assert task is not None
        until_s = None if timeout is None else self._scheduler.now_s + timeout / task.process.rate
        result = predicate()
        while not result:
            left_s = None if until_s is None else (until_s - self._scheduler.now_s) * task.process.rate
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(n):
            self._scheduler.wake_one(self._notified)

    def notify_all(self) -> None:
        self.notify(len(self._notified))


class SimulatedEvent:
    """A flag that tasks can wait for."""

    __slots__ = ("_scheduler", "_set", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._scheduler.wake_all(self._waiting)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.maybe_switch()
        if not self._set and self._scheduler.current is not None:
            self._scheduler.wait_among(self._waiting, timeout)
        return self._set


class SimulatedQueue:
    """First in, first out, between tasks."""

    __slots__ = ("_items", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiting: list[Task] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._scheduler.wake_one(self._waiting)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        scheduler = self._scheduler
        scheduler.maybe_switch()
        while not self._items:
            if not block or scheduler.current is None or not scheduler.wait_among(self._waiting, timeout):
                raise Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


class SimulatedThread:
    """A task, as a thread."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler, self._task = scheduler, task

    def join(self, timeout: float | None = None) -> None:
        join_task(self._scheduler, self._task, timeout)

    def is_alive(self) -> bool:
        return not self._task.over


class _SimulatedFuture(Future[Any]):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._condition = SimulatedCondition(scheduler)  # type: ignore[assignment]  # in place of a real one


class SimulatedExecutor(Executor):
    """At most `threads` of its calls run at once."""

    def __init__(self, runtime: SimulatedRuntime, threads: int, name: str) -> None:
        self._runtime, self._name = runtime, name
        self._free = SimulatedLock(runtime.scheduler, threads)

    def submit(self, call: Callable[..., Any], /, *words: Any, **named: Any) -> Future[Any]:
        future = _SimulatedFuture(self._runtime.scheduler)
        self._runtime.spawn(self._run, self._name, future, partial(call, *words, **named))
        return future

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        with self._free:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:
                    future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> Literal[None]:
        return None


class SimulatedRuntime(Runtime):
    """What `Runtime` makes, for the tasks of a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        new: Any = partial
        self.lock = new(SimulatedLock, scheduler)
        self.reentrant_lock = new(SimulatedReentrantLock, scheduler)
        self.semaphore = new(SimulatedLock, scheduler)
        self.condition = new(SimulatedCondition, scheduler)
        self.event = new(SimulatedEvent, scheduler)
        self.queue = new(SimulatedQueue, scheduler)
        self.executor = new(SimulatedExecutor, self)
        self.monotonic = self._monotonic
        self.monotonic_ns = lambda: int(1e9 * self._monotonic())
        self.wall = self._wall
        self.sleep = self._sleep
        self.random_bytes = scheduler.random.randbytes
        self.processor_times = lambda: ProcessorTimes(0.0, 0.0)  # real times are not the seed's

    @property
    def process(self) -> Process:
        """The process of the running task."""
        task = self.scheduler.current
        assert task is not None, "no task runs"
        return task.process

    def spawn(self, target: Callable[..., object], name: str, *arguments: Any) -> SimulatedThread:
        return SimulatedThread(self.scheduler, self.scheduler.spawn(self.process, name, partial(target, *arguments)))

    def _monotonic(self) -> float:
        task = self.scheduler.current
        if task is None:
            return self.scheduler.now_s
        return task.process.offset_s + task.process.rate * self.scheduler.now_s

    def _wall(self) -> float:
        task = self.scheduler.current
        return self.scheduler.now_s + (task.process.wall_s if task is not None else 0.0)

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.scheduler.wait(seconds)
        else:
            self.scheduler.maybe_switch()
