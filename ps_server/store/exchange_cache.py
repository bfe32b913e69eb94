"""Old centres that a shard has answered and their asker may not have yet, so that a repeated question gets the same."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from dbelief.core.push import EXCHANGE_WINDOW, Push, Pusher

Answer = tuple[int, np.ndarray]
"""Version and numbers of a segment, as they were before."""


@dataclass
class _Message:
    """Answers to one message, by segment.

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
    """The newest answers to each pusher, by message.

    Nothing is kept of a pusher before its first answer, so that a push that is refused leaves no entry.

    Cost: at most `EXCHANGE_WINDOW` messages, 1 MiB each, and the one at hand, for each pusher.
    """

    def __init__(self) -> None:
        self._kept: dict[Pusher, deque[_Message]] = {}
        self._messages = 0
        self._lock = threading.Lock()

    def number(self) -> int:
        """The number of a message that has come."""
        with self._lock:
            self._messages += 1
            return self._messages

    def keep(self, push: Push, message: int, index: int, answer: Answer) -> None:
        """Keep the answer to one segment of a message.

        Replies to earlier exchanges go: their asker has all of them. So does what came more than `EXCHANGE_WINDOW`
        messages before: that many may have been answered in vain, and the first of them come again.
        """
        with self._lock:
            self._messages = max(self._messages, message)  # of a leader, whose place this shard may take
            kept = self._kept.setdefault(push.pusher, deque(maxlen=EXCHANGE_WINDOW + 1))
            if kept and kept[-1].sequence < push.sequence:
                kept.clear()
            for one in kept:
                if (one.sequence, one.number) == (push.sequence, message):
                    one.answers[index] = answer
                    return
            if not kept or kept[-1].sequence == push.sequence:  # else the pusher has gone on, and asks no more
                kept.append(_Message(push.sequence, message, {index: answer}))

    def find(self, push: Push, index: int) -> Answer | None:
        """The answer that was given before, if it is still kept."""
        with self._lock:
            for one in reversed(self._kept.get(push.pusher, ())):
                if one.sequence == push.sequence and index in one.answers:
                    return one.answers[index]
        return None

    def for_segment(self, index: int) -> dict[tuple[Pusher, int], Answer]:
        """What is kept of one segment, by pusher and number of the exchange."""
        with self._lock:
            return {
                (pusher, one.sequence): one.answers[index]
                for pusher, kept in self._kept.items()
                for one in kept
                if index in one.answers
            }

    def import_segment(self, index: int, answers: Mapping[tuple[Pusher, int], Answer]) -> None:
        """Keep what another shard has kept of a segment."""
        with self._lock:
            for (pusher, sequence), answer in answers.items():
                kept = self._kept.setdefault(pusher, deque(maxlen=EXCHANGE_WINDOW + 1))
                if not kept or kept[-1].sequence < sequence:
                    kept.append(_Message(sequence, 0))
                if kept[-1].sequence == sequence:  # else the pusher has gone on, and asks for this no more
                    kept[-1].answers[index] = answer

    def forget(self, incarnations: Collection[int]) -> None:
        """Drop all that was kept for lives that are over."""
        with self._lock:
            for pusher in [pusher for pusher in self._kept if pusher.incarnation in incarnations]:
                del self._kept[pusher]
