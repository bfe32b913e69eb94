"""Upper limits on what clients may make a shard store; a request beyond a limit is refused and nothing is allocated."""

from __future__ import annotations

import threading
from collections.abc import Collection

from dbelief.core.push import Pusher
from dbelief.errors import Rejected

MOST_VECTORS = 256
"""Limit of named vectors; L-BFGS with the longest history that a job may have needs 2 of 100 and a few."""
MOST_PUSHERS = 2048
"""Limit of unsettled incarnations of replicas' ranks that push; a job has at most half as many members at a time."""
MOST_CARRIED = 16_384
"""Limit of arrays of a migrating segment: its vectors, the rule's state, staged gradients and cached replies."""
MOST_ROUNDS = 64
"""Limit of staged rounds; a replica that pushes in rounds waits for each to be applied."""

MOST_BLOCKS = 64
"""Limit of shared-memory blocks mapped per connection; a worker has one for each array that it sends or fills."""
MOST_SHARED_BYTES = 256 << 30
"""Bytes of shared memory over all connections; it is the workers' memory: here it costs a page table of 1/512."""


def check_limit(what: str, key: object, held: Collection[object], most: int) -> None:
    """Accept a key that is held already, or one more.

    Raises
    ------
    Rejected
        The limit is reached.
    """
    if key not in held and len(held) >= most:
        raise Rejected(f"there are {most} {what} already, and {key!r} would be one more")


class Pushers:
    """Pushers whose incarnations are not settled."""

    def __init__(self, most: int = MOST_PUSHERS) -> None:
        self._most = most
        self._known: set[Pusher] = set()
        self._lock = threading.Lock()

    def admit(self, pusher: Pusher) -> None:
        """Register a pusher.

        Raises
        ------
        Rejected
            There are too many.
        """
        if pusher not in self._known:
            with self._lock:
                check_limit("pushers", pusher, self._known, self._most)
                self._known.add(pusher)

    def forget(self, incarnations: Collection[int]) -> None:
        """Remove incarnations that have ended for good."""
        with self._lock:
            self._known = {pusher for pusher in self._known if pusher.incarnation not in incarnations}
