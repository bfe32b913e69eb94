"""The staleness dial of one shard: who is waited for, and who waits. It knows no wire.

At 0 a segment holds each clock's gradients, its round, until all who take part in it have pushed. At N >= 1 pushes are
applied as they come, and a pull for clock c waits until every member has passed clock c - N - 1 on each segment asked
for: nobody leads another by more than N + 1 clocks. A member has passed what it has pushed. Its pull for clock c says
that it has passed all below c - N as well: a job's cadence leaves no more than that unpushed (the job file is checked
for it). So the one who is furthest behind never waits, and somebody always moves. Whoever is new among the members
begins, here, at the highest clock that was ever pushed.

A shard that came back from a snapshot has lost clocks that replicas will never push again. From then on a replica's
first call tells how far it is. At 0, rounds that all their members have passed go by without a step, and the others
wait only for members that have not passed them. At N >= 1 who was a member before holds nobody up until it calls: it
may itself be waiting at another shard for the one that waits here.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from dbelief.core.push import Push
from dbelief.errors import Moved, Unavailable

from .membership import Membership
from .segment import Segment


class StalenessBarrier:
    """One shard's dial, over its segments by index; at None nobody waits for anybody."""

    def __init__(self, staleness: int | None, segments: Mapping[int, Segment]) -> None:
        self.staleness = staleness
        self._segments = segments
        self._membership = Membership()  # replaced whole, never changed
        self._turn = threading.Condition()  # a round closed, a clock was pushed, or members changed
        self._came_back = False
        self._told: dict[tuple[int, int], int] = {}  # after coming back, at 0: clocks passed, by segment and replica

    # -- members -----------------------------------------------------------------------------------------

    def set_membership(self, member_epoch: int, rounds: Sequence[tuple[int, Iterable[int]]]) -> int:
        """Say who takes part from which clock on; an older member epoch than the one known is ignored.

        Returns the highest clock pushed here: where a new member begins, at N >= 1.
        """
        known = self._membership
        if member_epoch > known.member_epoch:
            new = Membership(member_epoch, [(clock, frozenset(replicas)) for clock, replicas in sorted(rounds)])
            if self.staleness:
                self._add_members(known, new)
            self._membership = new
            self.close_rounds(self._segments)
        return max((segment.rounds for segment in self._segments.values()), default=0)

    def _add_members(self, known: Membership, new: Membership) -> None:
        before, now = known.ever(), new.ever()
        unheard = self._came_back and not known.member_epoch  # these were members before this shard came back
        for segment in self._segments.values():
            with segment.lock:
                for replica in before - now:
                    segment.passed.pop(replica, None)
                for replica in () if unheard else now - before:
                    segment.passed[replica] = segment.rounds

    def passed_clocks(self, index: int) -> dict[int, int] | None:
        """How far replicas said that they are with a segment; None in a shard that did not come back."""
        if not self._came_back:
            return None
        return {replica: clock for (one, replica), clock in self._told.items() if one == index}

    def set_segments(self, segments: Mapping[int, Segment], told: Mapping[int, Mapping[int, int] | None]) -> None:
        """These are the shard's segments now; those that have come bring along what was told of them elsewhere.

        Who waits for one that has gone away hears of it.
        """
        self._segments = segments
        for index, known in told.items():
            self._came_back = self._came_back or known is not None
            self._told.update(((index, replica), clock) for replica, clock in (known or {}).items())
        self.close_rounds(told)

    def restored(self, segment: Segment) -> None:
        """The segment is as a snapshot holds it; its lock is held."""
        self._came_back = True
        segment.passed.clear()

    # -- rounds and clocks -------------------------------------------------------------------------------

    def record_clock(self, indices: Sequence[int], replica: int, clock: int) -> None:
        """A replica's pull of these segments for `clock`, or at 0 its push, says how far it is with them at least.

        With no others: of a replica's ranks, each of which has segments of its own, one may be behind another.
        """
        if self.staleness == 0:
            late = [i for i in indices if clock > self._told.get((i, replica), 0)] if self._came_back else []
            self._told.update(((index, replica), clock) for index in late)
            moved = bool(late)
        else:
            moved = self.staleness is not None and self._raise(indices, replica, clock - self.staleness)
        if moved:
            self.close_rounds(indices)

    def _raise(self, indices: Iterable[int], replica: int, passed: int) -> bool:
        """At N >= 1: a member has passed at least so many clocks on these segments; whether that is new."""
        if passed <= 0 or replica not in self._membership.at(passed):
            return False
        here = (self._segments[index] for index in indices if index in self._segments)
        late = [segment for segment in here if segment.passed.get(replica, 0) < passed]
        for segment in late:
            with segment.lock:
                segment.passed[replica] = max(passed, segment.passed.get(replica, 0))
        return bool(late)

    def applied(self, segment: Segment, push: Push) -> None:
        """At N >= 1: a push was applied; the segment's lock is held."""
        passed = push.clock + 1
        segment.rounds = max(segment.rounds, passed)
        if push.pusher.replica in self._membership.at(push.clock):
            segment.passed[push.pusher.replica] = max(passed, segment.passed.get(push.pusher.replica, 0))

    def arrived(self, segment: Segment, push: Push) -> None:
        """A push of this segment was taken; no lock is held."""
        if self.staleness == 0:
            self.record_clock([segment.span.index], push.pusher.replica, push.clock)
        self.close_rounds([segment.span.index])

    def close_rounds(self, indices: Iterable[int]) -> None:
        """At 0: apply every round that is complete on these segments. At any: wake those who wait."""
        if self.staleness is None:
            return
        segments = self._segments
        for segment in (segments[i] for i in indices if i in segments) if self.staleness == 0 else ():
            with segment.lock:
                if segment.moved_to:
                    continue  # it left between the look at the table and the lock: its round closes where it is now
                while self._goes_on(segment.rounds) and segment.close_round(self._expected(segment)):
                    pass
        with self._turn:
            self._turn.notify_all()

    def _goes_on(self, clock: int) -> bool:
        """Whether somebody takes part in this round or a later one: else its members are yet to be named."""
        return bool(self._membership.at(clock)) or self._membership.goes_on_after(clock)

    def _expected(self, segment: Segment) -> frozenset[int]:
        """Who takes part in a segment's round and has not passed it."""
        clock, index = segment.rounds, segment.span.index
        return frozenset(r for r in self._membership.at(clock) if self._told.get((index, r), 0) <= clock)

    # -- waiting -----------------------------------------------------------------------------------------

    def wait(self, segments: Iterable[Segment], clock: int, timeout_s: float) -> None:
        """Wait until these segments may be read for `clock`.

        Raises
        ------
        Unreachable
            After `timeout_s` without it; names the segment and the replicas that are missing.
        Moved
            A segment has gone to another shard.
        """
        if self.staleness is None:
            return
        until_s = time.monotonic() + timeout_s
        for segment in segments:  # one after the other: what was reached stays so, but for members that are new
            with self._turn:
                reached = functools.partial(self._reached, segment, clock - self.staleness)
                if not self._turn.wait_for(reached, max(0.0, until_s - time.monotonic())):
                    raise Unavailable(f"segment {segment.span.index}: {self._describe_stall(segment, clock)}")
            if segment.moved_to:
                raise Moved(f"segment {segment.span.index}: {segment.moved_to}")

    def _reached(self, segment: Segment, due: int) -> bool:
        """Whether all clocks below `due` are passed by everybody who is waited for, or will be elsewhere."""
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
