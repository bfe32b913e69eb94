"""An engine that counts what another one sends: how a formula of messages and bytes is checked without a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .engine import Engine, Handle, Message


class Tracing:
    """Counts what this rank sends through `engine`.

    Attributes
    ----------
    messages, sent_bytes
        By (from, to), where from is this rank: the counters of all ranks can be added up.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.messages: Counter[tuple[int, int]] = Counter()
        self.sent_bytes: Counter[tuple[int, int]] = Counter()

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._engine.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._engine.size

    @property
    def xp(self) -> Any:
        """Module of the arrays, numpy or cupy."""
        return self._engine.xp

    def start(self, messages: Sequence[Message]) -> Handle:
        """Count, and start."""
        handle = self._engine.start(messages)
        for message in messages:
            if message.sends:
                self.messages[self.rank, message.peer] += 1
                self.sent_bytes[self.rank, message.peer] += message.array.nbytes
        return handle

    def check(self) -> None:
        """Raise RankDied where a rank has failed."""
        self._engine.check()

    def abort(self, error: BaseException) -> None:
        """This rank failed."""
        self._engine.abort(error)

    def close(self) -> None:
        """Close the engine; the counters stay."""
        self._engine.close()
