"""Replication link of a shard to its follower: unsent journal records, and the follower's progress. No wire format.

A push is acknowledged when the follower has it. While a follower catches up, pushes wait only if the queue exceeds
`MOST_QUEUED`, and the coordinator does not rely on it. Once it is in sync, nothing is acknowledged without it. If it is
lost then, nothing is acknowledged at all until the coordinator has recorded that the shard has no follower. Otherwise,
if the shard failed too, the coordinator might promote a follower that lacks acknowledged pushes.

Source: van Renesse and Schneider, Chain Replication for Supporting High Throughput and Availability (OSDI 2004), with
chains of two whose head answers queries: what a worker reads before the follower has it may be lost with the head; the
effect is then as if the worker had never read it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from enum import Enum

from dbelief.errors import Moved

from ..store.journal import JournalRecord

MOST_QUEUED = 64 << 20
"""Bytes of journal records that may be queued for a follower that catches up, before pushes block on it."""


class LinkState(Enum):
    """State of the link between a shard and its follower."""

    ALONE = "alone"
    CATCHING_UP = "catching up"
    WHOLE = "whole"
    LOST = "lost"


class ReplicationLink:
    """Replication link of one shard; thread-safe.

    Attributes
    ----------
    epoch
        Of the coordinator's latest command about the link; 0 before the first.
    link
        State of the link.
    confirmed
        Whether the follower has everything that was acknowledged.
    why
        Why the follower was lost; "" while it is not.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.link = LinkState.ALONE
        self.confirmed = False
        self.why = ""
        self._told = self._acknowledged = 0  # journal records
        self._needed: int | None = None  # records appended when the last segment was sent: with them it is in sync
        self._heard = False  # the follower has acknowledged every segment
        self._queued = 0  # bytes
        self._deeds: deque[JournalRecord] = deque()
        self._changed = threading.Condition()

    def begin(self, epoch: int, followed: bool) -> None:
        """Begin a link epoch, with a follower or without one; calls that wait for the previous follower return."""
        with self._changed:
            self.epoch = epoch
            self.link = LinkState.CATCHING_UP if followed else LinkState.ALONE
            self.why = ""
            self._forget()
            self._acknowledged = self._told
            self._changed.notify_all()

    # -- called by pushes ----------------------------------------------------------------------------------

    def append(self, deed: JournalRecord) -> None:
        """Queue the record of a change to a segment that the follower has, or is about to receive."""
        with self._changed:
            if self.link in (LinkState.CATCHING_UP, LinkState.WHOLE):
                self._deeds.append(deed)
                self._queued += deed.nbytes
                self._told += 1
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Block until the follower has every record appended so far, or until no follower has to be waited for.

        Raises
        ------
        Moved
            After `timeout_s`; a retry may succeed.
        """
        with self._changed:
            epoch, mark = self.epoch, self._told

            def done() -> bool:
                stands = self.link is LinkState.ALONE or self.epoch != epoch
                stands = stands or (self.link is LinkState.CATCHING_UP and self._queued <= MOST_QUEUED)
                return stands or (self.link is LinkState.WHOLE and self._acknowledged >= mark)

            if not self._changed.wait_for(done, timeout_s):
                why = f"was lost: {self.why}" if self.link is LinkState.LOST else "has not heard of it yet"
                raise Moved(f"nothing is acknowledged without the follower, which {why}")

    # -- called by the follower stream ---------------------------------------------------------------------

    def take(self, epoch: int, most_bytes: int, timeout_s: float) -> tuple[list[JournalRecord], int] | None:
        """Next records, and the count taken including them; no records after `timeout_s`; None if the link has ended.

        Each record is returned only once: a caller that fails to send it must call `lose`.
        """
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while not self._deeds and self._runs(epoch) and (left_s := until_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if not self._runs(epoch):
                return None
            taken: list[JournalRecord] = []
            filled = 0
            while self._deeds and (not taken or filled + self._deeds[0].nbytes <= most_bytes):
                taken.append(self._deeds.popleft())
                filled += taken[-1].nbytes
            self._queued -= filled
            self._changed.notify_all()
            return taken, self._told - len(self._deeds)

    @property
    def behind(self) -> bool:
        """Whether records are queued."""
        return bool(self._deeds)

    def is_current(self, epoch: int) -> bool:
        """Whether the link of this epoch is still active."""
        with self._changed:
            return self._runs(epoch)

    def _forget(self) -> None:
        self._deeds.clear()
        self._queued, self._needed, self._heard, self.confirmed = 0, None, False, False

    def _runs(self, epoch: int) -> bool:
        return self.epoch == epoch and self.link in (LinkState.CATCHING_UP, LinkState.WHOLE)

    def has_segments(self, epoch: int) -> None:
        """Record that every segment has been sent: from now on acknowledgements wait for the follower."""
        with self._changed:
            if self._runs(epoch):
                self.link, self._needed = LinkState.WHOLE, self._told

    def acknowledged(self, epoch: int, deeds: int, whole: bool) -> None:
        """Record that the follower has the first `deeds` journal records; `whole`: and every segment."""
        with self._changed:
            if self._runs(epoch):
                self._acknowledged = max(self._acknowledged, deeds)
                self._heard = self._heard or whole
                self.confirmed = self._heard and self._needed is not None and self._acknowledged >= self._needed
                self._changed.notify_all()

    def lose(self, epoch: int, why: str) -> None:
        """Mark the follower as lost; if it was in sync, waiting calls block until the coordinator's next command."""
        with self._changed:
            if self._runs(epoch):
                self.link = LinkState.LOST if self.link is LinkState.WHOLE else LinkState.ALONE
                self.why = why or "it ended"
                self._forget()
                self._changed.notify_all()
