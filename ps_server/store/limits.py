"""How much of what a shard keeps for others they may make it keep: past that they are refused, and nothing is made."""

from __future__ import annotations

import threading
from collections.abc import Collection

from dbelief.core.push import Pusher
from dbelief.errors import Rejected

MOST_VECTORS = 256
"""Named vectors; L-BFGS with the longest history that a job may have needs 2 of 100 and a few."""
MOST_PUSHERS = 2048
"""Lives of replicas' ranks that push, until they are settled; a job has at most half as many members at a time."""
MOST_CARRIED = 16_384
"""Arrays that a segment may bring along from another shard: its vectors, the rule's, and what waits or was answered."""
MOST_ROUNDS = 64
"""Rounds that wait; whoever pushes in rounds waits for each to be applied."""

MOST_BLOCKS = 64
"""Blocks of shared memory that a connection has mapped here; a worker has one for each array that it sends or fills."""
MOST_SHARED_BYTES = 256 << 30
"""In blocks of shared memory, of all connections. It is their makers' memory: here it costs a page table of 1/512."""


def check_limit(what: str, key: object, held: Collection[object], most: int) -> None:
    """Let in what is held already, or one more.

    Raises
    ------
    Refused
        There are as many as may be.
    """
    if key not in held and len(held) >= most:
        raise Rejected(f"there are {most} {what} already, and {key!r} would be one more")


class Pushers:
    """Who has pushed, of those whose lives are not settled."""

    def __init__(self, most: int = MOST_PUSHERS) -> None:
        self._most = most
        self._known: set[Pusher] = set()
        self._lock = threading.Lock()

    def admit(self, pusher: Pusher) -> None:
        """Let one push.

        Raises
        ------
        Refused
            There are too many.
        """
        if pusher not in self._known:
            with self._lock:
                check_limit("pushers", pusher, self._known, self._most)
                self._known.add(pusher)

    def forget(self, incarnations: Collection[int]) -> None:
        """Lives that are over for good make room."""
        with self._lock:
            self._known = {pusher for pusher in self._known if pusher.incarnation not in incarnations}
