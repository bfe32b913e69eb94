"""Assignment of work to replicas: first the work that they hold, then evaluations, then data. No clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping

from dbelief.core.lease import DataLease

from ..core.effects import Action, SetMembership
from ..core.progress import Progress
from ..core.states import Assignment, EvaluationLease, Wait
from ..sandblaster.pass_scheduler import NO_REQUEST, WorkRequest
from .bounded_staleness import BoundedStalenessPolicy
from .evaluations import Evaluations
from .groups import GroupPolicy
from .leases import Leases
from .synchronous import ASK_AGAIN_S, SynchronousPolicy

FREE_ASK_AGAIN_S = 0.05
"""Seconds before a free-running replica retries: the release, failure or end that it waits for is not urgent."""


class Scheduler:
    """The work assignment of one job.

    Parameters
    ----------
    rounds
        With `staleness: 0`, the blocks in which all replicas advance.
    clocks
        With `staleness: N`, each replica's clock.
    groups
        The blocks of workers that exchange among themselves. With none of the three, each replica runs free.
    """

    def __init__(
        self,
        leases: Leases,
        evaluations: Evaluations,
        progress: Progress,
        rounds: SynchronousPolicy | None = None,
        clocks: BoundedStalenessPolicy | None = None,
        groups: GroupPolicy | None = None,
    ) -> None:
        self._leases = leases
        self._evaluations = evaluations
        self._progress = progress
        self._rounds = rounds
        self._clocks = clocks
        self._groups = groups

    def work(
        self,
        number: int,
        incarnation: int,
        next_sequence: int,
        trains: bool,
        evaluates: bool,
        asks: WorkRequest = NO_REQUEST,
    ) -> Assignment:
        """Work for this incarnation; a repeated request, whose reply was lost, gets the same.

        Parameters
        ----------
        trains, evaluates
            Whether new leases of data, and new evaluations, are granted now.
        """
        work = self._held(number, incarnation, next_sequence, asks)
        if work is None and evaluates:
            work = self._evaluation(incarnation)
        if work is None and trains:
            work = self._training(number, incarnation, next_sequence)
        if self._groups is not None and isinstance(work, EvaluationLease):
            self._groups.busy(number)
        if self._clocks is not None and (work is None or isinstance(work, EvaluationLease)):
            self._clocks.leave(number, incarnation)
        free = self._rounds is None and self._groups is None
        return work or Wait(FREE_ASK_AGAIN_S if free else ASK_AGAIN_S)

    def _held(self, number: int, incarnation: int, next_sequence: int, asks: WorkRequest) -> Assignment | None:
        """The work that this incarnation holds; it precedes evaluations, because in lockstep the others wait for it."""
        held: Assignment | None
        if self._rounds is not None:
            held = self._rounds.held(number, incarnation, next_sequence)
            if held is None:
                self._rounds.done(number, incarnation)
        elif self._groups is not None:
            held = self._groups.held(number, incarnation, asks.last)
            if held is None:
                self._groups.request_work(number, incarnation, next_sequence, asks)
        else:
            held = self._leases.find_unstarted(incarnation, next_sequence)
        return held or self._evaluations.held(incarnation)

    def _evaluation(self, incarnation: int) -> EvaluationLease | None:
        lease = self._evaluations.take(incarnation, self._leases.next_id, self._progress.samples)
        self._leases.next_id += lease is not None
        return lease

    def _training(self, number: int, incarnation: int, next_sequence: int) -> DataLease | Wait | None:
        if self._rounds is not None:
            self._rounds.ask(number, incarnation, next_sequence)
            return None
        if self._groups is not None:
            return None
        warm_start = self._progress.warm_start
        if not warm_start.admits(incarnation):
            return None
        room = warm_start.room(self._leases.leased)
        if self._clocks is None:
            return self._leases.grant(number, incarnation, next_sequence, at_most=room)
        if not self._leases.room(room):
            return None
        clock = self._clocks.enter(number, incarnation)
        if clock is None:
            return Wait(ASK_AGAIN_S)
        lease = self._leases.grant(number, incarnation, next_sequence, room, clock, self._clocks.member_epoch)
        assert lease is not None, "there was room for a lease"
        self._clocks.leased(number, self._leases.cadence.steps(lease.samples))
        return lease

    def form_block(self, living: Mapping[int, int], data: bool = True) -> list[Action]:
        """Form the next block if all living replicas (incarnation by replica) have requested it; the actions for it.

        See `SynchronousPolicy.form` and `GroupPolicy.form`.
        """
        if self._groups is not None and self._groups.complete(living):
            self._groups.form(living, self._leases, data)
        if self._rounds is None or not self._rounds.complete(living) or not self._rounds.form(living, self._leases):
            return []
        return [membership(self._rounds)]

    def news(self) -> list[Action]:
        """The membership update for the shards, after requests made replicas join or leave; empty without a barrier."""
        dial = self._rounds or self._clocks
        return [membership(dial)] if dial is not None and dial.membership_changed() else []

    def gone(self, incarnation: int) -> None:
        """A life is over: another may be the one that trains alone."""
        self._progress.warm_start.remove(incarnation)

    def fenced(self, number: int, incarnation: int) -> list[Action]:
        """Remove an incarnation that can push no more from the barrier, so that the others need not wait for it."""
        if self._clocks is not None:
            self._clocks.leave(number, incarnation)
            return self.news()
        if self._rounds is None or not self._rounds.remove(number, incarnation):
            return []
        return [membership(self._rounds)]


def membership(dial: SynchronousPolicy | BoundedStalenessPolicy) -> SetMembership:
    """The members by clock, as sent to the shards."""
    edges = tuple((clock, tuple(replicas)) for clock, replicas in dial.membership())
    return SetMembership(dial.member_epoch, edges)
