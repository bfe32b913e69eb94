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
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from dbelief.errors import Moved
from dbelief.process.runtime import runtime

from ..store.journal import JournalRecord

MOST_QUEUED = 64 << 20
"""Bytes of journal records that may be queued for a follower that catches up, before pushes block on it."""

EARLY_BYTES = 1 << 20
"""Bytes of a record that is sent while the rest of its push is applied; smaller ones are sent when a call waits."""

_LOOK_S = 0.5


class LinkState(Enum):
    """State of the link between a shard and its follower."""

    UNREPLICATED = "unreplicated"
    CATCHING_UP = "catching up"
    IN_SYNC = "in sync"
    LOST = "lost"


class Sender(Protocol):
    """Sender of records to the follower, part of whose work a thread that waits for the follower does itself."""

    @property
    def is_local(self) -> bool:
        """Whether the next acknowledgement has to be read by `receive`; otherwise another thread reads it."""

    def receive(self) -> None:
        """Read the next acknowledgement; waits for it, for some time at most. One thread at a time."""


class _Waiting:
    """A call that waits for the follower until `done`; it is woken then, or to read acknowledgements if it `may_read`.

    Each has an event of its own. With one condition for all, an acknowledgement would wake every call, and end the wait
    of only one.
    """

    def __init__(self, done: Callable[[], bool], may_read: Callable[[], bool]) -> None:
        self.done, self.may_read = done, may_read
        self.woken = runtime.event()


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
    appended
        Number of journal records so far, over all epochs.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.state = LinkState.UNREPLICATED
        self.confirmed = False
        self.why = ""
        self.appended = self._acknowledged = 0  # journal records
        self._needed: int | None = None  # records appended when the last segment was sent: with them it is in sync
        self._complete = False  # the follower has acknowledged every segment
        self._queued = 0  # bytes
        self._records: deque[JournalRecord] = deque()
        self._reader: _Waiting | None = None  # the one of the waiting calls that reads acknowledgements
        self._closed = False
        self._lock = runtime.reentrant_lock()
        self._waiting: dict[_Waiting, None] = {}  # in the order of their calls
        self._work = runtime.event()  # for the sender's thread

    def begin(self, epoch: int, followed: bool) -> None:
        """Begin a link epoch, with a follower or without one; calls that wait for the previous follower return."""
        with self._lock:
            self.epoch = epoch
            self.state = LinkState.CATCHING_UP if followed else LinkState.UNREPLICATED
            self.why = ""
            self._clear()
            self._acknowledged = self.appended
            self._wake()
        self._work.set()

    def close(self) -> None:
        """End the link with its shard's process: calls that wait for the follower fail, for it may lead already."""
        with self._lock:
            self._closed = True
            self.lose(self.epoch, "this shard ends")
            self._wake()
        self._work.set()

    # -- called by pushes ----------------------------------------------------------------------------------

    def append(self, record: JournalRecord) -> None:
        """Queue the record of a change to a segment that the follower has, or is about to receive.

        In sync the numbers stay where they are, which may be a worker's memory: the push waits for the follower, and a
        worker whose push was not acknowledged leaves the memory to the shards (decision 0012). While the follower
        catches up no push waits, and the worker changes them.
        """
        with self._lock:
            if self.state not in (LinkState.CATCHING_UP, LinkState.IN_SYNC):
                return
            self._records.append(record if self.state is LinkState.IN_SYNC else record.owned())
            self._queued += record.nbytes
            self.appended += 1
            early = self.state is LinkState.CATCHING_UP or record.nbytes >= EARLY_BYTES
        if early:
            self._work.set()

    def wake_sender(self) -> None:
        """Wake the thread that waits in `wait_for_records`."""
        self._work.set()

    def wait(self, records: int, timeout_s: float, sender: Sender | None = None) -> None:
        """Block until the follower has the first `records` journal records, or no follower has to be waited for.

        Parameters
        ----------
        sender
            Sender of this link, whose acknowledgements the calling thread reads where no other thread does: a
            thread between costs two wake-ups in each push.

        Raises
        ------
        Moved
            After `timeout_s`; a retry may succeed.
        """
        epoch = self.epoch

        def done() -> bool:
            if self.state is LinkState.IN_SYNC and self.epoch == epoch:
                return self._acknowledged >= records
            free = self.state is LinkState.UNREPLICATED or self.epoch != epoch
            return free or (self.state is LinkState.CATCHING_UP and self._queued <= MOST_QUEUED)

        if not self._wait_for(done, epoch, timeout_s, sender):
            why = f"was lost: {self.why}" if self.state is LinkState.LOST else "has not acknowledged it yet"
            raise Moved(f"nothing is acknowledged without the follower, which {why}")

    def _wait_for(self, done: Callable[[], bool], epoch: int, timeout_s: float, sender: Sender | None) -> bool:
        """Wait until `done`, reading acknowledgements where no other thread does; False after `timeout_s`."""
        until_s = runtime.monotonic() + timeout_s
        call = _Waiting(done, lambda: sender is not None and self._is_active(epoch) and sender.is_local)
        with self._lock:
            if done():
                return True
            self._waiting[call] = None
            self._wake()
        try:
            while True:
                if self._reader is call and sender is not None:
                    sender.receive()
                else:
                    call.woken.wait(max(0.0, until_s - runtime.monotonic()))
                with self._lock:
                    if done():
                        return True
                    if self._closed or runtime.monotonic() >= until_s:
                        return False
                    self._go_on(call)
        finally:
            with self._lock:
                del self._waiting[call]
                if self._reader is call:
                    self._reader = None
                    self._wake()

    def _go_on(self, call: _Waiting) -> None:
        """Continue the wait of a call that was woken: it may have to read no longer. The lock is held."""
        if self._reader is call and not call.may_read():
            self._reader = None
        if self._reader is not call:
            call.woken.clear()

    def _wake(self) -> None:
        """Wake the calls whose wait is over, and one to read acknowledgements where none does. The lock is held."""
        for call in self._waiting:
            if self._closed or call.done():
                call.woken.set()
            elif self._reader is None and call.may_read():
                self._reader = call
                call.woken.set()

    # -- called by the follower stream ---------------------------------------------------------------------

    def wait_for_records(self, timeout_s: float) -> None:
        """Wait until records may be queued, or the link has changed; `timeout_s` at most."""
        if not self._records:
            self._work.wait(timeout_s)
        self._work.clear()

    def take(self, epoch: int, most_bytes: int) -> tuple[list[JournalRecord], int] | None:
        """The queued records, up to `most_bytes`, and the count taken including them; None if the link has ended.

        Each record is returned only once: a caller that fails to send it must call `lose`.
        """
        with self._lock:
            if not self._is_active(epoch):
                return None
            taken: list[JournalRecord] = []
            filled = 0
            while self._records and (not taken or filled + self._records[0].nbytes <= most_bytes):
                taken.append(self._records.popleft())
                filled += taken[-1].nbytes
            self._queued -= filled
            if self.state is LinkState.CATCHING_UP:
                self._wake()  # pushes wait for room in the queue
            return taken, self.appended - len(self._records)

    def drain(self, epoch: int, records: int, sender: Sender | None = None) -> None:
        """Block until the follower has the first `records` journal records, or the link has ended; see `wait`."""

        def done() -> bool:
            return self._acknowledged >= records or not self._is_active(epoch)

        while not self._wait_for(done, epoch, _LOOK_S, sender):
            pass

    def wake_waiting(self) -> None:
        """Let waiting threads look again whether one of them has to read acknowledgements."""
        with self._lock:
            self._wake()

    @property
    def behind(self) -> bool:
        """Whether records are queued."""
        return bool(self._records)

    def is_current(self, epoch: int) -> bool:
        """Whether the link of this epoch is still active."""
        with self._lock:
            return self._is_active(epoch)

    def _clear(self) -> None:
        self._records.clear()
        self._queued, self._needed, self._complete, self.confirmed = 0, None, False, False

    def _is_active(self, epoch: int) -> bool:
        return self.epoch == epoch and self.state in (LinkState.CATCHING_UP, LinkState.IN_SYNC)

    def has_segments(self, epoch: int) -> None:
        """Record that every segment has been sent: from now on acknowledgements wait for the follower."""
        with self._lock:
            if self._is_active(epoch):
                self.state, self._needed = LinkState.IN_SYNC, self.appended

    def acknowledged(self, epoch: int, records: int, complete: bool) -> None:
        """Record that the follower has the first `records` journal records; `complete`: and every segment."""
        with self._lock:
            if self._is_active(epoch):
                self._acknowledged = max(self._acknowledged, records)
                self._complete = self._complete or complete
                self.confirmed = self._complete and self._needed is not None and self._acknowledged >= self._needed
                self._wake()

    def lose(self, epoch: int, why: str) -> None:
        """Mark the follower as lost; if it was in sync, waiting calls block until the coordinator's next command."""
        with self._lock:
            if self._is_active(epoch):
                self.state = LinkState.LOST if self.state is LinkState.IN_SYNC else LinkState.UNREPLICATED
                self.why = why or "it ended"
                self._clear()
                self._wake()
        self._work.set()
