"""Engine wrapper that counts messages, bytes and wait times, to check cost formulas and to find slow ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        self._engine = engine
        self._clock: Clock = clock or SystemClock()
        self.messages: Counter[tuple[int, int]] = Counter()
        self.sent_bytes: Counter[tuple[int, int]] = Counter()
        self.taken: defaultdict[int, ReceiveStats] = defaultdict(ReceiveStats)

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._engine.rank

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return self._engine.size

    @property
    def xp(self) -> Any:
        """Module of the arrays, numpy or cupy."""
        return self._engine.xp

    def start(self, messages: Sequence[Message]) -> Handle:
        """Start messages and count them."""
        begin_s = self._clock.now()
        handle = self._engine.start(messages)
        for message in messages:
            if message.sends:
                self.messages[self.rank, message.peer] += 1
                self.sent_bytes[self.rank, message.peer] += message.array.nbytes
        return _Timed(self, handle, [message for message in messages if not message.sends], begin_s)

    def arrived(self, messages: Sequence[Message], begin_s: float) -> None:
        """Count received messages that this rank was ready for since `begin_s`."""
        seconds = self._clock.now() - begin_s
        for message in messages:
            taken = self.taken[message.peer]
            taken.messages += 1
            taken.bytes += message.array.nbytes
            taken.seconds += seconds

    def check(self) -> None:
        """Raise RankFailure if a rank has failed."""
        self._engine.check()

    def abort(self, error: BaseException) -> None:
        """Report this rank's failure."""
        self._engine.abort(error)

    def close(self) -> None:
        """Close the engine; the counters stay."""
        self._engine.close()


class _Timed:
    """Messages in flight, counted when they are complete."""

    def __init__(self, tracing: TracingEngine, handle: Handle, coming: Sequence[Message], begin_s: float) -> None:
        self._tracing, self._handle, self._coming, self._begin_s = tracing, handle, coming, begin_s

    def wait(self, deadline_s: float) -> None:
        """See `Handle.wait`."""
        self._handle.wait(deadline_s)
        self._tracing.arrived(self._coming, self._begin_s)
