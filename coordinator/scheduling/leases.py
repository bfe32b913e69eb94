"""Leases of training data: ranges of each epoch's permutation. No clock, no socket.

A lease is done when all its pushes are acknowledged. When its holder fails, the shards' ledgers give the number of its
pushes that were applied; the rest of the range returns to the pool. So nothing is skipped, and at most one push, which
some segments had applied and others had not, is trained twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dbelief.core.lease import DataLease, FetchPushSchedule

from ..core.ledgers import Applied
from ..core.tracked import TrackedDict


@dataclass
class Outstanding:
    """A lease and its holder."""

    lease: DataLease
    replica: int
    incarnation: int
    pushes: int = 0  # acknowledged, as far as its holder reported

    @property
    def reached(self) -> int:
        """Number of the holder's last push that was acknowledged: those before the lease were."""
        return self.lease.first_sequence - 1 + self.pushes

    def row(self) -> list[Any]:
        """All fields, JSON-serialisable."""
        return [dict(vars(self.lease)), self.replica, self.incarnation, self.pushes]


@dataclass
class Leases:
    """The pool of one job's data.

    Attributes
    ----------
    epoch_samples
        Samples in an epoch.
    total
        Samples after which no more are leased.
    size
        Samples in a full lease.
    pushes
        Pushes known to be done since this object was created; it grows as more become known.
    expired
        Leases that this object has revoked unfinished.
    outside
        Samples of the total that clients have trained, without leases.
    outstanding
        The leases that are not done, by id.
    reached_before
        By incarnation, number of its last push in its finished leases.
    ended
        Of incarnations that ended after the newest complete set began: number of the last push that all segments had.
    """

    epoch_samples: int
    total: int
    size: int
    cadence: FetchPushSchedule
    epoch: int = 0
    position: int = 0
    leased: int = 0
    done: int = 0
    pushes: int = 0
    expired: int = 0
    outside: int = 0
    next_id: int = 1
    returned: deque[tuple[int, int, int]] = field(default_factory=deque)
    outstanding: TrackedDict[int, Outstanding] = field(default_factory=TrackedDict)
    reached_before: TrackedDict[int, int] = field(default_factory=TrackedDict)
    ended: TrackedDict[int, int] = field(default_factory=TrackedDict)
    _held: dict[int, dict[int, Outstanding]] = field(default_factory=dict)  # the outstanding ones by incarnation
    _in_set: set[int] = field(default_factory=set)  # of the ended: those whose pushes the set under way holds
    _set_running: bool = False
    _finished_since_set: list[Outstanding] = field(default_factory=list)

    def grant(
        self,
        replica: int,
        incarnation: int,
        first_sequence: int,
        at_most: int | None = None,
        clock: int = 0,
        member_epoch: int = 0,
        stride: int = 1,
        size: int | None = None,
    ) -> DataLease | None:
        """Lease the next range, returned ones first; None when nothing is left (or `at_most` is 0).

        `size`: samples in a full lease; None: those of the pool.
        """
        room = self.room(at_most, size)
        if not room:
            return None
        epoch, start, stop = self._next_range(room)
        lease = DataLease(self.next_id, epoch, start, stop, first_sequence, self.leased, clock, member_epoch, stride)
        self.next_id += 1
        self.leased += lease.samples
        self._hold(Outstanding(lease, replica, incarnation))
        return lease

    def _hold(self, held: Outstanding) -> None:
        self.outstanding[held.lease.id] = held
        self._held.setdefault(held.incarnation, {})[held.lease.id] = held

    def _release(self, held: Outstanding) -> None:
        del self.outstanding[held.lease.id]
        mine = self._held[held.incarnation]
        del mine[held.lease.id]
        if not mine:
            del self._held[held.incarnation]

    def _held_by(self, incarnation: int) -> list[Outstanding]:
        return list(self._held.get(incarnation, {}).values())

    def empty(self, first_sequence: int, clock: int) -> DataLease:
        """A lease of no samples, for a group member without data; it is not tracked as outstanding."""
        self.next_id += 1
        return DataLease(self.next_id - 1, self.epoch, 0, 0, first_sequence, self.leased, clock)

    @property
    def left(self) -> int:
        """Samples of the total that are not leased."""
        return self.total - self.outside - self.leased

    def room(self, at_most: int | None = None, size: int | None = None) -> int:
        """Samples that a lease could hold now."""
        full = self.size if size is None else size
        room = min(full, self.left, full if at_most is None else at_most)
        return max(0, room) if self.epoch_samples else 0

    def _next_range(self, room: int) -> tuple[int, int, int]:
        if self.returned:
            epoch, start, stop = self.returned.popleft()
            if stop - start > room:
                self.returned.appendleft((epoch, start + room, stop))
                stop = start + room
            return epoch, start, stop
        if self.position == self.epoch_samples:
            self.epoch, self.position = self.epoch + 1, 0
        start = self.position
        self.position = min(self.epoch_samples, start + room)
        return self.epoch, start, self.position

    def find_unstarted(self, incarnation: int, next_sequence: int) -> DataLease | None:
        """The lease that an incarnation holds and has not begun: it repeats its request because the reply was lost."""
        leases = (held.lease for held in self._held_by(incarnation))
        return next((lease for lease in leases if lease.first_sequence == next_sequence), None)

    def acknowledge(self, lease_id: int, pushes: int) -> int:
        """Record that the first `pushes` pushes of a lease are done; the number of samples newly done."""
        held = self.outstanding.get(lease_id)
        if held is None:
            return 0
        newly = self._count(held, pushes)
        if lease_id not in self.outstanding and self._set_running:
            self._finished_since_set.append(held)
        return newly

    def _count(self, held: Outstanding, pushes: int) -> int:
        if pushes <= held.pushes:
            return 0
        samples = held.lease.samples
        before = self.cadence.samples_in(samples, held.pushes)
        now = self.cadence.samples_in(samples, pushes)
        self.pushes += pushes - held.pushes
        held.pushes = pushes
        self.outstanding.touch(held.lease.id)
        self.done += now - before
        if now == samples:
            self._release(held)
            reached = self.reached_before.get(held.incarnation, 0)
            self.reached_before[held.incarnation] = max(held.reached, reached)
        return now - before

    def revoke(self, incarnation: int, lowest: int, highest: int) -> tuple[int, int]:
        """Return the unfinished part of an ended incarnation's leases to the pool.

        Its ledgers must be final, and not read while shards write a set: a set written before would lack some of its
        pushes, one written after holds them all. (Fences and sets are executed one at a time, in order.)

        Parameters
        ----------
        lowest, highest
            Numbers of its last push that every segment, and that some segment, has applied.

        Returns
        -------
        tuple
            Samples newly known to be done, and pushes that will be trained twice (for a failed replica 0 or 1; the
            segments of a set may be further apart).
        """
        newly = twice = 0
        self._finished_since_set = [h for h in self._finished_since_set if h.incarnation != incarnation]
        for held in self._held_by(incarnation):
            lease = held.lease
            pushes = self.cadence.pushes(lease.samples)
            applied = _within(pushes, lowest - lease.first_sequence + 1)
            newly += self._count(held, applied)
            if lease.id not in self.outstanding:
                continue
            done = self.cadence.samples_in(lease.samples, held.pushes)
            self.returned.append((lease.epoch, lease.start + done, lease.stop))
            self.leased -= lease.samples - done
            self._release(held)
            self.expired += 1
            # A push is trained twice where some segment applied a number of this lease that not all have.
            twice += max(0, _within(pushes, highest - lease.first_sequence + 1) - max(applied, held.pushes))
        self.reached_before.pop(incarnation, None)
        if lowest:
            self.ended[incarnation] = lowest  # what it lost before is counted
        return newly, twice

    def reached(self, incarnation: int) -> int:
        """Number of the last push of an incarnation that is known to be acknowledged; 0: none."""
        held = [one.reached for one in self._held_by(incarnation)]
        return max(0, *held, self.reached_before.get(incarnation, 0))

    def pushers(self) -> set[int]:
        """Incarnations that have not ended, and of which a push is known to be acknowledged."""
        return self._held.keys() | self.reached_before.keys()

    def lost_at_restore(self, lowest: Mapping[int, int]) -> int:
        """Pushes of incarnations that have ended since the newest set, which a shard that was restored from it lacks.

        `lowest`: by incarnation, number of its last push that every segment of the shard has. Counted once, also where
        another shard lacks them too.
        """
        lost = 0
        for incarnation, reached in self.ended.items():
            kept = min(reached, lowest.get(incarnation, 0))
            lost += reached - kept
            self.ended[incarnation] = kept
        return lost

    @property
    def finished(self) -> bool:
        """Whether everything is leased and acknowledged."""
        return self.leased + self.outside >= self.total and not self.outstanding

    def holders(self) -> dict[int, int]:
        """The incarnations that hold leases: replica by incarnation."""
        return {held.incarnation: held.replica for held in self.outstanding.values()}

    def finish_implicitly(self, incarnation: int, next_sequence: int) -> int:
        """Acknowledge the earlier leases of an incarnation that requests work, reported or not; samples newly done."""
        newly = 0
        for held in self._held_by(incarnation):
            pushes = self.cadence.pushes(held.lease.samples)
            if held.lease.first_sequence + pushes <= next_sequence:
                newly += self.acknowledge(held.lease.id, pushes)
        return newly

    # -- snapshots ---------------------------------------------------------------------------------------

    def begin_set(self) -> None:
        """Mark the start of a snapshot set: leases that end from now on may not be in it."""
        self._set_running = True
        self._in_set = set(self.ended)
        self._finished_since_set.clear()

    def end_set(self, complete: bool) -> None:
        """Mark the end of a snapshot set, complete or aborted."""
        self._set_running = False
        if complete:
            for incarnation in self._in_set & self.ended.keys():
                del self.ended[incarnation]
        self._finished_since_set.clear()

    def state(self) -> dict[str, Any]:
        """The state for a snapshot set, as of now, while the shards wrote since `begin_set`."""
        held = [*self._finished_since_set, *self.outstanding.values()]
        return {
            **self.figures(),
            "ended": list(self.ended.items()),
            "reached": list(self.reached_before.items()),
            "held": [one.row() for one in held],
        }

    def figures(self) -> dict[str, Any]:
        """The state but for the rows of leases and incarnations, JSON-serialisable."""
        return {
            "epoch_samples": self.epoch_samples,
            "cadence": list(vars(self.cadence).values()),
            "epoch": self.epoch,
            "position": self.position,
            "next_id": self.next_id,
            "leased": self.leased,
            "outside": self.outside,
            "done": self.done,
            "returned": list(self.returned),
        }

    def take_over(self, state: dict[str, Any]) -> None:
        """Restore the state of another coordinator; a set that it had begun will not be complete."""
        self._take(state)
        self.ended = TrackedDict(dict(state.get("ended", ())))
        self.reached_before = TrackedDict(dict(state.get("reached", ())))  # an earlier version did not keep it
        for fields, replica, incarnation, pushes in state["held"]:
            held = Outstanding(DataLease(**fields), replica, incarnation, pushes)
            if pushes < self.cadence.pushes(held.lease.samples):
                self._hold(held)

    def _take(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self.next_id, self.leased, self.done = state["next_id"], state["leased"], state["done"]
        self.outside = state.get("outside", 0)
        self.returned = deque((e, a, b) for e, a, b in state["returned"])

    def restore(self, state: dict[str, Any], ledgers: Mapping[int, Applied]) -> tuple[int, dict[int, int]]:
        """Restore a set's state, with the ledgers in it by incarnation.

        Returns the pushes that will be trained twice, and by replica the samples to add to the reported ones.
        """
        self._take(state)
        # The held leases were pushed with the schedule of that run; the job file may have another one now.
        today, self.cadence = self.cadence, FetchPushSchedule(*state["cadence"])
        twice, corrections = 0, dict[int, int]()
        for lease_fields, replica, incarnation, pushes in state["held"]:
            lease = DataLease(**lease_fields)
            reported = self.cadence.samples_in(lease.samples, pushes)
            self.done -= reported
            corrections[replica] = corrections.get(replica, 0) - reported
            self._hold(Outstanding(lease, replica, incarnation))
        for incarnation, replica in {h.incarnation: h.replica for h in self.outstanding.values()}.items():
            applied = ledgers.get(incarnation, Applied())
            newly, doubled = self.revoke(incarnation, applied.lowest, applied.highest)
            twice += doubled
            corrections[replica] += newly
        self.cadence = today
        return twice, corrections


def _within(pushes: int, count: int) -> int:
    """`count`, clamped to the pushes of a lease."""
    return max(0, min(pushes, count))
