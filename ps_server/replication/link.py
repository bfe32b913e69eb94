"""A shard and the one that follows it: what that one is still to be told, and how much of it it has. It knows no wire.

A push is acknowledged when the follower has it. Until a follower has all of a shard nobody waits for it, and the
coordinator does not count on it; once it has, nothing is acknowledged without it. Where it is lost then, nothing is
acknowledged at all, until the coordinator has written down that the shard stands alone: else it might, the shard dying
too, go on with a follower that lacks what was acknowledged.

Source: van Renesse and Schneider, Chain Replication for Supporting High Throughput and Availability (OSDI 2004), with
chains of two whose head answers questions: what a worker reads before the follower has it may be lost with the head,
and is then as if the worker had never read it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from enum import Enum

from dbelief.errors import Moved

from ..store.journal import JournalRecord

MOST_QUEUED = 64 << 20
"""Bytes of deeds that may wait for a follower that catches up, before pushes wait for it."""


class LinkState(Enum):
    """How a shard stands with its follower."""

    ALONE = "alone"
    CATCHING_UP = "catching up"
    WHOLE = "whole"
    LOST = "lost"


class ReplicationLink:
    """One shard's; safe to use from several threads.

    Attributes
    ----------
    epoch
        Of the coordinator's last word about it; 0 before the first.
    link
        How it stands.
    confirmed
        Whether the follower has all that was acknowledged.
    why
        What the follower was lost by; "" while it is not.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.link = LinkState.ALONE
        self.confirmed = False
        self.why = ""
        self._told = self._acknowledged = 0  # deeds
        self._needed: int | None = None  # deeds told when the last segment left: with them the follower has everything
        self._heard = False  # it has every segment
        self._queued = 0  # bytes
        self._deeds: deque[JournalRecord] = deque()
        self._changed = threading.Condition()

    def begin(self, epoch: int, followed: bool) -> None:
        """The coordinator's word: a shard follows from now on, or none does. Nobody waits for the one before."""
        with self._changed:
            self.epoch = epoch
            self.link = LinkState.CATCHING_UP if followed else LinkState.ALONE
            self.why = ""
            self._forget()
            self._acknowledged = self._told
            self._changed.notify_all()

    # -- on the side of pushes -----------------------------------------------------------------------------

    def append(self, deed: JournalRecord) -> None:
        """A segment that the follower has, or is about to have, was changed."""
        with self._changed:
            if self.link in (LinkState.CATCHING_UP, LinkState.WHOLE):
                self._deeds.append(deed)
                self._queued += deed.nbytes
                self._told += 1
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when the follower has all that has been done so far, or none is to be waited for.

        Raises
        ------
        Moved
            After `timeout_s`: whoever asks again may find it has.
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

    # -- on the side of the follower -----------------------------------------------------------------------

    def take(self, epoch: int, most_bytes: int, timeout_s: float) -> tuple[list[JournalRecord], int] | None:
        """The next deeds, and how many have been taken with them; none after `timeout_s`; None where the chain is over.

        Cost: they are given out once; whoever loses them says so by `lose`.
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
        """Whether there is more to tell."""
        return bool(self._deeds)

    def is_current(self, epoch: int) -> bool:
        """Whether the chain of this epoch goes on."""
        with self._changed:
            return self._runs(epoch)

    def _forget(self) -> None:
        self._deeds.clear()
        self._queued, self._needed, self._heard, self.confirmed = 0, None, False, False

    def _runs(self, epoch: int) -> bool:
        return self.epoch == epoch and self.link in (LinkState.CATCHING_UP, LinkState.WHOLE)

    def has_segments(self, epoch: int) -> None:
        """Every segment is on its way: from now on the follower is waited for."""
        with self._changed:
            if self._runs(epoch):
                self.link, self._needed = LinkState.WHOLE, self._told

    def acknowledged(self, epoch: int, deeds: int, whole: bool) -> None:
        """The follower has so many deeds; `whole`: and every segment."""
        with self._changed:
            if self._runs(epoch):
                self._acknowledged = max(self._acknowledged, deeds)
                self._heard = self._heard or whole
                self.confirmed = self._heard and self._needed is not None and self._acknowledged >= self._needed
                self._changed.notify_all()

    def lose(self, epoch: int, why: str) -> None:
        """The follower is lost: who waits for it goes on to wait, for the coordinator's word."""
        with self._changed:
            if self._runs(epoch):
                self.link = LinkState.LOST if self.link is LinkState.WHOLE else LinkState.ALONE
                self.why = why or "it ended"
                self._forget()
                self._changed.notify_all()
