"""Leases of training data: ranges of each epoch's permutation. No clock, no socket.

The holder of leases trains them in the order in which they were granted. Each of its pushes names the lease and the
position up to which it completes it, and thereby all earlier ones, but for the samples that it reported as skipped. A
lease is done when its last position is acknowledged. When its holder fails, the shards' ledgers give the lease and the
position of the last push that all segments have; the rest returns to the pool. So nothing is skipped, and at most one
push, which some segments had applied and others had not, is trained twice.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from dbelief.core.lease import DataLease

from ..core.ledgers import Applied
from ..core.tracked import TrackedDict

MOST_BLOCKS = 8
"""Blocks of data in a lease, where a lease of the usual size has fewer."""

Skipped = tuple[int, int, int]
"""Samples that a holder does not train: id of the lease, first sample and one past the last, from the lease's first."""


@dataclass
class Outstanding:
    """A lease and its holder.

    Attributes
    ----------
    since
        Number of the holder's last push that was known to be acknowledged when the lease was granted.
    position
        Samples, from the lease's first, that are done or skipped, as far as the holder reported.
    skipped
        Ranges of samples, from the lease's first, that its holder does not train. They are in the pool again.
    """

    lease: DataLease
    replica: int
    incarnation: int
    since: int = 0
    position: int = 0
    skipped: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, row: Iterable[Any]) -> Outstanding:
        """Inverse of `row`."""
        lease, replica, incarnation, since, position, skipped = row
        return cls(DataLease(**lease), replica, incarnation, since, position, [(a, b) for a, b in skipped])

    def row(self) -> list[Any]:
        """All fields, JSON-serialisable."""
        return [dict(vars(self.lease)), self.replica, self.incarnation, self.since, self.position, self.skipped]

    def trained(self, start: int, stop: int) -> int:
        """Number of samples from position `start` to `stop` that are not skipped."""
        return stop - start - sum(max(0, min(stop, b) - max(start, a)) for a, b in self.skipped)

    def beyond_skipped(self, position: int) -> int:
        """`position`, or the first one after it that is not skipped."""
        for start, stop in sorted(self.skipped):
            if start <= position < stop:
                position = stop
        return position

    def left(self) -> list[tuple[int, int]]:
        """Ranges of samples, from the lease's first, that are neither done nor skipped."""
        ranges, start = [], self.position
        for skipped_from, stop in [*sorted(self.skipped), (self.lease.samples, self.lease.samples)]:
            if skipped_from > start:
                ranges.append((start, skipped_from))
            start = max(start, stop)
        return ranges


