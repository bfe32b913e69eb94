"""Engine wrapper that counts messages, bytes and wait times, to check cost formulas and to find slow ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dbelief.process.clock import Clock, SystemClock

from .engine import Engine, Handle, Message


@dataclass
class ReceiveStats:
    """Data received from another rank.

    Attributes
    ----------
    seconds
        Sum of the times from when this rank was ready for a message until it had it. Includes the time in which the
        other rank had nothing to send yet. Concurrent messages each count in full.
    """

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0


class TracingEngine:
    """Counts what this rank sends and receives through `engine`.

    Attributes
    ----------
    messages, sent_bytes
        By (from, to), where from is this rank: the counters of all ranks can be added.
    taken
        Data received, by sending rank.
    """

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self.rank, self.size, self.xp = engine.rank, engine.size, engine.xp
        self.check, self.abort, self.close = engine.check, engine.abort, engine.close
        self._engine = engine
        self._clock: Clock = clock or SystemClock()
        self.messages: Counter[tuple[int, int]] = Counter()
        self.sent_bytes: Counter[tuple[int, int]] = Counter()
        self.taken: defaultdict[int, ReceiveStats] = defaultdict(ReceiveStats)

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages and count them; received ones when their wait is over."""
        begin_s = self._clock.now()
        handle = self._engine.start(messages)
        for message in messages:
            if message.sends:
                self.messages[self.rank, message.peer] += 1
                self.sent_bytes[self.rank, message.peer] += message.array.nbytes

        def wait(deadline_s: float) -> None:
            handle.wait(deadline_s)
            seconds = self._clock.now() - begin_s
            for message in messages:
                if not message.sends:
                    taken = self.taken[message.peer]
                    taken.messages += 1
                    taken.bytes += message.array.nbytes
                    taken.seconds += seconds

        return Handle(wait)
