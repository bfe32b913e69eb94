"""One job as a state machine: events in, actions out. No clock, no socket, no file.

    EMPTY --shards and layout--> INITIALISING --initial set written--> READY --all trained, or a limit--> CLOSING
    CLOSING --leases in, evaluated, snapshot, export--> DONE          any unrecoverable error --> FAILED

Every method that processes an event first applies it, then calls `_advance`. The resulting actions are appended to
`actions` for the event loop, which reports their outcome by further events.
"""

from __future__ import annotations

from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease
from dbelief.errors import Rejected

from ..core.effects import Action, AssignShards, DropLedger, Export, Fence, FinishRun, MakeReady, Restore
from ..core.members import Member
from ..core.states import (
    Assignment,
    BundleLease,
    EvaluationLease,
    GroupLease,
    ProgressReport,
    ResourceUsage,
    ShutdownPhase,
    State,
    Stop,
    Wait,
)
from ..sandblaster.pass_scheduler import NO_REQUEST, BundleResult, WorkRequest
from .sharding import Sharding

_STUCK = 2.0
"""A replica whose lease makes no progress for this multiple of `progress_s` is removed: its calls would have failed."""

_DOING = {DataLease: "training", GroupLease: "training", BundleLease: "training", EvaluationLease: "evaluating"}
"""Displayed state of a member, by the type of its work."""


