"""Processes and threads as greenlets: one runs at a time, in virtual time, in an order that a seed decides.

A task is a thread of a simulated process. It runs until it waits, sleeps, ends, or is preempted: at each operation on a
lock, queue or event the scheduler may let another task run. Between two such operations a task is atomic. Virtual time
passes only while no task can run.
"""

from __future__ import annotations

import heapq
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from greenlet import getcurrent, greenlet

AT_ONCE = 100_000
"""Most steps at one moment of virtual time: a task that never waits takes more."""


STALLS, STALL_S = 0.01, 0.02
"""Share of the switches at which a task stalls, as a thread that the operating system does not run, and mean time."""

RARE = 4
"""At so many executions of a place in the code a task may stall because the place is rare."""

_OWN = frozenset(str(Path(__file__).with_name(name)) for name in ("scheduler.py", "runtime.py"))


class ProcessEnded(BaseException):
    """Raised in a task of an ended process when the simulation is closed, so that its frames are freed."""


class Process:
    """A simulated process.

    Attributes
    ----------
    number
        Of the process in this simulation, from 0: each start of a program has another.
    alive, paused
        Tasks of a process that has ended, or is paused, do not run.
    rate, offset_s, wall_s
        Its monotonic clock is `offset_s + rate * virtual time`, and its wall clock `wall_s` later than virtual time.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.paused = False
        self.rate, self.offset_s, self.wall_s = 1.0, 0.0, 1_700_000_000.0
        self.interrupt: Any = None
        self.held: list[Task] = []  # tasks that became ready while it was paused
        self.on_end: list[Callable[[], None]] = []


class Task:
    """A thread of a simulated process."""

    __slots__ = ("error", "greenlet", "joiners", "name", "over", "process", "token", "waits", "woken")

    def __init__(self, process: Process, name: str, call: Callable[[], object], parent: greenlet) -> None:
        self.process = process
        self.name = name
        self.greenlet = greenlet(lambda: self._run(call), parent)
        self.waits = False
        self.woken = False  # by a notification, not by its timeout
        self.token = 0  # counts its waits: an older timeout is ignored
        self.over = False
        self.error: BaseException | None = None
        self.joiners: list[Task] = []

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except ProcessEnded:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True


class Scheduler:
    """Runs tasks, one at a time.

    Parameters
    ----------
    seed
        Of every choice.

    Attributes
    ----------
    now_s
        Virtual time in seconds.
    steps
        Task switches so far.
    current
        The running task; None in callbacks of timers.
    preempt
        Probability that an operation lets another task run.
    stall_rare
        Probability that a task stalls at an operation that few tasks have stalled at: the time between two operations
        of code that runs seldom, as during a failover, is then as likely to be long as that of code that always runs.
    failed
        Called with each task that an exception has ended.
    trace
        Hash of all choices so far: two runs of a seed have equal ones.
    """

    def __init__(self, seed: int, preempt: float = 0.1, stall_rare: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.current: Task | None = None
        self.preempt = preempt
        self.stall_rare = stall_rare
        self._left = self._operations_until_choice()
        self._stalled: Counter[tuple[object, int]] = Counter()  # by place in the code
        self.failed: Callable[[Task], None] = lambda task: None
        self.trace = 0
        self._main = getcurrent()
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timer_count = 0
        self._tasks: set[Task] = set()
        self._processes = 0
        self._closing = self._stopped = False

    def process(self, name: str) -> Process:
        """A new process, without tasks."""
        self._processes += 1
        return Process(name, self._processes - 1)

    def spawn(self, process: Process, name: str, call: Callable[[], object]) -> Task:
        """Start a task of a process."""
        if self._closing:
            raise ProcessEnded
        task = Task(process, name, call, self._main)
        self._tasks.add(task)
        self._ready.append(task)
        return task

    def at(self, delay_s: float, call: Callable[[], object]) -> None:
        """Call a function after some virtual time; it must not wait."""
        self.at_moment(self.now_s + max(0.0, delay_s), call)

    def at_moment(self, moment_s: float, call: Callable[[], object]) -> None:
        """Call a function at a virtual time, after all that were given for this time before."""
        self._timer_count += 1
        heapq.heappush(self._timers, (moment_s, self._timer_count, call))

    # -- called by the running task ------------------------------------------------------------------------

    def maybe_switch(self) -> None:
        """Let another task run, with probability `preempt`; now and then the running one stalls for longer.

        The number of operations until the next choice is drawn, not a choice at each: most operations only count down.
        """
        self._left -= 1
        if self._left <= 0:
            self._left = self._operations_until_choice()
            if self.current is not None and not self._closing:
                self._choose(self.current)

    def _operations_until_choice(self) -> int:
        """Operations up to the next that may switch tasks: geometrically distributed."""
        chance = self.preempt + self.stall_rare
        if not 0.0 < chance < 1.0:
            return 1 if chance else sys.maxsize
        return 1 + int(math.log(1.0 - self.random.random()) / math.log(1.0 - chance))

    def _choose(self, task: Task) -> None:
        """At an operation that may switch tasks: whether the running one is, and for how long."""
        drawn = self.random.random() * (self.preempt + self.stall_rare)
        if drawn < self.preempt * STALLS or (drawn >= self.preempt and self._is_rare()):
            self.wait(self.random.expovariate(1 / STALL_S))
        elif drawn < self.preempt:
            self._ready.append(task)
            self._switch()

    def _is_rare(self) -> bool:
        """Whether few tasks have stalled at the place in the code that operates on a lock, queue or event now."""
        frame = sys._getframe(3)
        while frame.f_code.co_filename in _OWN and frame.f_back is not None:
            frame = frame.f_back
        place = frame.f_code, frame.f_lineno
        self._stalled[place] += 1
        return self._stalled[place] <= RARE

    def wait(self, timeout_s: float | None) -> bool:
        """Suspend the running task until `wake`, for `timeout_s` of its process's clock; whether it was woken."""
        task = self.current
        if task is None or self._closing:
            raise ProcessEnded
        task.waits, task.woken = True, False
        task.token += 1
        if timeout_s is not None:
            self.at(timeout_s / task.process.rate, partial(self._expire, task, task.token))
        self._main.switch()
        if self._closing:
            raise ProcessEnded
        return task.woken

    def wait_among(self, waiting: list[Task], timeout_s: float | None = None) -> bool:
        """Suspend the running task, listed with those that wait for the same, as `wait` does."""
        task = self.current
        assert task is not None, "a timer waits"
        waiting.append(task)
        woken = self.wait(timeout_s)
        if not woken and task in waiting:  # a notification that came too late may have removed it before
            waiting.remove(task)
        return woken

    def _expire(self, task: Task, token: int) -> None:
        if task.token == token and task.waits:
            self._make_ready(task)

    def wake(self, task: Task) -> bool:
        """End a task's wait; False where its timeout has ended it already."""
        if not task.waits:
            return False
        task.woken = True
        self._make_ready(task)
        return True

    def wake_one(self, waiting: list[Task]) -> None:
        """End the wait of the first of these tasks that still waits, and remove those before it."""
        while waiting:
            if self.wake(waiting.pop(0)):
                return

    def wake_all(self, waiting: list[Task]) -> None:
        """End the waits of all these tasks, and remove them."""
        while waiting:
            self.wake(waiting.pop(0))

    def _make_ready(self, task: Task) -> None:
        task.waits = False
        self._ready.append(task)

    def _switch(self) -> None:
        self._main.switch()
        if self._closing:
            raise ProcessEnded

    # -- called from outside -------------------------------------------------------------------------------

    def stop(self) -> None:
        """End `run` after the present step."""
        self._stopped = True

    def run(self, limit_s: float) -> bool:
        """Run until `stop` is called.

        False where nothing can run any more, virtual time has reached the limit, or some task runs without end while
        it stands still.
        """
        ready, timers, choose = self._ready, self._timers, self.random.random
        most = self.steps + AT_ONCE
        while not self._stopped:
            if ready:
                index = int(choose() * len(ready))
                task = ready[index]
                ready[index] = ready[-1]
                ready.pop()
                self._step(task)
                if self.steps > most:
                    return False
            elif timers and self.now_s < limit_s:
                moment_s, _, call = heapq.heappop(timers)
                if moment_s > self.now_s:
                    self.now_s, most = moment_s, self.steps + AT_ONCE
                call()
            else:
                return False
        return True

    def _step(self, task: Task) -> None:
        process = task.process
        if not process.alive:
            return
        if process.paused:
            process.held.append(task)
            return
        self.steps += 1
        self.trace = hash((self.trace, process.number, task.name, self.now_s))
        self.current = task
        task.greenlet.switch()
        self.current = None
        if task.over:
            self._ended(task)

    def _ended(self, task: Task) -> None:
        self._tasks.discard(task)
        for joiner in task.joiners:
            self.wake(joiner)
        if task.error is not None:
            self.failed(task)

    def end(self, process: Process) -> None:
        """End a process, as SIGKILL does: none of its tasks runs again."""
        process.alive = False
        process.held.clear()
        for call in process.on_end:
            call()

    def pause(self, process: Process) -> None:
        """Suspend all tasks of a process, as SIGSTOP does."""
        process.paused = True

    def resume(self, process: Process) -> None:
        """Let the tasks of a paused process run again."""
        process.paused = False
        self._ready += process.held
        process.held.clear()

    def close(self) -> None:
        """Unwind every task that has not ended."""
        self._closing = True
        for task in list(self._tasks):
            if task.greenlet:  # it has begun, and not ended
                self.current = task
                task.greenlet.throw(ProcessEnded)
        self.current = None
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()


def join_task(scheduler: Scheduler, task: Task, timeout_s: float | None) -> None:
    """Wait until a task has ended."""
    if not task.over and scheduler.current is not None:
        task.joiners.append(scheduler.current)
        scheduler.wait(timeout_s)
