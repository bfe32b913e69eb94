"""Cache of exchange replies that workers may not have received yet, so that a retry returns the same old centres."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from dbelief.core.push import EXCHANGE_WINDOW, Push, Pusher
from dbelief.process.runtime import runtime

Answer = tuple[int, np.ndarray]
"""Version and numbers of a segment before the exchange.

The numbers may be in memory of the pusher: it does not change them before it has all replies to the exchange, and does
not repeat it afterwards."""


@dataclass
class _Message:
    """Replies to one message, by segment.

    Attributes
    ----------
    sequence
        Number of the exchange.
    number
        Of the message, among all messages of all pushers from 1; 0 where the segments came from another shard.
    """

    sequence: int
    number: int
    answers: dict[int, Answer] = field(default_factory=dict)


class ExchangeReplyCache:
    """The latest replies to each pusher, by message.

    Nothing is stored for a pusher before its first reply, so that a refused push leaves no entry.

    Cost: at most `EXCHANGE_WINDOW` messages, 1 MiB each, and the current one, for each pusher; no copy where the pusher
    shares memory. A block that it has abandoned since stays mapped until its next exchange, or until it is forgotten.
    """

    def __init__(self) -> None:
        self._kept: dict[Pusher, deque[_Message]] = {}
        self._messages = 0
        self._lock = runtime.lock()

    def number(self) -> int:
        """Assign a number to a received message."""
        with self._lock:
            self._messages += 1
            return self._messages

    def keep(self, push: Push, message: int, index: int, answer: Answer) -> None:
        """Store the reply to one segment of a message.

        Replies to earlier exchanges are dropped: the pusher has received all of them. So are messages older than the
        last `EXCHANGE_WINDOW`: at most that many replies may have been lost, and the oldest is retried first.
        """
        with self._lock:
            self._messages = max(self._messages, message)  # a leader's number: this shard may be promoted in its place
            kept = self._kept.setdefault(push.pusher, deque(maxlen=EXCHANGE_WINDOW + 1))
            if kept and kept[-1].sequence < push.sequence:
                kept.clear()
            for one in kept:
                if (one.sequence, one.number) == (push.sequence, message):
                    one.answers[index] = answer
                    return
            if not kept or kept[-1].sequence == push.sequence:  # else the pusher has proceeded, and will not retry
                kept.append(_Message(push.sequence, message, {index: answer}))

    def find(self, push: Push, index: int) -> Answer | None:
        """The reply that was returned before, if it is still stored."""
        with self._lock:
            for one in reversed(self._kept.get(push.pusher, ())):
                if one.sequence == push.sequence and index in one.answers:
                    return one.answers[index]
        return None

    def for_segment(self, index: int) -> dict[tuple[Pusher, int], Answer]:
        """Stored replies of one segment, by pusher and number of the exchange."""
        with self._lock:
            return {
                (pusher, one.sequence): one.answers[index]
                for pusher, kept in self._kept.items()
                for one in kept
                if index in one.answers
            }

    def import_segment(self, index: int, answers: Mapping[tuple[Pusher, int], Answer]) -> None:
        """Store the replies that another shard has stored for a segment."""
        with self._lock:
            for (pusher, sequence), answer in answers.items():
                kept = self._kept.setdefault(pusher, deque(maxlen=EXCHANGE_WINDOW + 1))
                if not kept or kept[-1].sequence < sequence:
                    kept.append(_Message(sequence, 0))
                if kept[-1].sequence == sequence:  # else the pusher has proceeded, and will not retry this
                    kept[-1].answers[index] = answer

    def forget(self, incarnations: Collection[int]) -> None:
        """Drop all replies to incarnations that have ended."""
        with self._lock:
            for pusher in [pusher for pusher in self._kept if pusher.incarnation in incarnations]:
                del self._kept[pusher]