class JobMachine(Sharding):
    """The job; see `Standing` for its components."""

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
        wish: int | None = None,
        again: bool = False,
        train_samples: int = 0,
    ) -> Member:
        """Add a member; `again`: its process was restarted, and its earlier incarnation under this name has ended.

        Raises
        ------
        Rejected
            A layout, source or number of training samples other than the job's, or a job that is over.
        ResourceExhausted
            All places for shards are occupied.
        """
        if self.over:
            raise Rejected(f"job {self.job.name!r} is over: {self.reason}")
        if kind != "shard":
            if layout is None:
                raise Rejected("a replica joins with its model's layout")
            self.opening.check_layout(layout, source_digest, train_samples)
        before = self.members.named(kind, name, token) if again else None
        if before is not None:
            self._member_lost(before, "died", "its process was started again", now_s)
        lives = self.members.incarnations
        member = self.members.join(kind, token, name, address, now_s, wish)
        if self.members.incarnations > lives:  # else the call is a retry
            self._note("member", role=member.kind, id=member.number, what="joined", reason="", name=name)
            if member.kind == "shard":
                self._shard_joined(member)
        self._advance(now_s)
        return member

    def beat(self, kind: str, number: int, incarnation: int, now_s: float) -> bool:
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

    def leave(self, kind: str, number: int, incarnation: int, reason: str, now_s: float) -> None:
        """Remove a member that leaves; its unfinished work is returned."""
        member = self.member(kind, number, incarnation)
        if member is not None:
            self._member_lost(member, "left", self._why_left(member) or reason, now_s)

    def initialises(self, number: int, incarnation: int) -> bool:
        """Whether this replica is to push the initial values."""
        if self.state is not State.INITIALISING or self.members.find_pusher(number, incarnation) is None:
            return False
        return self.opening.initialises(incarnation)

    def tick(self, now_s: float) -> None:
        """Process the passing of time: heartbeat timeouts, limits, periodic snapshots."""
        for member in self.members.expired(now_s):
            if now_s - member.last_beat_s <= self.members.heartbeat_timeout_s(member.kind):
                continue  # it has just become the last copy of its shard
            self._member_lost(member, "died", f"silent for {now_s - member.last_beat_s:.1f} s", now_s)
        if self.recovery.unavailable or self.training.waits_for_each_other:
            self.members.reset_progress_timers(now_s)
        for member in self.members.stalled(now_s, _STUCK * self.job.deadlines.progress_s):
            self._member_lost(member, "died", f"alive, and without progress for {now_s - member.moved_s:.0f} s", now_s)
        self._advance(now_s)

    def _member_lost(self, member: Member, how: str, reason: str, now_s: float) -> None:
        self.members.mark_gone(member, how)
        kept = self.progress.residual({member.incarnation}) if member.kind != "shard" else 0.0
        more = {"residual": kept} if kept else {}
        self._note("member", role=member.kind, id=member.number, what=how, reason=reason, name=member.name, **more)
        if self.over:
            return
        if how == "died":
            self.died.append(f"{member.kind} {member.number}")
        if member.kind in ("shard", "follower"):
            self._server_gone(member, how, reason, now_s)
            return
        self.training.gone(member.incarnation, how == "died", now_s)
        self.opening.gone(member.incarnation, last=not self._lives())
        if self.placement is not None:
            self.actions.append(Fence(member.number, member.incarnation))
        self._advance(now_s)

    def fenced(self, number: int, incarnation: int, lowest: int, highest: int, now_s: float) -> None:
        """Record that the shards reject this incarnation now; `lowest`, `highest`: push numbers in their ledgers."""
        applied = lowest, highest
        self.members.settled.add(incarnation)
        self.members.unforgotten.add(incarnation)
        self.commit_due = True
        self.actions.append(DropLedger(number, incarnation))
        self.actions += self.training.fenced(number, incarnation, applied, self.ending.evaluate, now_s)
        self._advance(now_s)

    def _replicas(self) -> dict[int, int]:
        return {m.number: m.incarnation for m in self.members.alive("replica")}

    def _lives(self) -> set[int]:
        return {m.incarnation for m in self.members.alive("replica", "client")}

    # -- replies of shards -------------------------------------------------------------------------------

    def assigned(self, now_s: float) -> None:
        """Record that every shard has its segments."""
        self.opening.assigned = True
        if self._resume and not self.over:
            self.actions.append(Restore(self._resume[0]))
        self._advance(now_s)

    def restored(self, ledgers: dict[int, tuple[int, int]], now_s: float) -> None:
        """Record that every shard holds the set's values and accepts pushes."""
        assert self._resume is not None
        self.continuation.restore(self._resume[1], ledgers)
        self.actions += self.training.membership_changes()
        self.ready(now_s)

    def initialised(self, incarnation: int, now_s: float) -> None:
        """Record that all initial values are acknowledged; they are written to a set before training starts."""
        if self.state is State.INITIALISING and self.opening.initialised(incarnation):
            self.actions.append(self.training.begin_set())
            self._advance(now_s)

    def snapshot_taken(self, set_id: str, now_s: float) -> None:
        """Record a complete snapshot set."""
        self.training.end_set(now_s)
        self.recovery.set_taken(set_id)
        self._note("snapshot", set=set_id)
        if self.state is State.INITIALISING:
            self.actions.append(MakeReady())
        self._advance(now_s)

    def retake_set(self) -> str:
        """Restart the set in progress under another id, which is returned."""
        return self.training.snapshots.begin(self.progress.samples).set_id

    def set_failed(self, now_s: float) -> bool:
        """Record that a set could not be written; False where the job cannot continue without it."""
        if self.state is not State.READY:
            return False
        self.training.set_failed(now_s)
        self._note("snapshot_failed")
        return True

    def ready(self, now_s: float) -> None:
        """Record that every shard accepts pushes."""
        if self.over:  # it failed while the shards were notified
            return
        self.training.begin(now_s)
        self._become(State.READY, "")
        self._advance(now_s)

    def postpone(self, action: Action) -> None:
        """Postpone an action that did not reach all shards until all of them are available."""
        if not self.over:
            self.actions += self.recovery.postpone(action)

    def membership_set(self, member_epoch: int, clock: int) -> None:
        """Record that every shard has this membership; `clock`: one above the highest that was pushed to any shard."""
        self.training.membership_set(member_epoch, clock)

    # -- work --------------------------------------------------------------------------------------------

    def lease(
        self, number: int, incarnation: int, next_sequence: int, now_s: float, asks: WorkRequest = NO_REQUEST
    ) -> Assignment:
        """Assign work to a replica; a repeated call, whose reply was lost, gets the same.

        A client gets evaluations only, and those only while there is no replica.
        """
        member = self.members.find_pusher(number, incarnation)
        if member is None:
            return Stop(f"replica {number} was given up; its work went to others")
        member.last_beat_s = now_s
        if self.over or (self.state is State.CLOSING and self.ending.step > ShutdownPhase.TEST):
            return Stop(self.reason)
        closing = self.state is State.CLOSING and self.ending.step > ShutdownPhase.DRAIN
        ready = self.state is State.READY
        living, client = [one.number for one in self.members.alive("replica")], member.kind == "client"
        evaluates = (ready or closing) and not (client and living)
        trains = ready and not client
        work = self.training.work(number, incarnation, next_sequence, trains, evaluates, living, now_s, asks)
        self.actions += self.training.membership_changes()
        if client and isinstance(work, Wait) and (self.state is State.READY or not self.ending.evaluates):
            work = Stop("a client trains on data of its own, and no evaluation waits")
        if not asks.ahead:  # else it prefetches, and is still at work
            member.state = _DOING.get(type(work), "waiting")
        member.moved_s = now_s
        self.commit_due = self.commit_due or not isinstance(work, Wait)
        self._advance(now_s)
        return work

    @property
    def client_evaluates(self) -> bool:
        """Whether an evaluation is pending for clients, as there is no replica."""
        return self.training.evaluations.asked and not self.members.alive("replica")

    def record_heartbeat_progress(self, number: int, incarnation: int, now_s: float) -> None:
        """Record that an incarnation's work makes progress."""
        member = self.members.find_pusher(number, incarnation)
        if member is not None:
            member.moved_s = now_s

    def record_usage(self, number: int, incarnation: int, told: ResourceUsage) -> None:
        """Record an incarnation's resource usage, as totals since it started."""
        if told != ResourceUsage() and self.members.find_pusher(number, incarnation) is not None:
            self.progress.spent(number, incarnation, told)

    def report_progress(self, number: int, incarnation: int, told: ProgressReport, now_s: float) -> None:
        """Process a replica's or client's report of acknowledged work; only what is new is applied."""
        member = self.members.find_pusher(number, incarnation)
        if member is None or self.over:
            return
        member.moved_s = now_s
        new, trouble = self.training.trained(number, incarnation, told, now_s)
        if not new:
            return
        self._note_progress()
        if trouble:
            self.fail(trouble)
        self._advance(now_s)

    def bundle_done(self, number: int, incarnation: int, told: BundleResult, now_s: float) -> None:
        """Record a replica's bundle that all shards hold."""
        member = self.members.find("replica", number, incarnation)
        if member is None or self.over:
            return
        member.moved_s = now_s
        # Not persisted: another coordinator has it computed again, and the shards drop the duplicate.
        if self.training.bundle_done(number, incarnation, told, now_s):
            self._note_progress()
            self._advance(now_s)

    def bundle_failed(self, number: int, incarnation: int, turn: int, bundle: int, reason: str, now_s: float) -> None:
        """Record that a replica could not compute a bundle; other replicas are to try it."""
        member, batch = self.members.find("replica", number, incarnation), self.training.batch
        if member is None or batch is None or self.over:
            return
        member.moved_s = now_s
        work = batch.failed_at(incarnation, turn, bundle, reason, now_s)
        if work is not None:
            self.commit_due = True
            self._note("bundle_failed", replica=number, start=work.start, stop=work.stop, reason=reason)
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
        self, number: int, incarnation: int, lease_id: int, loss: float, accuracy: float | None, now_s: float
    ) -> str:
        """Record an evaluation result; returns the name to store its parameters under, "" for none."""
        lease, keep_as, trouble, enough = self.training.evaluated(incarnation, lease_id, loss, accuracy)
        client = self.members.find("client", number, incarnation)
        if client is not None:
            client.state = "waiting"  # it requests no lease that would set the state
        if lease is not None:
            self._note("evaluation", set=lease.set, samples=lease.samples, loss=loss, accuracy=accuracy)
        if trouble:
            self.fail(trouble)
        elif enough:
            self.close(enough)
        self._advance(now_s)
        return keep_as

    def evaluation_stored(self, lease_id: int, now_s: float) -> None:
        """Record that the parameters of an evaluation are completely stored on the shards."""
        self.training.kept(lease_id)
        self.commit_due = True
        self._advance(now_s)

    # -- shutdown ----------------------------------------------------------------------------------------

    def stop(self, reason: str, now_s: float) -> None:
        """Stop the job on request: like `close`, without a last evaluation."""
        if self.state is State.READY:
            self.close(reason, evaluate=False)
            self._advance(now_s)
        elif self.state in (State.EMPTY, State.INITIALISING):
            self.fail(f"{reason}, before training began")

    def exported(self, now_s: float) -> None:
        """Record that the model is written."""
        self.ending.exported = self.ending.step is ShutdownPhase.EXPORT
        self._advance(now_s)

    # -- progress ----------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        self.training.settle_groups(now_s)
        still = not (self.over or self.resizing.running or self.recovery.rollback_set) and self.opening.assigned
        placed = self.placement if still else None
        self.actions += self.chains.advance(placed, self.recovery.unavailable, self.next_shard_epoch, now_s)
        if self.state is State.EMPTY:
            self._advance_empty()
        elif self.state is State.READY:
            self._advance_ready(now_s)
        elif self.state is State.CLOSING:
            self._advance_closing()
        writes = self.state is State.CLOSING and self.ending.step > ShutdownPhase.TEST
        given_up = self.patience.expired_reason(
            self.state, self.training.begins_in_lockstep, not (writes or self.over), now_s
        )
        if given_up:
            self.fail(given_up)

    def _advance_empty(self) -> None:
        shards = self.members.alive("shard")
        if len(shards) == self.job.shards and self.layout is not None:
            self._become(State.INITIALISING, "")
            self.recovery.begin()
            self.actions.append(AssignShards(self.opening.create_placement(shards, self.shard_epoch)))

    def _advance_ready(self, now_s: float) -> None:
        self.actions += self.training.advance(self._replicas(), now_s)
        self.actions += self.resizing.advance(now_s)
        batch = self.training.batch
        if batch is not None and batch.method.failed:
            self.fail(batch.ended)
            return
        groups = self.training.groups
        if groups is not None and groups.failed:
            self.fail(groups.failed)
            return
        enough = self.training.enough(now_s)
        if enough:
            self.close(enough)
            self._advance_closing()

    def _advance_closing(self) -> None:
        """Enter every shutdown phase whose condition holds."""
        if self.recovery.rollback_set is not None:
            return
        batch, read = self.training.batch, self.training.evaluations.given
        if batch is not None and batch.accepting:
            self.actions += batch.advance(read)
        # The leases of a lost incarnation stay outstanding until it is fenced.
        drained = not (self.leases.outstanding or read or (batch is not None and batch.accepting))
        if drained and self.training.write_last(self._replicas()):
            return
        while self.ending.advance(drained, self.training.snapshots.running):
            if self.ending.step is ShutdownPhase.SNAPSHOT:
                if not (self.training.end_kept and self.recovery.best == self.progress.best):  # else it is written
                    self.actions.append(self.training.begin_set())
            elif self.ending.step is ShutdownPhase.EXPORT:
                self.actions.append(Export(self.ending.vector))
            elif self.ending.step is ShutdownPhase.DONE:
                self._become(State.DONE, self.reason)
                self.actions.append(FinishRun())
