"""The training phase of a job: assigned and reported work, evaluations, snapshot sets. No clock, no socket."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from dbelief.core.push import PARAMETERS
from dbelief.job import Job
from dbelief.training.schedule import total_samples

from ..core.effects import Action, LogEvent, TakeSnapshot
from ..core.ledgers import Applied
from ..core.messages import Assignment, BundleResult, EvaluationLease, ProgressReport, Wait, Wants, WorkRequest
from ..core.progress import Best, Evaluated
from ..core.snapshot_schedule import SnapshotSchedule
from ..core.states import DatasetSizes
from .batch_method import Sandblaster
from .evaluations import Evaluations
from .losses import Losses, pushed_before
from .report_deduplicator import ReportDeduplicator
from .sizing import leases, progress, sync_policy


class EvaluationOutcome(NamedTuple):
    """Consequences of an evaluation.

    `lease` is None for a duplicate report, or one by an incarnation that does not hold the lease. `keep_as` is the name
    to store the parameters under, `reason_to_fail` and
    `reason_to_close` end the job; "" for none.
    """

    lease: EvaluationLease | None
    keep_as: str = ""
    reason_to_fail: str = ""
    reason_to_close: str = ""


class Training:
    """The training of one job.

    Attributes
    ----------
    total
        Samples at which it ends; None: without such a limit.
    policy
        Assigns the training work.
    batch
        The policy where it is a batch method, else None.
    end_saved
        Whether the newest set holds the final result of a batch method.
    pushes_twice
        Pushes that were, or will be, trained twice because of failures.
    losses, reports
        Lost pushes that are counted, and the totals that replicas and clients reported last.
    """

    def __init__(self, job: Job, shape: DatasetSizes) -> None:
        self.total = total_samples(job.limits, shape.train or None)
        self.leases = leases(job, shape, self.total)
        self.progress = progress(job, shape, self.total)
        self.policy = sync_policy(job, shape, self.leases, self.progress.warm_start)
        self.batch = self.policy if isinstance(self.policy, Sandblaster) else None
        self.evaluations = Evaluations()
        self.snapshots = SnapshotSchedule(job.snapshots.every_s, job.snapshots.every_iterations)
        self.pushes_twice = 0
        self.end_saved = False
        self._set_has_end = False  # the current or last set was begun after the end
        self.losses = Losses()
        self.reports = ReportDeduplicator()
        self._replicas = job.replicas
        self._wall_s = job.limits.wall_s
        self._began_s = 0.0

    def begin(self, now_s: float) -> None:
        """Start the timers at `now_s`."""
        self._began_s = now_s
        self.restart_timers(now_s)

    # -- work --------------------------------------------------------------------------------------------

    def assign(
        self, request: WorkRequest, trains: bool, evaluates: bool, living: Collection[int], now_s: float
    ) -> Assignment:
        """Assign the work that an incarnation holds, else an evaluation, else data, or a bundle of a batch method.

        A repeated request, whose reply was lost, gets the same.

        Parameters
        ----------
        trains, evaluates
            Whether new leases of data or bundles, and new evaluations, are granted now.
        living
            Numbers of the replicas that share a pass of a batch method.
        """
        # Work that is held precedes evaluations, because in lockstep the others wait for it.
        trains, evaluates = trains and request.wants != Wants.EVALUATION, evaluates and request.wants != Wants.TRAINING
        work: Assignment | None = None
        if request.wants != Wants.EVALUATION:
            work = self.policy.held(request)
        if work is None and request.wants != Wants.TRAINING:
            work = self.evaluations.held(request.incarnation)
        if work is None and evaluates and self._readable and not request.prefetch:
            work = self.evaluations.grant(request.incarnation, self.leases.next_id, self.progress.samples)
            self.leases.next_id += work is not None
        if work is None and trains:
            work = self.policy.request_lease(request, living, now_s)
        # A script that draws ahead, or evaluates between its steps, goes on with the lease that it has.
        goes_on = request.wants is not Wants.ANY and self.leases.holds(request.incarnation)
        if not goes_on and (work is None or isinstance(work, EvaluationLease)):
            self.policy.without_lease(request, work)
        return work or Wait(self.policy.retry_s)

    @property
    def offer(self) -> tuple[object, ...]:
        """Changes whenever a replica in lockstep that found no work may find some: a lease, or an evaluation."""
        return self.policy.offer, self.evaluations.queued and self._readable

    @property
    def _readable(self) -> bool:
        return self.policy.at_rest and not self._keeps_while(self.snapshots.running)

    def bundle_done(self, number: int, incarnation: int, result: BundleResult, now_s: float) -> bool:
        """Record a bundle that all shards hold; whether it is new."""
        if self.batch is None or not self.batch.bundle_done(number, incarnation, result, now_s):
            return False
        self.progress.record_report(number, ProgressReport(pushes=1, samples=result.samples), now_s)
        return True

    def program_ran(self, ticket: int, scalars: list[float]) -> list[Action]:
        """The batch method's program has run on all shards; the events to log."""
        assert self.batch is not None
        events = self.batch.program_ran(ticket, scalars)
        self.progress.divergence.loss = self.batch.method.value
        return events

    def rewind(self, state: Mapping[str, Any], now_s: float) -> int:
        """Restore the batch method's state of the set that all shards have loaded; the iterations rolled back."""
        assert self.batch is not None
        back = self.batch.rewind(state)
        self.end_saved = bool(self.batch.ended)
        self.restart_timers(now_s)
        return back

    def suspend(self) -> bool:
        """Discard the work under way where all shards are to return to a set; see `SyncPolicy.suspend`."""
        if not self.policy.suspend():
            return False
        self.evaluations.requeue_all()
        if self.snapshots.running:
            self.abort_set()
        return True

    def settle_groups(self, now_s: float) -> None:
        """Record the result of a group's block, once all its members have reported it or are fenced."""
        for replica, pushes, samples, lost in self.policy.settle():
            if pushes or lost:
                new = ProgressReport(pushes=pushes, samples=samples, lost=lost)
                self.progress.record_report(replica, new, now_s)

    def record_report(
        self, number: int, incarnation: int, report: ProgressReport, now_s: float
    ) -> tuple[bool, str | None]:
        """Record an incarnation's report of its pushes; whether it is new, and a reason to fail the job, if any."""
        rounds = self.policy.rounds_after(report.lease, report.position)
        self.progress.rounds = max(self.progress.rounds, rounds, report.open_round)
        self.leases.acknowledge(incarnation, report.lease, report.position, report.sequence)
        new = self.reports.delta(incarnation, report)
        self.losses.report(incarnation, new.lost if new is not None else 0)
        if new is not None and not report.lease:  # a client's
            self.leases.outside += new.samples
        return new is not None, self.progress.record_report(number, new, now_s) if new is not None else None

    def evaluated(
        self, incarnation: int, lease_id: int, loss: float, accuracy: float | None, metrics: Mapping[str, float]
    ) -> EvaluationOutcome:
        """Record an incarnation's evaluation result."""
        lease = self.evaluations.complete(lease_id, incarnation)
        if lease is None:
            return EvaluationOutcome(None, self.evaluations.storage_name(lease_id, incarnation))
        new = Evaluated(loss, accuracy, lease.samples, dict(metrics))
        if lease.set == "test":
            self.progress.test = new
            return EvaluationOutcome(lease)
        if not math.isfinite(loss):
            self.progress.divergence.not_finite += 1
            reason_to_fail = f"diverged: the validation loss is {loss} after {lease.samples} samples; try a lower rate"
            return EvaluationOutcome(lease, reason_to_fail=reason_to_fail)
        keep_as, reason = self.progress.evaluated(new)
        if keep_as:
            self.evaluations.store(lease_id, incarnation, new.kept_as(keep_as))
        return EvaluationOutcome(lease, keep_as, reason_to_close=reason or "")

    def evaluation_stored(self, lease_id: int) -> None:
        """The parameters of an evaluation are completely stored on the shards."""
        best = self.evaluations.stored(lease_id)
        if best is not None:
            self.progress.record_best(best)

    # -- resume from a snapshot set ----------------------------------------------------------------------

    def set_state(self) -> dict[str, Any]:
        """The part of a set's state that is the training's, JSON-serialisable."""
        return {
            "leases": self.leases.state(),
            "losses": self.losses.state() if self.policy.leases_are_pushed else None,
            "progress": self.progress.state(),
            "batch": self.batch.state() if self.batch is not None else None,
            "pushes_twice": self.pushes_twice,
            "sets": self.snapshots.count,
            "clock": self.policy.clock,
            "member_epoch": self.policy.member_epoch,
        }

    def resume(self, state: dict[str, Any], ledgers: Mapping[int, Applied]) -> None:
        """Restore a set's state, once the set is loaded into the shards."""
        # The ledgers are authoritative: what they lack is trained again, and not counted twice.
        twice, corrections = self.leases.restore(state["leases"], ledgers)
        self.pushes_twice = state["pushes_twice"] + twice
        self.progress.restore(state["progress"], corrections)
        if state.get("losses") is not None:  # else of an earlier version, or another strategy
            self.losses.restore(state["losses"])
            self._count_losses(pushed_before(state["leases"]), ledgers)
        self.progress.settle_all()  # every member that joins now is a new incarnation
        if self.batch is not None and state.get("batch"):  # sets of another strategy have no such state
            self.batch.rewind(state["batch"])
        self.policy.resume(state["clock"], state["member_epoch"])

    # -- another coordinator -----------------------------------------------------------------------------

    def state(self, now_s: float) -> dict[str, Any]:
        """The state as of now but for the rows of leases, incarnations and replicas, JSON-serialisable."""
        return {
            "leases": self.leases.figures(),
            "progress": self.progress.figures(),
            "evaluations": self.evaluations.state(),
            self.policy.section: self.policy.state(),
            "end_kept": self.end_saved,
            "warm_replica": self.progress.warm_start.replica,
            "pushes_twice": self.pushes_twice,
            "sets": self.snapshots.count,
            "trained_s": round(now_s - self._began_s, 3),
        }

    def take_over(self, state: dict[str, Any], now_s: float) -> None:
        """Restore the state of another coordinator."""
        self.leases.take_over(state["leases"])
        self.losses.restore(state["losses"])
        self.progress.restore(state["progress"], {})
        self.reports.restore(state["reports"])
        self.evaluations.restore(state["evaluations"])
        self.policy.restore(state.get(self.policy.section))
        self.end_saved = state["end_kept"]
        self.progress.warm_start.replica = state["warm_replica"]
        self.pushes_twice, self.snapshots.count = state["pushes_twice"], state["sets"]
        self.begin(now_s)
        self._began_s -= state["trained_s"]

    # -- end of an incarnation ---------------------------------------------------------------------------

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> list[EvaluationLease]:
        """An incarnation has ended, as far as the coordinator can determine: it failed, or it left.

        Returns the evaluations that are not repeated any more.
        """
        self.policy.replica_lost(incarnation, died, now_s)
        return self.evaluations.holder_lost(incarnation, died)

    def fenced(self, number: int, incarnation: int, applied: Applied, evaluate: bool, now_s: float) -> list[Action]:
        """An incarnation can push no more; the actions that follow.

        Parameters
        ----------
        applied
            Its pushes in the shards' ledgers.
        evaluate
            Whether an evaluation whose parameters it did not store completely is to be repeated.
        """
        actions = self.policy.fenced(number, incarnation)
        if actions is not None:
            lost = 0
            if self.policy.leases_are_pushed:
                lost = self.losses.count(incarnation, self.leases.reached.get(incarnation, 0), applied)
            samples, pushes, twice = self.leases.revoke(incarnation, applied)
            if samples or lost:
                new = ProgressReport(pushes=pushes, samples=samples, lost=lost)
                self.progress.record_report(number, new, now_s)
            self.pushes_twice += twice
        self.evaluations.fenced(incarnation, again=evaluate)
        self.progress.settle(incarnation)
        self.reports.settle(incarnation)
        return actions or []

    def shard_restored(self, lowest: Mapping[int, int]) -> None:
        """Count what a restored shard lacks of incarnations that have ended; those that push report it themselves."""
        self.progress.lost += self.leases.lost_at_restore(lowest)

    def reached(self) -> dict[int, int]:
        """By pusher, number of its last push that is known to be acknowledged."""
        reached = self.leases.reached
        return {incarnation: reached.get(incarnation, 0) for incarnation in self.leases.pushers()}

    def count_losses(self, reached: Mapping[int, int], ledgers: Mapping[int, Applied]) -> None:
        """Count what restored shards lack of pushers that have no further push to report it with.

        `reached`: as it was before the ledgers were read. A client may push meanwhile, which is no loss.
        """
        if self.policy.leases_are_pushed:
            self._count_losses(reached, ledgers)

    def _count_losses(self, reached: Mapping[int, int], ledgers: Mapping[int, Applied]) -> None:
        for incarnation in sorted(reached.keys() | ledgers.keys()):
            applied = ledgers.get(incarnation, Applied())
            self.progress.lost += self.losses.count(incarnation, reached.get(incarnation, 0), applied)

    def vectors_lost(self, best: Best | None) -> None:
        """A shard failed: of the stored evaluations, only `best` is complete in the newest set."""
        self.progress.best = best
        self.evaluations.forget_vectors()

    # -- progress ----------------------------------------------------------------------------------------

    def advance(self, living: Mapping[int, int], now_s: float) -> list[Action]:
        """The actions that are due; `living` are the replicas, incarnation by number."""
        actions: list[Action] = []
        if self.progress.warm_start_ends():
            actions.append(LogEvent("warm_start", {"samples": self.progress.samples}))
        if self.policy.at_rest and self._set_due(now_s) and not self._keeps_while(self.evaluations.under_way):
            actions.append(self.begin_set())
        if not self.evaluations.busy and self.progress.evaluation_due():
            self.evaluations.request("validation", PARAMETERS)
        if len(living) >= self._replicas or not self.policy.needs_all_replicas:
            read = self.snapshots.running or self.evaluations.queued
            actions += self.policy.advance(living, read, self.evaluations.leased)
        return actions

    def reason_to_close(self, now_s: float) -> str:
        """The reason to close, "" for none."""
        if self._wall_s is not None and now_s - self._began_s >= self._wall_s:
            return f"wall time {self._wall_s:g} s reached"
        if self.policy.ended:
            return self.policy.ended if self.end_saved else ""
        if self.leases.epoch_samples and self.leases.total:
            # A failed replica's leases stay outstanding until its completed work is known.
            finished = self.leases.finished and not self.policy.unpersisted_steps
        else:  # a batch method, or clients with training loops of their own
            finished = self.total is not None and self.progress.samples >= self.total
        return f"{self.progress.samples:,} samples trained" if finished else ""

    def _set_due(self, now_s: float) -> bool:
        # The final state of a batch method is saved before the replicas are stopped: later it could not be recomputed.
        ended = bool(self.policy.ended) and not self.end_saved
        return self.snapshots.due(now_s, self.policy.iterations) or (ended and not self.snapshots.running)

    def _keeps_while(self, busy: bool) -> bool:
        # A set must hold complete best parameters, so storing them and writing a set exclude each other.
        return busy and self.progress.keep_best

    # -- snapshot sets -----------------------------------------------------------------------------------

    def restart_timers(self, now_s: float) -> None:
        """Restart the time and the iteration count until the next set."""
        self.snapshots.restart_timer(now_s, self.policy.iterations)

    def begin_set(self) -> TakeSnapshot:
        """Begin a snapshot set."""
        self.leases.begin_set()
        self._set_has_end = bool(self.policy.ended)
        return self.snapshots.begin(self.progress.samples)

    def abort_set(self) -> None:
        """Abort the set under way."""
        self.snapshots.running = False
        self.leases.end_set(complete=False)

    def end_set(self, now_s: float, complete: bool) -> None:
        """The set is complete, or could not be written: then another attempt would fail as well."""
        self.end_saved = self.end_saved or self._set_has_end
        self.snapshots.complete(now_s, self.policy.iterations)
        self.leases.end_set(complete)
