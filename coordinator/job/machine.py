"""One job as a state machine: events in, actions out. No clock, no socket, no file.

    EMPTY --shards and layout--> INITIALISING --initial set written--> READY --all trained, or a limit--> CLOSING
    CLOSING --leases in, result chosen, set, export, evaluated--> DONE  any error before the export --> FAILED

Every method that processes an event first applies it, then calls `_advance`. The resulting actions are appended to
`actions` for the event loop, which reports their outcome by further events.

One file because every event ends in `_advance`, which reads the state of all components.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease
from dbelief.core.placement import Placement
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Rejected, UserError
from dbelief.job import Job
from dbelief.rundir.summary import outcome_text
from dbelief.sparse.kept_tables import kept_tables, tables_difference
from dbelief.sparse.table import number_tables

from ..cluster.initialization import Initialization
from ..cluster.recovery import Recovery
from ..cluster.replication import ReplicationManager
from ..cluster.resharding import Resharding
from ..core import effects, messages
from ..core.ledgers import Applied
from ..core.members import Member, Members
from ..core.states import DatasetSizes, ShutdownPhase, State
from ..scheduling.leases import Skipped
from ..scheduling.training import Training
from .shutdown import Shutdown
from .timeouts import JoinTimeouts

_STUCK = 2.0
"""A replica whose lease makes no progress for this multiple of `progress_s` is removed: its calls would have failed."""

_REPORTS_PER_S = 100.0
"""Progress reports of all replicas together, beside those at the ends of leases."""

_DOING = {
    DataLease: "training",
    messages.GroupLease: "training",
    messages.BundleLease: "training",
    messages.EvaluationLease: "evaluating",
}
"""Displayed state of a member, by the type of its work."""


class JobMachine:
    """The job between two events.

    Parameters
    ----------
    job
        The job file.
    shape
        Sizes of its data sets; zeros where it has no data.
    resume
        Snapshot set to resume from: its id, and the state in its set.json (without the shards' ledgers).
    first_shard_epoch
        Lowest shard epoch that may be issued: above all epochs in registry and set.
    run_id
        Random id of this run of the job: new where the job is started anew or resumed, unchanged by coordinator
        failover. Members send it, and those of an earlier run are rejected: a resumed job cannot know which
        incarnations that run issued after its last snapshot set. 0: no id, and members send none.

    Raises
    ------
    UserError
        The set to resume from was made from other data.
    """

    def __init__(
        self,
        job: Job,
        shape: DatasetSizes,
        resume: tuple[str, dict[str, Any]] | None = None,
        first_shard_epoch: int = 1,
        run_id: int = 0,
    ) -> None:
        self.job = job
        self.shape = shape
        self.state = State.EMPTY
        self.reason = ""
        self.actions: list[effects.Action] = []
        lease_s = job.deadlines.lease_s if job.replication > 1 else job.deadlines.beat_s
        self.members = Members(job.deadlines.beat_s, set(range(job.shards)), job.replication, lease_s)
        self.replication = ReplicationManager(job.replication, self.members)
        self.training = Training(job, shape)
        self.total = self.training.total
        self.leases = self.training.leases
        self.progress = self.training.progress
        tables = functools.partial(number_tables, job.tables, job.seed)
        self.initialization = Initialization(job.shards, resume[1] if resume else None, shape.train, run_id, tables)
        self.shutdown = Shutdown(shape, self.progress, self.training.evaluations)
        self.recovery = Recovery(
            self.initialization, self.members, self.training, self.replication, resume[0] if resume else None
        )
        self.resharding = Resharding(job, self.initialization, self.members, self.recovery, self.next_shard_epoch)
        self.timeouts = JoinTimeouts(self.members, job.deadlines.join_s, job.replicas, resume is not None)
        self.shard_epoch = first_shard_epoch
        self.failures: Counter[str] = Counter()  # of members and coordinators, by kind and number
        self.commit_due = True
        self.finished = False
        self.resumes = resume is not None
        self.trained = ""  # why a run that is resumed had ended training, where it lacks only evaluations
        # Wall time in seconds before the resume, as stored in the set.
        self.earlier_wall_s: float = resume[1].get("wall_s", 0.0) if resume is not None else 0.0
        self._resume = resume
        if resume is not None:
            set_id, state = resume
            if what := self.leases.difference(state["leases"]):
                raise UserError(f"snapshot set {set_id}: was made of {what}")
            kept = state.get("tables")  # an earlier version stored none
            if kept is not None and (what := tables_difference(kept, job.tables, job.seed)):
                raise UserError(f"snapshot set {set_id}: {what}; resume it with the tables that it has")
            # The set's ledgers have rows up to this incarnation: pushes of a reused one would be dropped as duplicates.
            self.members.incarnations = state["incarnations"]
            self.training.snapshots.count = state["sets"]

    @property
    def resumed_samples(self) -> int:
        """Samples trained in the set to resume from; 0 without one."""
        return int(self._resume[1]["progress"]["samples"]) if self._resume is not None else 0

    @property
    def lease_samples(self) -> int:
        """Samples in a lease of the usual size; 0 where a batch method assigns portions."""
        return self.leases.size if self.training.batch is None else 0

    @property
    def run_id(self) -> int:
        """Id of this run of the job."""
        return self.initialization.run_id

    @property
    def layout(self) -> Layout | None:
        """The model's layout, once a replica has sent it."""
        return self.initialization.layout

    @property
    def placement(self) -> Placement | None:
        """Segment placement, once all shards have joined."""
        return self.initialization.placement

    @property
    def over(self) -> bool:
        """Whether the job is done or failed."""
        return self.state in (State.DONE, State.FAILED)

    @property
    def outcome(self) -> str:
        """The reason of the present state, and the evaluations that have failed."""
        return outcome_text(self.reason, self.shutdown.failures)

    def close(self, reason: str, evaluate: bool = True) -> None:
        """End as planned: finish what is leased, snapshot, export, evaluate; the last not without `evaluate`."""
        if self.state is not State.READY:
            return
        self.shutdown.trained = evaluate
        if not evaluate:
            self.shutdown.stop_evaluating()
        self._become(State.CLOSING, reason)

    def fail(self, reason: str) -> None:
        """End the job now, with a reason; once the model is written, only its evaluation fails."""
        if self.over:
            return
        if self.state is State.CLOSING and self.shutdown.phase is ShutdownPhase.EVALUATE:
            self._leave_out_evaluations(reason)
            self._finish(State.DONE, self.reason)
        else:
            self._finish(State.FAILED, reason)

    def launcher_failed(self, reason: str, now_s: float) -> None:
        """Process a launcher's report that it cannot start again what the job needs."""
        if self.state is not State.CLOSING or self.recovery.unavailable:
            self.fail(reason)
        elif not self.over:  # training is done: the model needs the shards only
            self._leave_out_evaluations(reason)
            self._advance(now_s)

    def _leave_out_evaluations(self, reason: str) -> bool:
        left_out = self.shutdown.leave_out_evaluations(reason)
        if left_out:
            self._log_event("evaluation_failed", set=left_out, reason=reason)
        return bool(left_out)

    def _finish(self, state: State, reason: str) -> None:
        self._become(state, reason)
        self.actions.append(effects.FinishRun())

    def waiting_for(self) -> str:
        """What the job waits for before it trains, or for the resharding in progress; "" for nothing."""
        waits = self.timeouts.waiting_for(self.state, self.training.policy.needs_all_replicas)
        return waits or (self.resharding.waiting_for() if self.state is State.READY else "")

    def next_shard_epoch(self) -> int:
        """A shard epoch that no incarnation of a shard has had."""
        self.shard_epoch += 1
        return self.shard_epoch

    def set_state(self) -> dict[str, Any]:
        """Contents of set.json beside the shards' manifests; read when all shards have written theirs."""
        assert self.layout is not None
        assert self.placement is not None
        return {
            **self.training.set_state(),
            "incarnations": self.members.incarnations,
            "segments": len(self.placement.spans),
            "nominal_length": self.initialization.nominal_length,
            "shard_epoch": self.shard_epoch,
            "first_run_id": self.initialization.first_run_id,
            "layout": self.layout.digest(),
            "tables": kept_tables(self.job.tables, self.job.seed),
            "boxes": self.layout.rows(),  # so that the set is readable without the model's code
            "samples": self.initialization.samples and self.initialization.samples.text,
        }

    # -- membership --------------------------------------------------------------------------------------

    def join(
        self,
        kind: str,
        token: int,
        name: str,
        address: str,
        now_s: float,
        layout: Layout | None = None,
        source_digest: str = "",
        requested_number: int | None = None,
        restarted: bool = False,
        train_samples: int = 0,
        samples: SampleForm | None = None,
    ) -> Member:
        """Add a member; `restarted`: its process was restarted, and its earlier incarnation under this name has ended.

        Raises
        ------
        Rejected
            A layout, source, number or form of samples other than the job's, or a job that is over.
        ResourceExhausted
            All places for shards are occupied.
        """
        if self.over:
            raise Rejected(f"job {self.job.name!r} is over: {self.outcome}")
        if kind != "shard":
            if layout is None:
                raise Rejected("a replica joins with its model's layout")
            self.initialization.check_model(layout, source_digest, train_samples, samples)
            self.training.policy.set_layout(layout)
        before = self.members.named(kind, name, token) if restarted else None
        if before is not None:
            self._member_lost(before, "died", "its process was restarted", now_s)
        issued = self.members.incarnations
        member = self.members.join(kind, token, name, address, now_s, requested_number)
        if self.members.incarnations > issued:  # else the call is a retry
            self._log_event("member", role=member.kind, id=member.number, what="joined", reason="", name=name)
            if member.kind == "shard" and self.placement is not None and member.number in self.members.needed:
                self.actions.append(self.recovery.recover(member, self.next_shard_epoch()))
        self._advance(now_s)
        return member

    def member(self, kind: str, number: int, incarnation: int) -> Member | None:
        """Member with exactly this incarnation, if alive; for kind "shard" also a follower."""
        find, server = self.members.find, self.members.find_server
        return server(number, incarnation) if kind == "shard" else find(kind, number, incarnation)

    def heartbeat(self, kind: str, number: int, incarnation: int, now_s: float) -> bool:
        """Record a member's heartbeat; False if it has been removed."""
        member = self.member(kind, number, incarnation)
        if member is None:
            return False
        member.last_beat_s = now_s
        return True

    def may_leave(self, number: int, incarnation: int) -> bool:
        """Whether a shard asked to exit may: a set begun since covers it, or none follows. The shard polls this."""
        member = self.members.find("shard", number, incarnation)
        return member is None or self.state is not State.READY or self.training.snapshots.covers(member)

    def leave(self, kind: str, number: int, incarnation: int, reason: str, now_s: float, failed: bool = False) -> None:
        """Remove a member that leaves, or that ends because of an error; its unfinished work is returned."""
        member = self.member(kind, number, incarnation)
        if member is not None:
            how = "died" if failed else "left"
            self._member_lost(member, how, self._release_reason(member) or reason, now_s)

    def initialises(self, number: int, incarnation: int) -> bool:
        """Whether this replica is to push the initial values."""
        if self.state is not State.INITIALISING or self.members.find_pusher(number, incarnation) is None:
            return False
        if self.recovery.unavailable:  # the placement names a shard that has failed
            return False
        return self.initialization.initialises(incarnation)

    def tick(self, now_s: float, backlog_s: float = 0.0) -> None:
        """Process the passing of time: heartbeat timeouts, limits, periodic snapshots.

        `backlog_s`: time for which the oldest call has waited to be processed.
        """
        for member in self.members.expired(now_s, backlog_s):
            if now_s - member.last_beat_s <= self.members.heartbeat_timeout_s(member.kind):
                continue  # it has just become the last copy of its shard
            self._member_lost(member, "died", f"no heartbeat for {now_s - member.last_beat_s:.1f} s", now_s)
        if self.recovery.unavailable or self.training.policy.waits_at_shards:
            self.members.reset_progress_timers(now_s)
        for member in self.members.stalled(now_s, _STUCK * self.job.deadlines.progress_s):
            self._member_lost(member, "died", f"no progress for {self.members.idle_s(member, now_s):.0f} s", now_s)
        self._advance(now_s)

    def _member_lost(self, member: Member, how: str, reason: str, now_s: float) -> None:
        self.members.mark_ended(member, how)
        residual = self.progress.residual({member.incarnation}) if member.kind != "shard" else 0.0
        extra = {"residual": residual} if residual else {}
        self._log_event(
            "member", role=member.kind, id=member.number, what=how, reason=reason, name=member.name, **extra
        )
        if self.over:
            return
        if how == "died":
            self.failures[f"{member.kind} {member.number}"] += 1
        if member.kind in ("shard", "follower"):
            self._server_lost(member, how, reason, now_s)
            return
        for lease in self.training.replica_lost(member.incarnation, how == "died", now_s):
            why = f"{member.kind} {member.number} failed at it, like others before: {reason}"
            self._evaluation_failed(lease.set, why)
        self.initialization.pusher_lost(member.incarnation, last=not self.members.alive("replica", "client"))
        if self.placement is not None:
            self.actions.append(effects.Fence(member.number, member.incarnation))
        self._advance(now_s)

    def fenced(self, number: int, incarnation: int, applied: Applied, now_s: float) -> None:
        """Record that the shards reject this incarnation now; `applied`: its pushes in their ledgers."""
        self.members.settle(incarnation)
        self.commit_due = True
        self.actions.append(effects.DropLedger(incarnation))
        self.actions += self.training.fenced(number, incarnation, applied, self.shutdown.evaluate, now_s)
        self._advance(now_s)

    def ledger_dropped(self, incarnation: int) -> None:
        """Record that no shard has ledger rows of this incarnation."""
        self.members.unforgotten.pop(incarnation, None)
        self.training.losses.forget(incarnation)

    # -- shards ----------------------------------------------------------------------------------------

    def _release_reason(self, member: Member) -> str:
        """Reason why the job released a shard; "" where it did not."""
        dismissed = member.kind == "shard" and not self.over and member.number not in self.members.needed
        return f"{self.resharding.wanted} shards are wanted" if dismissed else ""

    def _server_lost(self, member: Member, how: str, reason: str, now_s: float) -> None:
        """Handle the end of a shard or a follower."""
        if member.kind == "follower":
            self.actions += self.replication.follower_lost(member)
            return
        if self.placement is not None and self.resharding.shard_lost(member):
            self._advance(now_s)
            return
        self.timeouts.shard_lost = f"{member.title} at {member.address} {how}: {reason}"
        if self.placement is None:
            return
        follower = self.recovery.promote_follower(member, now_s)
        self.shutdown.restart_reads()
        if follower is not None:
            self.actions.append(self.recovery.recover(follower, self.next_shard_epoch()))

    def follower_reported(self, shard: int, epoch: int, followed: bool, unfollowed: str) -> None:
        """Process a shard's report on its follower; `unfollowed`: why it has none."""
        if not self.over:
            actions = list(self.replication.leader_reported(shard, epoch, followed, unfollowed))
            self.commit_due = self.commit_due or bool(actions)
            self.actions += actions

    def shard_recovered(
        self, action: effects.RecoverShard, set_id: str | None, lowest: Mapping[int, int], now_s: float
    ) -> None:
        """Record that a shard is recovered from this set, or that a new one is ready to receive segments.

        `lowest`: of a restored shard, by incarnation of a pusher: its last push that every segment has.
        """
        if self.resharding.is_new(action.place):
            if self.resharding.shard_admitted(action):
                self._log_event("shard_taken_in", shard=action.place.shard)
                self._advance(now_s)
            return
        best = self.progress.best
        due = self.recovery.shard_recovered(action, set_id)
        if self.progress.best != best or not self.shutdown.writes:
            self.shutdown.restart_reads()
        if due is not None:
            shard = action.place.shard
            if action.promoted:
                self._log_event("promoted", shard=shard, set=set_id)
            else:
                self.training.shard_restored(lowest)
                held = self.training.snapshots.samples_in(set_id)
                self._log_event("shard_back", shard=shard, set=set_id, samples=held, of=self.progress.samples)
                if not self.shutdown.evaluates_what_is_written(complete=held >= self.progress.samples):
                    self.fail(f"shard {shard} was restored from set {set_id}, which is older than the model")
            self.actions += due
            if self.recovery.rollback_set is not None and not self.recovery.unavailable:
                self.actions += [*self.replication.detach_all(), effects.RollBack(self.recovery.rollback_set)]
            self._advance(now_s)

    def rolled_back(self, set_id: str, state: dict[str, Any], now_s: float) -> None:
        """Record that all shards restored this set."""
        if self.over or not self.recovery.rolled_back(set_id):
            return
        back = self.training.rewind(state["batch"], now_s)
        self._log_event("rolled_back", set=set_id, iterations=back)
        if back:  # the tested parameters are lost
            self.progress.test = None
        self.commit_due = True
        self._advance(now_s)

    # -- resharding --------------------------------------------------------------------------------------

    def request_shards(self, shards: int, now_s: float) -> None:
        """Request a number of shards.

        Raises
        ------
        Rejected
            See `Resharding.request`.
        """
        self.actions += self.resharding.request(shards, self.state, now_s)
        if self.resharding.running:
            self.actions += self.replication.detach_all()
        self.commit_due = True
        self._advance(now_s)

    def segments_migrated(self, move: effects.MigrateSegments, seconds: float, sent: int) -> None:
        """Record a migration: `sent` bytes of segments are now served by another shard, after `seconds`."""
        self.commit_due = self.resharding.segments_migrated(move, seconds, sent) or self.commit_due

    def migration_failed(self, move: effects.MigrateSegments, reason: str, now_s: float) -> None:
        """Record a failed migration: the segments stay at their shard."""
        self._log_event("not_moved", shard=move.sender, to=move.receiver, segments=len(move.segments), reason=reason)
        self.resharding.migration_failed(move, now_s)

    def ownership_confirmed(self, move: effects.MigrateSegments, now_s: float) -> None:
        """Record that both shards of a migration have their ownership, whatever its outcome."""
        self.resharding.ownership_confirmed(move)
        self._advance(now_s)

    # -- replies of shards -------------------------------------------------------------------------------

    def assigned(self, now_s: float) -> None:
        """Record that every shard has its segments."""
        self.initialization.assigned = True
        if self._resume and not self.over:
            self.actions.append(effects.Restore(self._resume[0]))
        self._advance(now_s)

    def restored(self, ledgers: Mapping[int, Applied], now_s: float) -> None:
        """Record that every shard holds the set's values and accepts pushes."""
        assert self._resume is not None
        self.recovery.loading = False
        self.training.resume(self._resume[1], ledgers)
        self.actions += self.training.policy.membership_changes()
        self.ready(now_s)

    def initialised(self, incarnation: int, placement_epoch: int, now_s: float) -> None:
        """Record that all initial values are acknowledged; they are written to a set before training starts.

        `placement_epoch`: of the placement to which they were pushed. A shard that failed while they were pushed may
        have acknowledged them; its replacement, which another placement names, does not have them.
        """
        if self.state is not State.INITIALISING or self.placement is None or self.placement.epoch != placement_epoch:
            return
        if self.initialization.initialised(incarnation):
            self.actions.append(self.training.begin_set())
            self._advance(now_s)

    def snapshot_taken(self, set_id: str, now_s: float) -> None:
        """Record a complete snapshot set."""
        self.training.end_set(now_s, complete=True)
        self.recovery.set_taken(set_id)
        self._log_event("snapshot", set=set_id)
        if self.state is State.INITIALISING and self.initialization.complete:
            self.actions.append(effects.MakeReady())
        self._advance(now_s)

    def abort_obsolete_set(self) -> bool:
        """Abort the first set where a shard has failed since it was begun: initial values are pushed again.

        Returns whether it was aborted.
        """
        obsolete = self.state is State.INITIALISING and not self.initialization.complete
        if obsolete:
            self.training.abort_set()
        return obsolete

    def retake_set(self) -> str:
        """Restart the set in progress under another id, which is returned."""
        return self.training.snapshots.begin(self.progress.samples).set_id

    def set_failed(self, now_s: float) -> bool:
        """Record that a set could not be written; False where the job cannot continue without it."""
        if self.abort_obsolete_set():
            return True
        if self.state is not State.READY:
            return False
        self.training.end_set(now_s, complete=False)
        self._log_event("snapshot_failed")
        return True

    def ready(self, now_s: float) -> None:
        """Record that every shard accepts pushes."""
        if self.over:  # it failed while the shards were notified
            return
        self.training.begin(now_s)
        self._become(State.READY, "")
        if self.trained:
            self.close(self.trained)
        self._advance(now_s)

    def postpone(self, action: effects.Action) -> None:
        """Postpone an action that did not reach all shards until all of them are available."""
        if self.over:
            return
        if isinstance(action, effects.Export) and not self.shutdown.exports(action.vector):
            return  # it is requested again: earlier phases repeat, as a shard has failed since
        self.actions += self.recovery.postpone(action)

    # -- work --------------------------------------------------------------------------------------------

    def lease(self, request: messages.WorkRequest, now_s: float, heard_s: float | None = None) -> messages.Assignment:
        """Assign work to a replica; a repeated call, whose reply was lost, gets the same.

        A client gets evaluations only, and those only while there is no replica.

        Parameters
        ----------
        heard_s
            When the request was received, where it was held since; None: now.
        """
        member = self.members.find_pusher(request.replica, request.incarnation)
        if member is None:
            return messages.Stop(f"replica {request.replica} was removed; its work was reassigned")
        member.last_beat_s = now_s if heard_s is None else max(member.last_beat_s, heard_s)
        if self.over or (self.state is State.CLOSING and not self.shutdown.needs_replicas):
            return messages.Stop(self.outcome)
        closing = self.state is State.CLOSING and self.shutdown.phase > ShutdownPhase.DRAIN
        ready = self.state is State.READY
        living, client = self.members.replicas.keys(), member.kind == "client"
        evaluates = (ready or closing) and not (client and living)
        work = self.training.assign(request, ready and not client, evaluates, living, now_s)
        self.actions += self.training.policy.membership_changes()
        if client and isinstance(work, messages.Wait) and (self.state is State.READY or not self.shutdown.evaluates):
            work = messages.Stop("a client trains on data of its own, and no evaluation waits")
        if not request.prefetch:  # else it prefetches, and is still at work
            member.state = _DOING.get(type(work), "waiting")
        member.moved_s = now_s
        self.commit_due = self.commit_due or not isinstance(work, messages.Wait)
        self._advance(now_s)
        return work

    @property
    def offer(self) -> tuple[object, ...]:
        """Changes whenever a replica in lockstep that found no work may find some."""
        return self.state, self.shutdown.phase, *self.training.offer

    @property
    def client_evaluates(self) -> bool:
        """Whether an evaluation is pending for clients, as there is no replica."""
        return self.training.evaluations.queued and not self.members.alive("replica")

    def record_contact(self, number: int, incarnation: int, now_s: float) -> bool:
        """Record that an incarnation is alive and that its work makes progress; False if it has been removed."""
        member = self.members.find_pusher(number, incarnation)
        if member is None:
            return False
        member.last_beat_s = member.moved_s = now_s
        return True

    @property
    def report_every_s(self) -> float:
        """Seconds at least between two progress reports of one replica within a lease."""
        spread_s = len(self.members.alive("replica", "client")) / _REPORTS_PER_S
        return min(spread_s, self.job.deadlines.progress_s / 2)  # a replica without reports is removed

    def record_usage(self, number: int, incarnation: int, usage: messages.ResourceUsage) -> None:
        """Record an incarnation's resource usage, as totals since it started."""
        if usage != messages.ResourceUsage() and self.members.find_pusher(number, incarnation) is not None:
            self.progress.record_usage(number, incarnation, usage)

    def report_progress(self, number: int, incarnation: int, report: messages.ProgressReport, now_s: float) -> None:
        """Process a replica's or client's report of acknowledged work; only what is new is applied."""
        if self.over or self.members.find_pusher(number, incarnation) is None:
            return
        new, trouble = self.training.record_report(number, incarnation, report, now_s)
        if not new:
            return
        self._log_progress()
        if trouble:
            self.fail(trouble)
        self._advance(now_s)

    def skip_samples(self, number: int, incarnation: int, skipped: Sequence[Skipped]) -> None:
        """Record samples that a replica has drawn and does not train: they are leased again."""
        if not self.over and self.members.find("replica", number, incarnation) is not None:
            self.leases.skip(incarnation, skipped)
            self.commit_due = True  # else the next coordinator would count them as trained

    def bundle_done(self, number: int, incarnation: int, result: messages.BundleResult, now_s: float) -> None:
        """Record a replica's bundle that all shards hold."""
        if self.over or self.members.find("replica", number, incarnation) is None:
            return
        # Not persisted: another coordinator has it computed again, and the shards drop the duplicate.
        if self.training.bundle_done(number, incarnation, result, now_s):
            self._log_progress()
            self._advance(now_s)

    def bundle_failed(self, number: int, incarnation: int, turn: int, bundle: int, reason: str, now_s: float) -> None:
        """Record that a replica could not compute a bundle; other replicas are to try it."""
        batch = self.training.batch
        if self.over or batch is None or self.members.find("replica", number, incarnation) is None:
            return
        work = batch.failed_at(incarnation, turn, bundle, reason, now_s)
        if work is not None:
            self.commit_due = True
            self._log_event("bundle_failed", replica=number, start=work.start, stop=work.stop, reason=reason)
            self._advance(now_s)

    def program_due(self, ticket: int) -> bool:
        """Whether a program of the batch method is still to be run."""
        batch = self.training.batch
        return batch is not None and not self.over and batch.due(ticket)

    def program_ran(self, ticket: int, scalars: list[float], now_s: float) -> None:
        """Record that the batch method's program has run on all shards."""
        if self.over:
            return
        self.actions += self.training.program_ran(ticket, scalars)
        self.commit_due = True
        self._advance(now_s)

    def evaluated(
        self,
        number: int,
        incarnation: int,
        lease_id: int,
        loss: float,
        accuracy: float | None,
        now_s: float,
        metrics: Mapping[str, float] | None = None,
    ) -> str:
        """Record an evaluation result; returns the name to store its parameters under, "" for none."""
        lease, keep_as, trouble, enough = self.training.evaluated(incarnation, lease_id, loss, accuracy, metrics or {})
        client = self.members.find("client", number, incarnation)
        if client is not None:
            client.state = "waiting"  # it requests no lease that would set the state
        if lease is not None:
            self.shutdown.evaluated(lease.set)
            self._log_event(
                "evaluation",
                set=lease.set,
                samples=lease.samples,
                loss=loss,
                accuracy=accuracy,
                metrics=dict(metrics or {}),
            )
        if trouble and not self.over:  # of the parameters: a model of them that is written is worth nothing
            self._finish(State.FAILED, trouble)
        elif enough:
            self.close(enough)
        self._advance(now_s)
        return keep_as

    def evaluation_failed(self, incarnation: int, lease_id: int, reason: str, now_s: float) -> None:
        """Record that an evaluation cannot be made: data or model are wrong, and would be for every replica."""
        lease = self.training.evaluations.complete(lease_id, incarnation)
        if lease is not None and not self.over:
            self._evaluation_failed(lease.set, reason)
            self._advance(now_s)

    def _evaluation_failed(self, set_name: str, reason: str) -> None:
        """Record why an evaluation has no result; training ends where it depends on that, and its model is written."""
        self._log_event("evaluation_failed", set=set_name, reason=reason)
        self.shutdown.evaluated(set_name, failure=reason)
        self.close("stopped by a failed evaluation", evaluate=False)

    def evaluation_stored(self, lease_id: int, now_s: float) -> None:
        """Record that the parameters of an evaluation are completely stored on the shards."""
        self.training.evaluation_stored(lease_id)
        self.commit_due = True
        self._advance(now_s)

    # -- shutdown ----------------------------------------------------------------------------------------

    def stop(self, reason: str, now_s: float) -> None:
        """Stop the job on request: like `close`, without evaluations; one that closes goes on without them."""
        if self.state is State.READY:
            self.close(reason, evaluate=False)
            self._advance(now_s)
        elif self.state is State.CLOSING:
            self.shutdown.stop_evaluating()
            self.commit_due = True
            self._advance(now_s)
        elif self.state in (State.EMPTY, State.INITIALISING):
            self.fail(f"{reason}, before training began")

    def exported(self, reached: Mapping[int, int], ledgers: Mapping[int, Applied], now_s: float) -> None:
        """Record that the model is written; `reached`, `ledgers`: see `Training.count_losses`."""
        self.training.count_losses(reached, ledgers)
        self.shutdown.exported = self.shutdown.phase is ShutdownPhase.EXPORT
        self.commit_due = True  # another coordinator continues with the evaluations
        self._advance(now_s)

    # -- progress ----------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        self.training.settle_groups(now_s)
        settled = not (self.over or self.resharding.running or self.recovery.rollback_set)
        placed = self.placement if settled and self.initialization.assigned else None
        self.actions += self.replication.advance(placed, self.recovery.unavailable, self.next_shard_epoch, now_s)
        if self.state is State.EMPTY:
            self._advance_empty()
        elif self.state is State.READY:
            self._advance_ready(now_s)
        elif self.state is State.CLOSING:
            self._advance_closing()
        closing = self.state is State.CLOSING
        idle = self.over or (closing and (self.shutdown.writes or not self.shutdown.needs_replicas))
        expired = self.timeouts.expired_reason(self.state, self.training.policy.needs_all_replicas, not idle, now_s)
        if expired:
            hopeless = not closing or self.recovery.unavailable or self.shutdown.phase is ShutdownPhase.EVALUATE
            if hopeless or not self._leave_out_evaluations(expired):
                self.fail(expired)

    def _advance_empty(self) -> None:
        shards = self.members.alive("shard")
        if len(shards) == self.job.shards and self.layout is not None:
            self._become(State.INITIALISING, "")
            self.recovery.begin()
            self.actions.append(effects.AssignShards(self.initialization.create_placement(shards, self.shard_epoch)))

    def _advance_ready(self, now_s: float) -> None:
        self.actions += self.training.advance(self.members.replicas, now_s)
        self.actions += self.resharding.advance(now_s)
        if self.training.policy.failed:
            self.fail(self.training.policy.failed)
            return
        enough = self.training.reason_to_close(now_s)
        if enough:
            self.close(enough)
            self._advance_closing()

    def _advance_closing(self) -> None:
        """Enter every shutdown phase whose condition holds."""
        if self.recovery.rollback_set is not None:
            return
        # The leases of a lost incarnation stay outstanding until it is fenced.
        drained = not (self.leases.outstanding or self.training.evaluations.leased)
        if drained and (writes := self.training.policy.write_last(self.members.replicas)) is not None:
            self.actions += writes
            return
        while self.shutdown.advance(drained, self.training.snapshots.running):
            if self.shutdown.phase is ShutdownPhase.SNAPSHOT:
                if not (self.training.end_saved and self.recovery.best == self.progress.best):  # else it is written
                    self.actions.append(self.training.begin_set())
            elif self.shutdown.phase is ShutdownPhase.EXPORT:
                self.actions.append(effects.Export(self.shutdown.vector))
            elif self.shutdown.phase is ShutdownPhase.EVALUATE:
                if self.training.evaluations.queued:
                    self.actions.append(effects.WriteSummary())
            elif self.shutdown.phase is ShutdownPhase.DONE:
                self._finish(State.DONE, self.reason)

    # -- logging -----------------------------------------------------------------------------------------

    def _become(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason or self.reason
        self._log_event("state", state=state.value, reason=reason and outcome_text(reason, self.shutdown.failures))

    def _log_event(self, event: str, **fields: Any) -> None:
        self.commit_due = self.commit_due or event != "progress"
        self.actions.append(effects.LogEvent(event, fields))

    def _log_progress(self) -> None:
        p = self.progress
        self._log_event(
            "progress",
            samples=p.samples,
            epoch=self.epoch,
            loss=p.loss,
            staleness=p.staleness,
            **({"rounds": p.rounds} if p.rounds else {}),
            members=len(self.members.alive("replica", "client")),
        )

    @property
    def epoch(self) -> float:
        """Trained samples divided by the size of the training set."""
        return self.progress.samples / self.shape.train if self.shape.train else 0.0