class Revoked(NamedTuple):
    """Outcome of an ended incarnation's leases, beyond what it had reported.

    Attributes
    ----------
    samples, pushes
        Newly known to be done.
    twice
        Pushes that will be trained twice: for a failed replica 0 or 1; the segments of a set may be further apart.
    """

    samples: int = 0
    pushes: int = 0
    twice: int = 0


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
    batch
        Samples from one clock to the next: in a mini-batch, or of DiLoCo in a round.
    expired
        Leases that this object has revoked unfinished.
    ends
        By epoch, the ascending places at which leases should end, the last one that of the epoch: data is read in
        blocks, and a block is read for one lease where the policy allows. None: leases may end anywhere.
    late_pushes
        Whether a set may lack acknowledged pushes, each the last one of its pusher: rounds end with a quorum.
    holders_expected
        Holders among which what is left is to be spread at the end, where leases hold complete blocks.
    outside
        Samples of the total that clients have trained, without leases.
    outstanding
        The leases that are not done, by id.
    reached
        By incarnation that may push: number of its last push that is known to be acknowledged.
    ended
        Of incarnations that ended after the newest complete set began: number of the last push that all segments had.
    """

    epoch_samples: int
    total: int
    size: int
    batch: int
    ends: Callable[[int], Sequence[int]] | None = None
    holders_expected: int = 1
    late_pushes: bool = False
    epoch: int = 0
    position: int = 0
    leased: int = 0
    done: int = 0
    expired: int = 0
    outside: int = 0
    next_id: int = 1
    returned: deque[tuple[int, int, int]] = field(default_factory=deque)
    outstanding: TrackedDict[int, Outstanding] = field(default_factory=TrackedDict)
    reached: TrackedDict[int, int] = field(default_factory=TrackedDict)
    ended: TrackedDict[int, int] = field(default_factory=TrackedDict)
    _held: dict[int, dict[int, Outstanding]] = field(default_factory=dict)  # the outstanding ones by incarnation
    _in_set: set[int] = field(default_factory=set)  # of the ended: those whose pushes the set under way holds
    _set_running: bool = False
    _finished_since_set: list[Outstanding] = field(default_factory=list)
    _last_finished: dict[int, Outstanding] = field(default_factory=dict)  # with late pushes: by incarnation

    def grant(
        self,
        replica: int,
        incarnation: int,
        at_most: int | None = None,
        clock: int = 0,
        member_epoch: int = 0,
        stride: int = 1,
        size: int | None = None,
        in_blocks: bool = False,
    ) -> DataLease | None:
        """Lease the next range, returned ones first; None when nothing is left (or `at_most` is 0).

        `size`: samples in a full lease; None: those of the pool. `in_blocks`: a lease may be larger or smaller than
        that, to hold complete blocks: `MOST_BLOCKS` while much is left, so that one is read while another is trained.
        """
        room = self.room(at_most, size)
        if not room:
            return None
        most = self.room(at_most, self.epoch_samples) if in_blocks else None
        epoch, start, stop = self._next_range(room, most)
        lease = DataLease(self.next_id, epoch, start, stop, self.leased, clock, member_epoch, stride)
        self.next_id += 1
        self.leased += lease.samples
        self._hold(Outstanding(lease, replica, incarnation, self.reached.get(incarnation, 0)))
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
        """The leases of an incarnation in the order in which they were granted."""
        held = self._held.get(incarnation, {})
        return [held[lease] for lease in sorted(held)]

    def empty(self, clock: int) -> DataLease:
        """A lease of no samples, for a group member without data; it is not tracked as outstanding."""
        self.next_id += 1
        return DataLease(self.next_id - 1, self.epoch, 0, 0, self.leased, clock)

    def steps(self, samples: int) -> int:
        """Number of clocks in so many samples of a lease."""
        return -(-samples // self.batch)

    def even_size(self, replicas: int) -> int:
        """Samples in a lease of each of so many replicas: a full one, or equally many clocks of the epoch's rest."""
        left = min(self.left, self.epoch_samples - self.position or self.epoch_samples)
        return min(self.size, self.steps(-(-left // replicas)) * self.batch)

    @property
    def left(self) -> int:
        """Samples of the total that are not leased."""
        return self.total - self.outside - self.leased

    @property
    def backlog(self) -> int:
        """Leases until the total is trained: those outstanding, and full ones for what is not leased."""
        return len(self.outstanding) + max(0, -(-self.left // self.size))

    def room(self, at_most: int | None = None, size: int | None = None) -> int:
        """Samples that a lease could hold now."""
        full = self.size if size is None else size
        room = min(full, self.left, full if at_most is None else at_most)
        return max(0, room) if self.epoch_samples else 0

    def _next_range(self, room: int, most: int | None) -> tuple[int, int, int]:
        """Epoch, start and stop of the next range, of `room` samples at most; `most`: of so many, in blocks."""
        if self.returned:
            epoch, start, stop = self.returned.popleft()
            end = min(stop, self._end(epoch, start, room, most))
            if end < stop:
                self.returned.appendleft((epoch, end, stop))
            return epoch, start, end
        if self.position == self.epoch_samples:
            self.epoch, self.position = self.epoch + 1, 0
        start = self.position
        self.position = min(self.epoch_samples, self._end(self.epoch, start, room, most))
        return self.epoch, start, self.position

    def _end(self, epoch: int, start: int, room: int, most: int | None) -> int:
        """Where a lease from `start` ends."""
        if most is None or self.ends is None:
            return start + room
        ends = self.ends(epoch)
        first = bisect_right(ends, start)
        share = self.left // (2 * self.holders_expected)
        if ends[first] - start > share:
            return start + room  # one block would leave others without work at the end
        last = bisect_right(ends, start + share) - 1
        fits = bisect_right(ends, start + room) - 1
        return min(ends[max(first, min(last, first + MOST_BLOCKS - 1), fits)], start + most)

    def find_granted(self, incarnation: int, last_lease: int) -> DataLease | None:
        """The lease that an incarnation holds and has not received: it repeats its request as the reply was lost.

        `last_lease`: the last one that it has received; 0: none.
        """
        return next((held.lease for held in self._held_by(incarnation) if held.lease.id > last_lease), None)

    def acknowledge(self, incarnation: int, lease_id: int, position: int, sequence: int = 0) -> int:
        """Record the last acknowledged push of an incarnation; the number of samples newly done.

        Parameters
        ----------
        lease_id, position
            As in the push: earlier leases of this incarnation are done. 0: it has pushed of no lease.
        sequence
            Number of the push; 0: only the shards count it, or there are no pushes.
        """
        if sequence > self.reached.get(incarnation, 0):
            self.reached[incarnation] = sequence
        newly = 0
        for held in self._held_by(incarnation):
            if held.lease.id > lease_id:
                break
            newly += self._advance(held, position if held.lease.id == lease_id else held.lease.samples)
        return newly

    def _advance(self, held: Outstanding, position: int) -> int:
        position = held.beyond_skipped(max(held.position, min(position, held.lease.samples)))
        if position == held.position:
            return 0
        newly = held.trained(held.position, position)
        held.position = position
        self.outstanding.touch(held.lease.id)
        self.done += newly
        if position == held.lease.samples:
            self._release(held)
            if self.late_pushes:
                self._last_finished[held.incarnation] = held
            if self._set_running:
                self._finished_since_set.append(held)
        return newly

    def skip(self, incarnation: int, skipped: Iterable[Skipped]) -> None:
        """Return samples that a holder does not train to the pool; those that are done or skipped already stay so."""
        for lease_id, first, last in skipped:
            held = self.outstanding.get(lease_id)
            if held is None or held.incarnation != incarnation:
                continue
            for start, stop in held.left():
                start, stop = max(start, first), min(stop, last)
                if start < stop:
                    held.skipped.append((start, stop))
                    self._return(held.lease, start, stop)
            self.outstanding.touch(lease_id)
            self._advance(held, held.position)

    def _return(self, lease: DataLease, start: int, stop: int) -> None:
        self.returned.append((lease.epoch, lease.start + start, lease.start + stop))
        self.leased -= stop - start

    def revoke(self, incarnation: int, applied: Applied) -> Revoked:
        """Return the unfinished part of an ended incarnation's leases to the pool.

        Its ledgers must be final, and not read while shards write a set: a set written before would lack some of its
        pushes, one written after holds them all. (Fences and sets are executed one at a time, in order.)
        """
        reached, held_ones = self.reached.pop(incarnation, 0), self._held_by(incarnation)
        if applied.lowest.sequence:
            self.ended[incarnation] = applied.lowest.sequence  # what it lost before is counted
        if held_ones:
            return self._settle(incarnation, applied, max(reached, held_ones[0].since))
        self._forget_finished(incarnation)
        return Revoked()

    def _settle(self, incarnation: int, applied: Applied, known: int) -> Revoked:
        """See `revoke`; `known`: number of the last push that is known to be acknowledged."""
        # What its holder reported stays done, even if a restored shard lacks it.
        samples = self.acknowledge(incarnation, applied.lowest.lease, applied.lowest.position)
        for held in self._held_by(incarnation):
            for start, stop in held.left():
                self._return(held.lease, start, stop)
            self._release(held)
            self.expired += 1
        self._forget_finished(incarnation)
        lowest = max(known, applied.lowest.sequence)
        return Revoked(samples, lowest - known, max(0, applied.highest - lowest))

    def _forget_finished(self, incarnation: int) -> None:
        """Keep the finished leases of an ended incarnation out of the set under way, which its pushes precede."""
        self._last_finished.pop(incarnation, None)
        self._finished_since_set = [h for h in self._finished_since_set if h.incarnation != incarnation]

    def pushers(self) -> set[int]:
        """Incarnations that have not ended, and hold a lease or have pushed."""
        return self._held.keys() | self.reached.keys()

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

    def holds(self, incarnation: int) -> bool:
        """Whether an incarnation has a lease that is not done."""
        return incarnation in self._held

    def holders(self) -> dict[int, int]:
        """The incarnations that hold leases: replica by incarnation."""
        return {held.incarnation: held.replica for held in self.outstanding.values()}

    # -- snapshots ---------------------------------------------------------------------------------------

    def begin_set(self) -> None:
        """Mark the start of a snapshot set: leases that end from now on, or by a late push, may not be in it."""
        self._set_running = True
        self._in_set = set(self.ended)
        self._finished_since_set = list(self._last_finished.values())

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
            "reached": list(self.reached.items()),
            "held": [one.row() for one in held],
        }

    def figures(self) -> dict[str, Any]:
        """The state but for the rows of leases and incarnations, JSON-serialisable."""
        return {
            "epoch_samples": self.epoch_samples,
            "blocks": self._blocks_digest,
            "epoch": self.epoch,
            "position": self.position,
            "next_id": self.next_id,
            "leased": self.leased,
            "outside": self.outside,
            "done": self.done,
            "returned": list(self.returned),
        }

    @cached_property
    def _blocks_digest(self) -> str:
        """SHA-256 of the ends of the first epoch's blocks; "" where there are none."""
        if self.ends is None:
            return ""
        return hashlib.sha256(" ".join(map(str, self.ends(0))).encode()).hexdigest()

    def difference(self, state: Mapping[str, Any]) -> str:
        """In what the data of a stored state differs from this one; "" where it is the same."""
        then, now = state["epoch_samples"], self.epoch_samples
        if then != now:
            return f"{then:,} training samples, and the job's data holds {now:,} now"
        # An earlier version stored none.
        if state.get("blocks", self._blocks_digest) != self._blocks_digest:
            return (
                "training samples in units of other sizes than now, or another data.window: samples would be skipped "
                "or trained twice"
            )
        return ""

    def take_over(self, state: dict[str, Any]) -> None:
        """Restore the state of another coordinator; a set that it had begun will not be complete."""
        self._take(state)
        self.ended = TrackedDict(dict(state["ended"]))
        self.reached = TrackedDict(dict(state["reached"]))
        for held in map(Outstanding.of, state["held"]):
            if held.position < held.lease.samples:
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
        twice, corrections = 0, dict[int, int]()
        for held in map(Outstanding.of, state["held"]):
            reported = held.trained(0, held.position)
            self.done -= reported
            corrections[held.replica] = corrections.get(held.replica, 0) - reported
            held.position = held.beyond_skipped(0)
            self._hold(held)
        for incarnation, replica in {h.incarnation: h.replica for h in self.outstanding.values()}.items():
            samples, _, doubled = self.revoke(incarnation, ledgers.get(incarnation, Applied()))
            twice += doubled
            corrections[replica] += samples
        return twice, corrections
