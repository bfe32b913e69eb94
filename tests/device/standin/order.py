"""Queues of operations that run later than they are submitted, in any order that CUDA's streams allow.

An operation runs when somebody waits for it, or at a moment that a seeded generator chooses. Before it run all
operations that it must come after: those before it in its queue, those that its queue was told to wait for, and those
that the legacy default stream orders. So what no ordering promises is different from seed to seed.

Beside that, each access to memory is compared with earlier ones by vector clocks: two operations of different queues
that touch the same bytes, one of them writing, with nothing that orders them, are a mistake in every order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Clock = dict[int, int]
"""By queue, the number of its operations that are known to come before."""

LONGEST_QUEUE = 1_000
"""Operations that a queue holds before the oldest ones run, as a real launch queue is bounded."""


class DeviceMistake(Exception):
    """What a real device would take without a word, or answer with wrong numbers."""


@dataclass(frozen=True)
class Access:
    """Bytes [start, stop) of a block that an operation reads or writes."""

    block: Block
    start: int
    stop: int
    writes: bool


@dataclass(eq=False)
class Block:
    """Memory of a device, or pinned memory of the host: who touched which bytes last.

    Attributes
    ----------
    used
        Bytes of it that were asked for last.
    touched
        By queue: (start, stop, writes) and the number of the last operation that did that.
    """

    address: int
    size: int
    device: int
    used: int
    touched: dict[int, dict[tuple[int, int, bool], int]] = field(default_factory=dict)


@dataclass
class _Operation:
    name: str
    run: Callable[[], None]
    after: list[tuple[Queue, int]]


class Queue:
    """One stream's operations, first in, first out.

    Attributes
    ----------
    default, blocking
        Whether it is its device's legacy default stream; whether it is ordered with that one.
    submitted, done
        Operations so far.
    clock
        What comes before the next operation.
    """

    def __init__(self, number: int, device: int, default: bool, blocking: bool) -> None:
        self.number, self.device, self.default, self.blocking = number, device, default, blocking
        self.submitted = self.done = 0
        self.clock: Clock = {}
        self.pending: deque[_Operation] = deque()
        self.after: list[tuple[Queue, int]] = []


@dataclass
class Mark:
    """A place in a queue, as an event records it.

    Attributes
    ----------
    passed_s
        When the queue came past it; None before.
    """

    queue: Queue
    count: int
    clock: Clock
    passed_s: float | None = None


class Order:
    """All queues of a process.

    Parameters
    ----------
    seed
        Of the moments at which operations run of themselves.
    eagerness
        How often, for each operation submitted, some that are pending run: 0, as late as is allowed; 1, at once.
    halts
        Whether operations that nothing orders end the call that submits the second one; else they are noted, and run
        as they would on a device.

    Attributes
    ----------
    mistakes
        Each one so far: threads of a job may hide what they raise.
    """

    def __init__(self, seed: int, eagerness: float, halts: bool) -> None:
        self.lock = threading.RLock()
        self.mistakes: list[str] = []
        self._random, self._eagerness, self._halts = random.Random(seed), eagerness, halts
        self._queues: dict[int, Queue] = {}
        self._known: Clock = {}
        self._made = 0

    def make(self, device: int, default: bool = False, blocking: bool = False) -> Queue:
        """Add a queue."""
        with self.lock:
            self._made += 1
            queue = self._queues[self._made] = Queue(self._made, device, default, blocking)
            return queue

    def mistake(self, text: str) -> DeviceMistake:
        """Note a mistake, and give the error to raise."""
        self.mistakes.append(text)
        return DeviceMistake(text)

    def submit(self, queue: Queue, name: str, run: Callable[[], None], accesses: Iterable[Access] = ()) -> None:
        """Append an operation to a queue."""
        with self.lock:
            _join(queue.clock, self._known)
            for other in self._queues.values():
                ordered = other.blocking if queue.default else other.default and queue.blocking
                if ordered and other.device == queue.device and other is not queue:
                    queue.after.append((other, other.submitted))
                    _join(queue.clock, other.clock)
            queue.submitted += 1
            queue.clock[queue.number] = queue.submitted
            queue.pending.append(_Operation(name, run, queue.after))
            queue.after = []
            for access in accesses:
                self._note(queue, name, access)
            self._run_some(queue)

    def mark(self, queue: Queue) -> Mark:
        """The place after all operations of a queue so far."""
        with self.lock:
            mark = Mark(queue, 0, {})

            def pass_by() -> None:
                mark.passed_s = time.perf_counter()

            self.submit(queue, "event", pass_by)
            mark.count, mark.clock = queue.submitted, dict(queue.clock)
            return mark

    def wait_for(self, queue: Queue, mark: Mark) -> None:
        """Let later operations of a queue come after a mark."""
        with self.lock:
            queue.after.append((mark.queue, mark.count))
            _join(queue.clock, mark.clock)

    def passed(self, mark: Mark) -> bool:
        """Whether a queue has come past a mark; asked again and again, it will have."""
        with self.lock:
            if mark.queue.done < mark.count:
                self._advance(mark.queue, min(mark.count, mark.queue.done + self._random.randint(0, 3)))
            if mark.queue.done >= mark.count:
                _join(self._known, mark.clock)
                return True
            return False

    def reach(self, mark: Mark) -> None:
        """Run what comes before a mark; the host knows of it then."""
        with self.lock:
            self._advance(mark.queue, mark.count)
            _join(self._known, mark.clock)

    def drain(self, queue: Queue) -> None:
        """Run all of a queue; the host knows of it then."""
        self.reach(Mark(queue, queue.submitted, queue.clock))

    def of(self, device: int) -> list[Queue]:
        """The queues of a device."""
        with self.lock:
            return [queue for queue in self._queues.values() if queue.device == device]

    def drop(self, queue: Queue) -> None:
        """Forget a queue whose stream is gone once it is empty and the host has waited for it; else it goes on."""
        with self.lock:
            if not queue.pending and self._known.get(queue.number, 0) >= queue.submitted:
                del self._queues[queue.number]
                for clock in (self._known, *(other.clock for other in self._queues.values())):
                    clock.pop(queue.number, None)

    def _run_some(self, submitted: Queue) -> None:
        if len(submitted.pending) > LONGEST_QUEUE:
            self._advance(submitted, submitted.done + 1)
        if self._random.random() < self._eagerness:
            queue = self._random.choice([one for one in self._queues.values() if one.pending])
            self._advance(queue, queue.done + self._random.randint(1, len(queue.pending)))

    def _advance(self, queue: Queue, count: int) -> None:
        while queue.done < count:
            operation = queue.pending[0]
            for other, needed in operation.after:
                self._advance(other, needed)
            queue.pending.popleft()
            queue.done += 1
            try:
                operation.run()
            except Exception as error:
                raise self.mistake(f"{operation.name}: {error}") from error

    def _note(self, queue: Queue, name: str, access: Access) -> None:
        block, here = access.block, (access.start, access.stop, access.writes)
        for number, touched in list(block.touched.items()):
            if number == queue.number:
                continue
            if number not in self._queues:
                del block.touched[number]
                continue
            seen = queue.clock.get(number, 0)
            for (start, stop, wrote), count in touched.items():
                if count > seen and (wrote or access.writes) and start < access.stop and access.start < stop:
                    did, does = ("wrote" if wrote else "reads"), ("writes" if access.writes else "reads")
                    mistake = self.mistake(
                        f"{name} on stream {queue.number} {does} what stream {number} {did}, and nothing orders them"
                    )
                    if self._halts:
                        raise mistake
        block.touched.setdefault(queue.number, {})[here] = queue.submitted


def _join(clock: Clock, other: Clock) -> None:
    for number, count in other.items():
        if clock.get(number, 0) < count:
            clock[number] = count
