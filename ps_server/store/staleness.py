"""Staleness barrier of one shard: which members it waits for, and which calls wait. Independent of the wire format.

With bound 0 a segment buffers each clock's gradients, its round, until all members of the round have pushed. With bound
N >= 1 pushes are applied as they arrive, and a pull for clock c waits until every member has passed clock c - N - 1 on
each segment requested: no replica leads another by more than N + 1 clocks. A member has passed the clocks that it has
pushed. Its pull for clock c also shows that it has passed all clocks below c - N: a job's push interval leaves no more
than that unpushed (the job file is checked for it). So the slowest member never waits, and some replica always
proceeds. A new member begins, on this shard, at the highest clock that was ever pushed.

With a quorum (bound 0) a round may end without some of its members: `quorum.py`. A push that comes later is
acknowledged at once, and waits for the end of the next round. Its replica continues at the round that is open then, and
reports that it has passed the others, so that no segment waits for it there. Pulls wait for nothing: a replica's push
has waited for the end of its round, and one that is late may be ahead of some segments.

A shard that was restored from a snapshot has lost clocks that replicas will not push again. From then on a replica's
first call reports its clock. With bound 0, rounds that all their members have passed are closed without a step, and the
other rounds wait only for members that have not passed them. With bound N >= 1, an earlier member blocks no call before
its own first call: it may itself be waiting at another shard for the replica that waits here.
"""

from __future__ import annotations

import bisect
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dbelief.core.push import Push
from dbelief.errors import Moved, Unavailable
from dbelief.process.runtime import runtime

from .quorum import GracePeriods, Quorum
from .segment import Segment

LOOK_S = 0.001
"""Shortest wait before a round whose grace period is over is looked at again."""


@dataclass
class ClockMembers:
    """Members of each clock: (first clock, replica numbers) by rising clock."""

    member_epoch: int = 0
    rounds: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    def at(self, clock: int) -> frozenset[int]:
        """Replica numbers of the members of `clock`."""
        if self.rounds and clock >= self.rounds[-1][0]:
            return self.rounds[-1][1]
        row = bisect.bisect_right(self.rounds, clock, key=lambda row: row[0]) - 1
        return self.rounds[row][1] if row >= 0 else frozenset()

    def knows(self, clock: int) -> bool:
        """Whether the members of a clock are known; those of the last row's clocks are not, where it has none."""
        return bool(self.rounds) and (clock < self.rounds[-1][0] or bool(self.at(clock)))

    @property
    def now(self) -> frozenset[int]:
        """Replica numbers of the last row's members."""
        return self.rounds[-1][1] if self.rounds else frozenset()

    def ever(self) -> frozenset[int]:
        """All replicas that are members of some clock."""
        return frozenset[int]().union(*(replicas for _, replicas in self.rounds))


