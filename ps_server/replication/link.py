"""Replication link of a shard to its follower: unsent journal records, and the follower's progress. No wire format.

A push is acknowledged when the follower has it. While a follower catches up, pushes wait only if the queue exceeds
`MOST_QUEUED`, and the coordinator does not rely on it. Once it is in sync, nothing is acknowledged without it. If it is
lost then, nothing is acknowledged at all until the coordinator has recorded that the shard has no follower. Otherwise,
if the shard failed too, the coordinator might promote a follower that lacks acknowledged pushes.

Source: van Renesse and Schneider, Chain Replication for Supporting High Throughput and Availability (OSDI 2004), with
chains of two whose head answers queries: what a worker reads before the follower has it may be lost with the head; the
effect is then as if the worker had never read it. A head that may have been replaced asks before it answers
(`ShardController.confirm_leads`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from dbelief.errors import Moved
from dbelief.process.runtime import runtime

from ..store.journal import JournalRecord

MOST_QUEUED = 64 << 20
"""Bytes of journal records that may be queued for a follower that catches up, before pushes block on it."""

_LOOK_S = 0.5


class LinkState(Enum):
    """State of the link between a shard and its follower."""

    UNREPLICATED = "unreplicated"
    CATCHING_UP = "catching up"
    IN_SYNC = "in sync"
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
        self.state = LinkState.UNREPLICATED
        self.confirmed = False
        self.why = ""
        self._appended = self._acknowledged = 0  # journal records
        self._needed: int | None = None  # records appended when the last segment was sent: with them it is in sync
        self._complete = False  # the follower has acknowledged every segment
        self._queued = 0  # bytes
        self._records: deque[JournalRecord] = deque()
        self._changed = runtime.condition()

    def begin(self, epoch: int, followed: bool) -> None:
        """Begin a link epoch, with a follower or without one; calls that wait for the previous follower return."""
        with self._changed:
            self.epoch = epoch
            self.state = LinkState.CATCHING_UP if followed else LinkState.UNREPLICATED
            self.why = ""
            self._clear()
            self._acknowledged = self._appended
            self._changed.notify_all()

    # -- called by pushes ----------------------------------------------------------------------------------

    def append(self, record: JournalRecord) -> None:
        """Queue the record of a change to a segment that the follower has, or is about to receive.

        In sync the numbers stay where they are, which may be a worker's memory: the push waits for the follower, and a
        worker whose push was not acknowledged leaves the memory to the shards (decision 0012). While the follower
        catches up no push waits, and the worker changes them.
        """
        with self._changed:
            if self.state in (LinkState.CATCHING_UP, LinkState.IN_SYNC):
                self._records.append(record if self.state is LinkState.IN_SYNC else record.owned())
                self._queued += record.nbytes
                self._appended += 1
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Block until the follower has every record appended so far, or until no follower has to be waited for.

        Raises
        ------
        Moved
            After `timeout_s`; a retry may succeed.
        """
        with self._changed:
            epoch, appended = self.epoch, self._appended

            def done() -> bool:
                free = self.state is LinkState.UNREPLICATED or self.epoch != epoch
                free = free or (self.state is LinkState.CATCHING_UP and self._queued <= MOST_QUEUED)
                return free or (self.state is LinkState.IN_SYNC and self._acknowledged >= appended)

            if not self._changed.wait_for(done, timeout_s):
                why = f"was lost: {self.why}" if self.state is LinkState.LOST else "has not acknowledged it yet"
                raise Moved(f"nothing is acknowledged without the follower, which {why}")

    # -- called by the follower stream ---------------------------------------------------------------------

    def take(self, epoch: int, most_bytes: int, timeout_s: float) -> tuple[list[JournalRecord], int] | None:
        """Next records, and the count taken including them; no records after `timeout_s`; None if the link has ended.

        Each record is returned only once: a caller that fails to send it must call `lose`.
        """
        until_s = runtime.monotonic() + timeout_s
        with self._changed:
            while not self._records and self._is_active(epoch) and (left_s := until_s - runtime.monotonic()) > 0:
                self._changed.wait(left_s)
            if not self._is_active(epoch):
                return None
            taken: list[JournalRecord] = []
            filled = 0
            while self._records and (not taken or filled + self._records[0].nbytes <= most_bytes):
                taken.append(self._records.popleft())
                filled += taken[-1].nbytes
            self._queued -= filled
            self._changed.notify_all()
            return taken, self._appended - len(self._records)

    def drain(self, epoch: int, records: int) -> None:
        """Block until the follower has the first `records` journal records, or the link has ended."""
        with self._changed:
            while self._acknowledged < records and self._is_active(epoch):
                self._changed.wait(_LOOK_S)

    @property
    def behind(self) -> bool:
        """Whether records are queued."""
        return bool(self._records)

    def is_current(self, epoch: int) -> bool:
        """Whether the link of this epoch is still active."""
        with self._changed:
            return self._is_active(epoch)

    def _clear(self) -> None:
        self._records.clear()
        self._queued, self._needed, self._complete, self.confirmed = 0, None, False, False

    def _is_active(self, epoch: int) -> bool:
        return self.epoch == epoch and self.state in (LinkState.CATCHING_UP, LinkState.IN_SYNC)

    def has_segments(self, epoch: int) -> None:
        """Record that every segment has been sent: from now on acknowledgements wait for the follower."""
        with self._changed:
            if self._is_active(epoch):
                self.state, self._needed = LinkState.IN_SYNC, self._appended

    def acknowledged(self, epoch: int, records: int, complete: bool) -> None:
        """Record that the follower has the first `records` journal records; `complete`: and every segment."""
        with self._changed:
            if self._is_active(epoch):
                self._acknowledged = max(self._acknowledged, records)
                self._complete = self._complete or complete
                self.confirmed = self._complete and self._needed is not None and self._acknowledged >= self._needed
                self._changed.notify_all()

    def lose(self, epoch: int, why: str) -> None:
        """Mark the follower as lost; if it was in sync, waiting calls block until the coordinator's next command."""
        with self._changed:
            if self._is_active(epoch):
                self.state = LinkState.LOST if self.state is LinkState.IN_SYNC else LinkState.UNREPLICATED
                self.why = why or "it ended"
                self._clear()
                self._changed.notify_all()
