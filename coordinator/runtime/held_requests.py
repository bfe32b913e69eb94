"""Requests for work that are answered when there is some, so that replicas in lockstep need not poll.

A request that finds no work is held in its handler's thread, outside the event loop's lock. It is assigned work again
whenever the machine's offer has changed: a block was formed, or an evaluation queued. So a block begins when its last
replica has requested it, not when the others retry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dbelief.process.runtime import runtime

MOST_HELD = 256
"""Requests held at a time, each with a handler thread; further replicas poll."""
LONGEST_HOLD_S = 5.0
"""Seconds for which a request is held at most, whatever its client permits."""


class HeldRequests:
    """The held requests of one job, at most one for each incarnation. Called by any thread."""

    def __init__(self) -> None:
        self._changed = runtime.condition()  # guards all below
        self._offer: object = None
        self._closed = False
        self._last: dict[int, object] = {}  # by incarnation: its request, where that is held

    def begin(self, incarnation: int) -> None:
        """Supersede the held request of an incarnation, which has sent another one since: its thread is released."""
        with self._changed:
            if self._last.pop(incarnation, None) is not None:
                self._changed.notify_all()

    def hold(self, incarnation: int) -> object | None:
        """Hold a request; its key, None where too many are held."""
        with self._changed:
            if len(self._last) >= MOST_HELD or self._closed:
                return None
            key = self._last[incarnation] = object()
            return key

    def is_last(self, incarnation: int, key: object) -> bool:
        """Whether this request was not superseded."""
        return self._last.get(incarnation) is key

    @contextmanager
    def releasing(self, incarnation: int, key: object) -> Iterator[None]:
        """End the hold of a request with the block."""
        try:
            yield
        finally:
            with self._changed:
                if self.is_last(incarnation, key):
                    del self._last[incarnation]

    def update(self, offer: object) -> None:
        """Wake the held requests if the machine's offer has changed; called after each step, under its lock."""
        if offer != self._offer:
            with self._changed:
                self._offer = offer
                self._changed.notify_all()

    def wait(self, incarnation: int, key: object, offer: object, until_s: float) -> bool:
        """Wait until the offer is another one, `until_s` of the monotonic clock at most.

        Whether it is, and this request is neither superseded nor closed.
        """

        def ended() -> bool:
            return self._closed or not self.is_last(incarnation, key)

        with self._changed:
            left_s = until_s - runtime.monotonic()
            return self._changed.wait_for(lambda: self._offer != offer or ended(), left_s) and not ended()

    def close(self) -> None:
        """Wake all held requests, and hold no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
