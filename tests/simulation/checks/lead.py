"""The staleness bound: no replica reads parameters for a clock while another's unfinished lease is too far behind it.

A pull for clock c at a bound of N returns after every member has passed clock c - N - 1. Leases are read where the
coordinator stores them, and clocks where pushes are applied, so the barrier's own members are not relied upon.

A shard without a follower that has left, or is suspended, may still answer those who do not know that it was restored
elsewhere. The restored one gives out earlier clocks: leases by a membership that only that one has do not concern it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

from dbelief.core.lease import DataLease
from dbelief.core.push import Push
from ps_server.store.segment import Segment
from ps_server.store.staleness import StalenessBarrier

BATCH = 4
"""Samples of a clock."""


class LeadWatch:
    """Checks every wait for the bound.

    Parameters
    ----------
    violation
        Called with the text of each violation.
    lossless
        Whether no shard was restored so far.
    """

    def __init__(self, violation: Callable[[str], None], lossless: Callable[[], bool]) -> None:
        self._violation, self._lossless = violation, lossless
        self._held: Sequence[tuple[DataLease, int]] = ()  # and the incarnation that holds it
        self._passed: dict[tuple[int, int], int] = {}  # clocks, by segment and incarnation

    def stored(self, held: Iterable[tuple[DataLease, int]]) -> None:
        """Record the leases that a coordinator has stored, and the incarnations that hold them."""
        self._held = list(held)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all shards within the `with` block."""
        applied, wait = StalenessBarrier.applied, StalenessBarrier.wait

        def apply(barrier: StalenessBarrier, segment: Segment, push: Push) -> None:
            applied(barrier, segment, push)
            key = segment.span.index, push.pusher.incarnation
            self._passed[key] = max(push.clock + 1, self._passed.get(key, 0))

        def waited(barrier: StalenessBarrier, segments: Sequence[Segment], clock: int, timeout_s: float) -> None:
            wait(barrier, segments, clock, timeout_s)
            # A shard that was restored or promoted does not know what its members have passed before their first call.
            if barrier.staleness and not barrier._restored:
                known = math.inf if self._lossless() else barrier._membership.member_epoch
                for segment in segments:
                    self._check(segment.span.index, clock, clock - barrier.staleness, known)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(StalenessBarrier, "applied", apply))
            stack.enter_context(mock.patch.object(StalenessBarrier, "wait", waited))
            yield

    def _check(self, index: int, clock: int, due: int, known: float) -> None:
        for lease, incarnation in self._held:
            if lease.member_epoch > known:
                continue
            first, stop = lease.clock, lease.clock + lease.samples // BATCH
            passed = max(first, self._passed.get((index, incarnation), 0))
            if passed < min(due, stop):
                self._violation(
                    f"segment {index} is read for clock {clock}, and incarnation {incarnation} has passed {passed} of "
                    f"its lease of clocks {first} to {stop}"
                )
