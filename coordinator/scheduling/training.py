"""The training phase of a job: assigned and reported work, evaluations, snapshot sets. No clock, no socket."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from dbelief.core.push import PARAMETERS
from dbelief.job import Job
from dbelief.job import Sandblaster as Settings
from dbelief.training.schedule import total_samples

from ..core.effects import Action, LogEvent, SetMembership, TakeSnapshot
from ..core.progress import Best, Evaluated
from ..core.snapshot_schedule import SnapshotSchedule
from ..core.states import Assignment, DatasetSizes, EvaluationLease, ProgressReport, Wait
from ..sandblaster.batch_method import Sandblaster
from ..sandblaster.pass_scheduler import NO_REQUEST, BundleResult, WorkRequest
from .accounts import ReportDeduplicator
from .bounded_staleness import BoundedStalenessPolicy
from .evaluations import Evaluations
from .groups import GroupPolicy
from .scheduler import Scheduler, membership
from .sizing import leases, progress
from .synchronous import SynchronousPolicy

BATCH_ASK_AGAIN_S = 0.01
"""Seconds before a retry: between two passes the shards compute for a few milliseconds."""


class EvaluationOutcome(NamedTuple):
    """Consequences of an evaluation.

    `lease` is None for a duplicate report, or one by an incarnation that does not hold the lease. `keep_as` is the name
    to store the parameters under, `trouble` a reason to fail the job, `enough` a reason to close it.
    """

    lease: EvaluationLease | None
    keep_as: str = ""
    trouble: str = ""
    enough: str = ""


class Training:
    """The training of one job.

    Attributes
    ----------
    total
        Samples at which it ends; None: without such a limit.
    batch
        The batch method that trains; None where leases of data do.
    end_kept
        Whether the newest set holds the final result of a batch method.
    pushes_twice
        Pushes that were, or will be, trained twice because of failures.
    """

    def __init__(self, job: Job, shape: DatasetSizes) -> None:
        self.total = total_samples(job.limits, shape.train or None)
        self.leases = leases(job, shape, self.total)
        self.batch = Sandblaster(job.strategy, shape.train) if isinstance(job.strategy, Settings) else None
        self.progress = progress(job, shape, self.total)
        self.rounds = SynchronousPolicy(job.strategy.turns) if job.strategy.staleness == 0 else None
        self.clocks = BoundedStalenessPolicy() if job.strategy.staleness else None
        self.groups = GroupPolicy() if job.strategy.grouped else None
        self.evaluations = Evaluations()
        self.snapshots = SnapshotSchedule(job.snapshots.every_s, job.snapshots.every_iterations)
        self.pushes_twice = 0
        self.end_kept = False
        self._end_in_set = False  # the current or last set was begun after the end
        self._accounts = ReportDeduplicator(self.leases)
        self._handout = Scheduler(self.leases, self.evaluations, self.progress, self.rounds, self.clocks, self.groups)
        self._replicas = job.replicas
        self._wall_s = job.limits.wall_s
        self._began_s = 0.0

    def begin(self, now_s: float) -> None:
        """Start the timers at `now_s`."""
        self._began_s = now_s
        self.restart_timers(now_s)

    @property
    def barrier(self) -> SynchronousPolicy | BoundedStalenessPolicy | None:
        """The staleness barrier, which defines the members of each clock; None in free running."""
        return self.rounds or self.clocks

    @property
    def waits_for_each_other(self) -> bool:
        """Whether replicas wait at the shards for the slowest: then the waiting replicas report a stalled one."""
        return self.rounds is not None or self.clocks is not None

    @property
    def begins_in_lockstep(self) -> bool:
        """Whether all replicas have to be present before the first of them is assigned work."""
        together = self.rounds or self.groups
        return together is not None and not together.blocks

    # -- work --------------------------------------------------------------------------------------------

    def work(
        self,
        number: int,
        incarnation: int,
        next_sequence: int,
        trains: bool,
        evaluates: bool,
        living: Collection[int],
        now_s: float,
        asks: WorkRequest = NO_REQUEST,
    ) -> Assignment:
        """See `Scheduler.work`; for a batch method, a bundle, shared with the living replicas of these numbers."""
        before = self.leases.pushes
        settled = self.leases.finish_implicitly(incarnation, next_sequence)
        if settled:  # another coordinator received the report, and failed before it persisted it
            self.progress.record_report(number, ProgressReport(0, self.leases.pushes - before, settled), 0.0)
        evaluates = evaluates and not asks.ahead and not self._keeps_while(self.snapshots.running)
        evaluates = evaluates and self._rests
        evaluates = evaluates and not (self.batch is not None and (self.batch.moves or self.batch.suspended))
        work = self._handout.work(number, incarnation, next_sequence, trains and self.batch is None, evaluates, asks)
        if self.batch is None or not isinstance(work, Wait):
            return work
        bundle = self.batch.work(number, incarnation, living, now_s, asks) if trains else None
        return bundle or Wait(BATCH_ASK_AGAIN_S)

    def bundle_done(self, number: int, incarnation: int, told: BundleResult, now_s: float) -> bool:
        """Record a bundle that all shards hold; whether it is new."""
        if self.batch is None or not self.batch.bundle_done(number, incarnation, told, now_s):
            return False
        self.progress.record_report(number, ProgressReport(0, pushes=1, samples=told.samples), now_s)
        return True

    def program_ran(self, ticket: int, scalars: list[float]) -> list[Action]:
        """The batch method's program has run on all shards; the events to log."""
        assert self.batch is not None
        notes = self.batch.ran(ticket, scalars)
        self.progress.divergence.loss = self.batch.method.value
        return notes

    def rewind(self, state: Mapping[str, Any], now_s: float) -> int:
        """Restore the batch method's state of the set that all shards have loaded; the iterations rolled back."""
        assert self.batch is not None
        back = self.batch.rewind(state)
        self.end_kept = bool(self.batch.ended)
        self.restart_timers(now_s)
        return back

    def suspend(self) -> None:
        """Discard the work under way: a shard is unavailable, and all shards will return to a set."""
        assert self.batch is not None
        self.batch.suspend()
        self.evaluations.requeue_all()
        if self.snapshots.running:
            self.give_up_set()

    def membership_changes(self) -> list[Action]:
        """See `Scheduler.news`."""
        return self._handout.news()

    @property
    def _rests(self) -> bool:
        """Whether the shards have all trained steps: workers that exchange among themselves write only now and then."""
        return self.groups is None or (self.groups.idle and not self.groups.unpersisted_steps)

    @property
    def unwritten(self) -> bool:
        """Whether workers that exchange among themselves have steps that the shards lack, and are to write them."""
        return self.groups is not None and self.groups.unpersisted_steps

    def write_last(self, living: Mapping[int, int]) -> bool:
        """At the end, have the workers write their unpersisted steps to the shards; whether that is still pending."""
        if not (self.unwritten and living):
            return False
        self._handout.form_block(living, data=False)
        return True

    def settle_groups(self, now_s: float) -> None:
        """Record the result of a group's block, once all its members have reported it or are fenced."""
        for replica, pushes, samples, lost in self.groups.settle(self.leases) if self.groups is not None else ():
            if pushes or lost:
                self.progress.record_report(replica, ProgressReport(0, pushes, samples, lost=lost), now_s)

    def membership_set(self, member_epoch: int, clock: int) -> None:
        """All shards have the members of this member epoch; `clock` is the highest that was pushed to any of them."""
        if self.clocks is not None:
            self.clocks.shards_acknowledged(member_epoch, clock)
        elif self.rounds is not None and member_epoch == self.rounds.member_epoch:
            self.rounds.shards_informed = True

    def trained(self, number: int, incarnation: int, told: ProgressReport, now_s: float) -> tuple[bool, str | None]:
        """Record an incarnation's report of its pushes; whether it is new, and a reason to fail the job, if any."""
        new = self._accounts.delta(incarnation, told)
        if new is not None and not told.lease:  # a client's
            self.leases.outside += new.samples
        return new is not None, self.progress.record_report(number, new, now_s) if new is not None else None

    def evaluated(self, incarnation: int, lease_id: int, loss: float, accuracy: float | None) -> EvaluationOutcome:
        """Record an incarnation's evaluation result."""
        lease = self.evaluations.complete(lease_id, incarnation)
        if lease is None:
            return EvaluationOutcome(None, self.evaluations.storage_name(lease_id, incarnation))
        if lease.set == "test":
            self.progress.test = Evaluated(loss, accuracy, lease.samples)
            return EvaluationOutcome(lease)
        if not math.isfinite(loss):
            self.progress.divergence.not_finite += 1
            trouble = f"diverged: the validation loss is {loss} after {lease.samples} samples; try a lower rate"
            return EvaluationOutcome(lease, trouble=trouble)
        keep_as, enough = self.progress.evaluated(loss, accuracy, lease.samples)
        if keep_as:
            self.evaluations.keep(lease_id, incarnation, Best(keep_as, loss, accuracy, lease.samples))
        return EvaluationOutcome(lease, keep_as, enough=enough or "")

    def kept(self, lease_id: int) -> None:
        """The parameters of an evaluation are completely stored on the shards."""
        best = self.evaluations.stored(lease_id)
        if best is not None:
            self.progress.record_best(best)

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self, now_s: float) -> dict[str, Any]:
        """The complete state, as of now, JSON-serialisable."""
        return {
            "leases": self.leases.state(),
            "progress": self.progress.state(),
            "accounts": self._accounts.state(),
            "evaluations": self.evaluations.state(),
            "dial": self.barrier.state() if self.barrier is not None else None,
            "groups": self.groups.state() if self.groups is not None else None,
            "batch": self.batch.state() if self.batch is not None else None,
            "end_kept": self.end_kept,
            "warm_replica": self.progress.warm_start.replica,
            "pushes_twice": self.pushes_twice,
            "sets": self.snapshots.count,
            "trained_s": round(now_s - self._began_s, 3),
        }

    def take_over(self, state: dict[str, Any], now_s: float) -> None:
        """Restore the state of another coordinator."""
        self.leases.take_over(state["leases"])
        self.progress.restore(state["progress"], {})
        self._accounts.restore(state["accounts"])
        self.evaluations.restore(state["evaluations"])
        if self.barrier is not None:
            self.barrier.restore(state["dial"])
        if self.groups is not None:
            self.groups.restore(state["groups"])
        if self.batch is not None:
            self.batch.restore(state["batch"])
        self.end_kept = state.get("end_kept", False)
        self.progress.warm_start.replica = state["warm_replica"]
        self.pushes_twice, self.snapshots.count = state["pushes_twice"], state["sets"]
        self.begin(now_s)
        self._began_s -= state["trained_s"]

    # -- end of an incarnation ---------------------------------------------------------------------------

    def gone(self, incarnation: int, died: bool, now_s: float) -> None:
        """An incarnation has ended, as far as the coordinator can determine: it failed, or it left."""
        if self.batch is not None:
            self.batch.replica_lost(incarnation, died, now_s)
        if self.groups is not None:
            self.groups.gone(incarnation)
        self._handout.gone(incarnation)
        self.evaluations.holder_lost(incarnation)

    def fenced(
        self, number: int, incarnation: int, applied: tuple[int, int], evaluate: bool, now_s: float
    ) -> list[Action]:
        """An incarnation can push no more; the actions that follow.

        Parameters
        ----------
        applied
            Numbers of its last push that every segment, and that some segment, has applied.
        evaluate
            Whether an evaluation whose parameters it did not store completely is to be repeated.
        """
        done = self._fenced(number, incarnation, applied, evaluate, now_s)
        self.progress.settle(incarnation)
        self._accounts.settle(incarnation)
        return done

    def _fenced(
        self, number: int, incarnation: int, applied: tuple[int, int], evaluate: bool, now_s: float
    ) -> list[Action]:
        if self.groups is not None and self.groups.fenced(number, incarnation):
            self.evaluations.fenced(incarnation, again=evaluate)
            return []  # its result is known once the other members have reported their steps
        before = self.leases.pushes
        samples, twice = self.leases.revoke(incarnation, *applied)
        if samples:
            self.progress.record_report(number, ProgressReport(0, self.leases.pushes - before, samples), now_s)
        self.pushes_twice += twice
        self.evaluations.fenced(incarnation, again=evaluate)
        return self._handout.fenced(number, incarnation)

    def lost_since(self, best: Best | None) -> None:
        """A shard failed: of the stored evaluations, only `best` is complete in the newest set."""
        self.progress.best = best
        self.evaluations.forget_vectors()

    def shard_back(self) -> list[Action]:
        """A shard is available again, with less state than it had; the membership update that follows."""
        if self.rounds is not None:
            self.rounds.shard_back()
        return self.membership_changes()

    def membership(self) -> SetMembership | None:
        """The members by clock; None in free running."""
        return membership(self.barrier) if self.barrier is not None else None

    # -- progress ----------------------------------------------------------------------------------------

    def advance(self, living: Mapping[int, int], now_s: float) -> list[Action]:
        """The actions that are due; `living` are the replicas, incarnation by number."""
        wishes: list[Action] = []
        if self.progress.warm_start_ends():
            wishes.append(LogEvent("warm_start", {"samples": self.progress.samples}))
        if self._rests and self._set_due(now_s) and not self._keeps_while(self.evaluations.under_way):
            wishes.append(self.begin_set())
        if not self.evaluations.busy and self.progress.evaluation_due():
            self.evaluations.ask("validation", PARAMETERS)
        if self.batch is not None:
            wishes += self.batch.advance(read=self.evaluations.given)
        waits = self.groups is not None and self._rests and (self.snapshots.running or self.evaluations.asked)
        if not waits and not (self.begins_in_lockstep and len(living) < self._replicas):
            wishes += self._handout.form_block(living)
        return wishes

    def enough(self, now_s: float) -> str:
        """The reason to close, "" for none."""
        if self._wall_s is not None and now_s - self._began_s >= self._wall_s:
            return f"wall time {self._wall_s:g} s reached"
        if self.batch is not None:
            if self.batch.ended and not self.batch.method.failed:
                return self.batch.ended if self.end_kept else ""
            finished = self.total is not None and self.progress.samples >= self.total
        elif self.leases.epoch_samples:
            finished = (
                self.leases.finished and not self.unwritten
            )  # a failed replica's leases stay outstanding until its completed work is known
        else:  # clients with training loops of their own
            finished = self.total is not None and self.progress.samples >= self.total
        return f"{self.progress.samples} samples trained" if finished else ""

    def _set_due(self, now_s: float) -> bool:
        if self.batch is not None and self.batch.suspended:
            return False
        # The final state of a batch method is saved before the replicas are stopped: later it could not be recomputed.
        ended = self.batch is not None and bool(self.batch.ended) and not self.end_kept
        return self.snapshots.due(now_s, self._iterations) or (ended and not self.snapshots.running)

    @property
    def _iterations(self) -> int:
        return self.batch.method.iterations if self.batch is not None else 0

    def _keeps_while(self, busy: bool) -> bool:
        # A set must hold complete best parameters, so storing them and writing a set exclude each other.
        return busy and self.progress.keep_best

    # -- snapshot sets -----------------------------------------------------------------------------------

    def restart_timers(self, now_s: float) -> None:
        """Restart the time and the iteration count until the next set."""
        self.snapshots.restart_timer(now_s, self._iterations)

    def begin_set(self) -> TakeSnapshot:
        """Begin a snapshot set."""
        self.leases.begin_set()
        self._end_in_set = self.batch is not None and bool(self.batch.ended)
        return self.snapshots.begin(self.progress.samples)

    def give_up_set(self) -> None:
        """Abort the set under way."""
        self.snapshots.running = False
        self.leases.end_set()

    def set_failed(self, now_s: float) -> None:
        """The set could not be written; restart the timers."""
        self.give_up_set()
        self.end_kept = self.end_kept or self._end_in_set  # another attempt would fail as well
        self.restart_timers(now_s)

    def end_set(self, now_s: float) -> None:
        """The set is complete."""
        self.end_kept = self.end_kept or self._end_in_set
        self.snapshots.complete(now_s, self._iterations)
        self.leases.end_set()