class StalenessBarrier:
    """Staleness barrier of one shard over its segments by index; with `staleness` None no call waits."""

    def __init__(self, staleness: int | None, segments: Mapping[int, Segment], quorum: Quorum | None = None) -> None:
        self.staleness = staleness
        self._grace = GracePeriods(quorum) if quorum is not None else None
        self._segments = segments
        self._membership = ClockMembers()  # replaced by a new object, never changed
        self._changed = runtime.condition()  # signals: a round closed, a clock was pushed, members changed
        self._awaited = Counter[int]()  # calls by the index of the segment that they wait for
        self._reported: dict[int, dict[int, int]] = {}  # of restored segments, with a quorum of any: clocks, by replica

    @property
    def _restored(self) -> bool:
        """Whether a segment was restored, here or where it migrated from."""
        return bool(self._reported)

    # -- members -----------------------------------------------------------------------------------------

    def set_membership(self, member_epoch: int, rounds: Sequence[tuple[int, Iterable[int]]]) -> int:
        """Set the members from each clock on; a member epoch older than the known one is ignored.

        Returns the highest clock pushed here: where a new member begins, with bound N >= 1.
        """
        known = self._membership
        if member_epoch > known.member_epoch:
            new = ClockMembers(member_epoch, [(clock, frozenset(replicas)) for clock, replicas in sorted(rounds)])
            if self.staleness:
                self._add_members(known, new)
            if self._grace is not None and not (known.now and new.now):
                self._grace.clear()
            self._membership = new
            self.close_rounds(self._segments)
        return max((segment.rounds for segment in self._segments.values()), default=0)

    def _add_members(self, known: ClockMembers, new: ClockMembers) -> None:
        before, now = known.ever(), new.ever()
        unreported = self._restored and not known.member_epoch  # these were members before this shard was restored
        for segment in self._segments.values():
            with segment.lock:
                for replica in before - now:
                    segment.passed.pop(replica, None)
                for replica in () if unreported else now - before:
                    segment.passed[replica] = segment.rounds

    def passed_clocks(self, index: int) -> dict[int, int] | None:
        """Clocks that replicas reported for a segment; None where it was not restored."""
        known = self._reported.get(index)
        return None if known is None else dict(known)

    def set_segments(self, segments: Mapping[int, Segment], reported: Mapping[int, Mapping[int, int] | None]) -> None:
        """Set the shard's segments; `reported` holds what was reported elsewhere for those that have migrated here.

        Wakes the calls that wait for a segment, also those whose segment has migrated away.
        """
        self._segments = segments
        for index, known in reported.items():
            self._reported.pop(index, None)
            if known is not None:
                self._reported[index] = dict(known)
        if self._grace is not None:
            self._grace.retain(segments)
        self.close_rounds(reported, wakes=True)

    def drop_migrated(self) -> None:
        """Drop what was reported for segments that are at other shards now: they have it, and may bring it back."""
        self._reported = {index: known for index, known in self._reported.items() if index in self._segments}

    def restored(self, segment: Segment) -> None:
        """Record that the segment was loaded from a snapshot; its lock is held."""
        self._reported.setdefault(segment.span.index, {})
        segment.passed.clear()

    # -- rounds and clocks -------------------------------------------------------------------------------

    def record_clock(self, indices: Sequence[int], replica: int, clock: int) -> None:
        """Record a lower bound on the clocks that a replica has passed on these segments.

        It is known from the replica's pull for `clock`, or with bound 0 from its push. Other segments are not
        concerned: each rank of a replica has segments of its own, and one rank may be behind another.
        """
        if self.staleness == 0:
            for index in indices if self._grace is not None else ():
                self._reported.setdefault(index, {})
            known = [self._reported[index] for index in indices if index in self._reported]
            late = [clocks for clocks in known if clock > clocks.get(replica, 0)]
            for clocks in late:
                clocks[replica] = clock
            moved = bool(late)
        else:
            moved = self.staleness is not None and self._raise(indices, replica, clock - self.staleness)
        if moved:
            self.close_rounds(indices)

    def _raise(self, indices: Iterable[int], replica: int, passed: int) -> bool:
        """With bound N >= 1: record that a member has passed `passed` clocks on these segments; whether that is new."""
        if passed <= 0 or replica not in self._membership.at(passed):
            return False
        here = (self._segments[index] for index in indices if index in self._segments)
        late = [segment for segment in here if segment.passed.get(replica, 0) < passed]
        for segment in late:
            with segment.lock:
                segment.passed[replica] = max(passed, segment.passed.get(replica, 0))
        return bool(late)

    def applied(self, segment: Segment, push: Push) -> None:
        """With bound N >= 1: record that a push was applied; the segment's lock is held."""
        passed = push.clock + 1
        segment.rounds = max(segment.rounds, passed)
        if push.pusher.replica in self._membership.at(push.clock):
            segment.passed[push.pusher.replica] = max(passed, segment.passed.get(push.pusher.replica, 0))

    def arrived(self, segment: Segment, push: Push, again: bool = False) -> None:
        """Record that a push of this segment was applied or staged, or was so `again`; no lock is held."""
        if self._grace is not None and not again:
            with segment.lock:
                late = max(0, segment.rounds - push.clock)
                self._grace.pushed(segment.span.index, push.pusher.replica, late, runtime.monotonic())
        if self.staleness == 0 and (self._grace is not None or self._restored):
            self.record_clock([segment.span.index], push.pusher.replica, push.clock)
        self.close_rounds([segment.span.index])

    def close_rounds(self, indices: Collection[int], wakes: bool = False) -> None:
        """With bound 0, apply each round of these segments that is complete; wake the calls that wait for one of them.

        `wakes`: all calls. A wake-up costs as much as the push of a small segment, so none is made without cause.
        """
        segments = self._segments
        wakes = wakes or self._grace is not None  # a quorum's grace period may begin
        changed = self.staleness != 0
        for segment in (segments[i] for i in indices if i in segments) if self.staleness == 0 else ():
            if self._lacks_pushes(segment):
                continue  # without its lock: a push that comes meanwhile looks after it is staged
            with segment.lock:
                if segment.moved_to:
                    continue  # it migrated before the lock was acquired: its round closes at its new owner
                # A round may have no members: all are done, and this shard has lost it.
                while self._is_due(segment) and self._complete(segment):
                    segment.close_round()
                    changed = True
                    if self._grace is not None:
                        self._grace.closed(segment.span.index, runtime.monotonic())
        if wakes or changed:
            with self._changed:
                if wakes or not self._awaited.keys().isdisjoint(indices):
                    self._changed.notify_all()

    def _is_due(self, segment: Segment) -> bool:
        """Whether a round's members are known; without any, it has what came too late for the last one's."""
        return self._membership.knows(segment.rounds) or (self._membership.member_epoch > 0 and segment.has_late)

    def _complete(self, segment: Segment) -> bool:
        """Whether all of a round's members have pushed it, or a quorum has and its grace period is over.

        Those that are past it count too: a segment that was restored has rounds that no replica pushes again.
        """
        if self._lacks_pushes(segment):
            return False
        arrived, expected = segment.arrived(), self._expected(segment)
        missing = expected - arrived
        if not missing or self._grace is None:
            return not missing
        index, clock = segment.span.index, segment.rounds
        passed = self._membership.at(clock) - expected - arrived
        if len(passed) >= self._grace.quorum.replicas:
            return True
        return self._grace.is_over(index, clock, len(arrived | passed), missing, runtime.monotonic())

    def _lacks_pushes(self, segment: Segment) -> bool:
        """Whether a segment's round has too few pushes to be complete, found without a set; False where unknown."""
        if self._grace is not None or self._restored:
            return False
        clock = segment.rounds
        return len(segment.staged.get(clock, ())) < len(self._membership.at(clock))

    def _expected(self, segment: Segment) -> frozenset[int]:
        """Members of a segment's round that have not passed it."""
        clock, passed = segment.rounds, self._reported.get(segment.span.index, {})
        return frozenset(r for r in self._membership.at(clock) if passed.get(r, 0) <= clock)

    # -- waiting -----------------------------------------------------------------------------------------

    def wait(self, segments: Iterable[Segment], clock: int, timeout_s: float) -> None:
        """Wait until these segments may be read for `clock`.

        Raises
        ------
        Unavailable
            Timeout after `timeout_s`; names the segment and the replicas that are missing.
        Moved
            A segment has migrated to another shard.
        """
        if self.staleness is None:
            return
        until_s = runtime.monotonic() + timeout_s
        segments = list(segments)
        due = clock - self.staleness
        # One after another: a clock once reached stays reached, except for new members. The last one first: a push
        # takes segments in rising order, so that the others' rounds are mostly over when that of the last one ends.
        for segment in reversed(segments):
            while not (self._reached(segment, due) or self._wait_until(segment, due, self._next_s(segments, until_s))):
                if runtime.monotonic() >= until_s:
                    raise Unavailable(f"segment {segment.span.index}: {self._describe_stall(segment, clock)}")
                self.close_rounds([one.span.index for one in segments])  # a grace period is over
            if segment.moved_to:
                raise Moved(f"segment {segment.span.index}: {segment.moved_to}")

    def _next_s(self, segments: Iterable[Segment], until_s: float) -> float:
        """When a wait for these segments looks at their rounds again, at most `until_s`."""
        if self._grace is None:
            return until_s
        end_s = self._grace.next_end_s([segment.span.index for segment in segments], until_s)
        return max(end_s, runtime.monotonic() + LOOK_S)

    def _wait_until(self, segment: Segment, due: int, until_s: float) -> bool:
        index, reached = segment.span.index, functools.partial(self._reached, segment, due)
        with self._changed:
            self._awaited[index] += 1
            try:
                return self._changed.wait_for(reached, max(0.0, until_s - runtime.monotonic()))
            finally:
                self._awaited[index] -= 1
                if not self._awaited[index]:
                    del self._awaited[index]

    def _reached(self, segment: Segment, due: int) -> bool:
        """Whether all expected members have passed the clocks below `due`, or the segment has migrated."""
        if segment.moved_to:
            return True
        return segment.rounds >= due if self.staleness == 0 else not self._behind(segment, due)

    def _behind(self, segment: Segment, due: int) -> list[int]:
        return sorted(r for r in self._membership.at(due - 1) if segment.passed.get(r, due) < due)

    def _describe_stall(self, segment: Segment, clock: int) -> str:
        if self.staleness:
            due = clock - self.staleness
            behind = self._behind(segment, due)
            return f"clock {clock} still waits for replicas {behind}, which have not pushed clock {due - 1}"
        with segment.lock:
            here = {pusher.replica for pusher in segment.staged.get(segment.rounds, {})}
            absent = sorted(self._expected(segment) - here)
            return f"round {segment.rounds} still waits for replicas {absent}"
