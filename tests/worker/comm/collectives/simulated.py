"""Links that take their time by a formula: the real algorithms run over threads, and clocks are only computed."""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from dbelief.plan.allreduce_cost import Link
from worker.comm import Communicator, run_ranks
from worker.comm.engine import Engine, Handle, Message


class Wires:
    """Between all ranks: when each message has left its sender's link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._lock = threading.Lock()
        self._left: dict[tuple[int, int, int], deque[float]] = {}

    def leaves(self, key: tuple[int, int, int], at_s: float) -> None:
        with self._lock:
            self._left.setdefault(key, deque()).append(at_s)

    def left(self, key: tuple[int, int, int]) -> float:
        with self._lock:
            return self._left[key].popleft()


class Simulated:
    """A rank's engine, with a clock of its own: it sends one message at a time, and takes one at a time."""

    def __init__(self, engine: Engine, wires: Wires) -> None:
        self._engine = engine
        self._wires = wires
        self._out_free_s = 0.0
        self._taken: list[tuple[float, float]] = []
        self.now_s = 0.0
        self.rank, self.size, self.xp = engine.rank, engine.size, engine.xp
        self.check, self.abort, self.close = engine.check, engine.abort, engine.close

    def start(self, messages: Sequence[Message]) -> Handle:
        sent_s = []
        for message in messages:
            if message.sends:
                begin = max(self.now_s, self._out_free_s)
                self._out_free_s = begin + self._wires.link.seconds(message.array.nbytes)
                self._wires.leaves((self.rank, message.peer, message.tag), self._out_free_s)
                sent_s.append(self._out_free_s)
        handle = self._engine.start(messages)

        def wait(deadline_s: float) -> None:
            handle.wait(deadline_s)
            arrived_s = [self._arrival(message) for message in messages if not message.sends]
            self.now_s = max([self.now_s, *arrived_s, *sent_s])

        return Handle(wait)

    def _arrival(self, message: Message) -> float:
        """When a message is here: as it left the other side, or when this side's link has a gap for it."""
        length = self._wires.link.seconds(message.array.nbytes)
        begin = self._wires.left((message.peer, self.rank, message.tag)) - length
        for busy_from, busy_to in self._taken:
            if busy_from < begin + length and begin < busy_to:
                begin = busy_to
        insort(self._taken, (begin, begin + length))
        return begin + length


def simulated_s(
    ranks: int, size: int, link: Link, make: Callable[[Communicator], Callable[[np.ndarray], None]]
) -> float:
    """Seconds until the last rank has the sum of `size` float32."""
    wires = Wires(link)

    def body(comm: Communicator) -> float:
        engine = Simulated(comm.engine, wires)
        make(Communicator(engine))(np.ones(size, np.float32))
        return engine.now_s

    return max(run_ranks(ranks, body, 20.0))
