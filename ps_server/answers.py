"""Old centres that a shard has answered and their asker may not have yet, so that a repeated question gets the same."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping

import numpy as np

from dbelief.pushes import WINDOW, Pusher

Answer = tuple[int, np.ndarray]
"""Version and numbers of a segment, as they were before."""


class Answers:
    """The newest answers to each pusher, by message: number of the exchange, and answers by segment.

    Cost: at most `WINDOW` messages, 1 MiB each, and the one at hand, for each pusher.
    """

    def __init__(self) -> None:
        self._kept: dict[Pusher, deque[tuple[int, dict[int, Answer]]]] = {}
        self._followed: dict[Pusher, int] = {}  # of another shard's: the message at hand
        self._messages = 0
        self._lock = threading.Lock()

    def begin(self, pusher: Pusher, sequence: int) -> int:
        """A message comes: what came more than `WINDOW` messages before was answered, and all of earlier exchanges.

        That many may have been answered in vain, and the first of them come again.

        Returns its number, of all messages of all pushers from 1.
        """
        with self._lock:
            self._messages += 1
            kept = self._kept.setdefault(pusher, deque(maxlen=WINDOW + 1))
            if kept and kept[-1][0] < sequence:
                kept.clear()
            kept.append((sequence, {}))
            return self._messages

    def follow(self, pusher: Pusher, sequence: int, message: int) -> None:
        """As `begin`, where another shard tells of its messages by rising number, segment by segment."""
        if self._followed.get(pusher) != message:
            self._followed[pusher] = message
            self.begin(pusher, sequence)

    def keep(self, pusher: Pusher, index: int, answer: Answer) -> None:
        """Keep the answer to a segment of the message that began last."""
        self._kept[pusher][-1][1][index] = answer

    def find(self, pusher: Pusher, sequence: int, index: int) -> Answer | None:
        """The answer that was given before, if it is still kept."""
        with self._lock:
            for number, answers in reversed(self._kept.get(pusher, ())):
                if number == sequence and index in answers:
                    return answers[index]
        return None

    def of(self, index: int) -> dict[tuple[Pusher, int], Answer]:
        """What is kept of one segment, by pusher and number of the exchange."""
        with self._lock:
            return {
                (pusher, number): answers[index]
                for pusher, kept in self._kept.items()
                for number, answers in kept
                if index in answers
            }

    def take_in(self, index: int, answers: Mapping[tuple[Pusher, int], Answer]) -> None:
        """Keep what another shard has kept of a segment."""
        with self._lock:
            for (pusher, number), answer in answers.items():
                kept = self._kept.setdefault(pusher, deque(maxlen=WINDOW + 1))
                if not kept or kept[-1][0] < number:
                    kept.append((number, {}))
                if kept[-1][0] == number:  # else the pusher has gone on, and asks for this no more
                    kept[-1][1][index] = answer

    def forget(self, incarnations: Collection[int]) -> None:
        """Drop all that was kept for lives that are over."""
        with self._lock:
            for pusher in [pusher for pusher in self._kept if pusher.incarnation in incarnations]:
                del self._kept[pusher]
                self._followed.pop(pusher, None)
