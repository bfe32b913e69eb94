"""One job as a step machine: events in, actions out. No clock, no socket, no file.

    EMPTY --shards and layout--> INITIALISING --initial set written--> READY --all trained, or a limit--> CLOSING
    CLOSING --leases in, evaluated, snapshot, export--> DONE          anything that cannot be mended --> FAILED

Every method that takes an event first does what the event says, then `_advance`s, and what it wants done stands in
`actions` for the runner, who answers with an event of its own.
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
"""A replica whose lease does not come on for so many times `progress_s` is given up: its calls would have failed."""

_DOING = {DataLease: "training", GroupLease: "training", BundleLease: "training", EvaluationLease: "evaluating"}
"""What a member is seen to do, by its work."""


class JobMachine(Sharding):
    """The job; see `Standing` for what it is made of."""

    # -- joining and beating -----------------------------------------------------------------------------

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
        """Take a member in; `again`: an earlier life under this name is over.

        Raises
        ------
        Refused
            A layout, source or number of training samples other than the job's, or a job that is over.
        Full
            A shard too many.
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
        if self.members.incarnations > lives:  # else the call is a repeated one
            self._note("member", role=member.kind, id=member.number, what="joined", reason="", name=name)
            if member.kind == "shard":
                self._shard_joined(member)
        self._advance(now_s)
        return member

    def beat(self, kind: str, number: int, incarnation: int, now_s: float) -> bool:
        """A member is alive; False where it has been given up."""
        member = self.member(kind, number, incarnation)
        if member is None:
            return False
        member.last_beat_s = now_s
        return True

    def may_leave(self, number: int, incarnation: int) -> bool:
        """A shard is asked to end; whether a set begun since has what it holds, or none is to come. It asks again."""
        member = self.members.find("shard", number, incarnation)
        return member is None or self.state is not State.READY or self.training.snapshots.covers(member)

    def leave(self, kind: str, number: int, incarnation: int, reason: str, now_s: float) -> None:
        """A member says goodbye: what it had not finished goes back."""
        member = self.member(kind, number, incarnation)
        if member is not None:
            self._member_lost(member, "left", self._why_left(member) or reason, now_s)

    def initialises(self, number: int, incarnation: int) -> bool:
        """Whether this replica is to push the initial values."""
        if self.state is not State.INITIALISING or self.members.find_pusher(number, incarnation) is None:
            return False
        return self.opening.initialises(incarnation)

    def tick(self, now_s: float) -> None:
        """Time passes: the silent are dead, limits may be reached, a snapshot may be due."""
        for member in self.members.expired(now_s):
            if now_s - member.last_beat_s <= self.members.heartbeat_timeout_s(member.kind):
                continue  # it has just come to be the last that has its shard
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
        """The shards refuse this life now; its ledgers say what it had pushed."""
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

    # -- the shards answer -------------------------------------------------------------------------------

    def assigned(self, now_s: float) -> None:
        """Every shard knows its segments."""
        self.opening.assigned = True
        if self._resume and not self.over:
            self.actions.append(Restore(self._resume[0]))
        self._advance(now_s)

    def restored(self, ledgers: dict[int, tuple[int, int]], now_s: float) -> None:
        """Every shard holds the set's values and accepts pushes."""
        assert self._resume is not None
        self.continuation.restore(self._resume[1], ledgers)
        self.actions += self.training.membership_changes()
        self.ready(now_s)

    def initialised(self, incarnation: int, now_s: float) -> None:
        """All initial values are acknowledged; they are made safe before training begins."""
        if self.state is State.INITIALISING and self.opening.initialised(incarnation):
            self.actions.append(self.training.begin_set())
            self._advance(now_s)

    def snapshot_taken(self, set_id: str, now_s: float) -> None:
        """A snapshot set is complete."""
        self.training.end_set(now_s)
        self.recovery.set_taken(set_id)
        self._note("snapshot", set=set_id)
        if self.state is State.INITIALISING:
            self.actions.append(MakeReady())
        self._advance(now_s)

    def retake_set(self) -> str:
        """Take the set that is under way under another id; returns it."""
        return self.training.snapshots.begin(self.progress.samples).set_id

    def set_failed(self, now_s: float) -> bool:
        """A set could not be written; False where the job cannot go on without it."""
        if self.state is not State.READY:
            return False
        self.training.set_failed(now_s)
        self._note("snapshot_failed")
        return True

    def ready(self, now_s: float) -> None:
        """Every shard accepts pushes."""
        if self.over:  # it failed while they were told
            return
        self.training.begin(now_s)
        self._become(State.READY, "")
        self._advance(now_s)

    def postpone(self, action: Action) -> None:
        """Not all shards could be told: they are once all are there."""
        if not self.over:
            self.actions += self.recovery.postpone(action)

    def membership_set(self, member_epoch: int, clock: int) -> None:
        """Every shard knows who takes part in this member epoch; `clock` is the highest that was pushed to any."""
        self.training.membership_set(member_epoch, clock)

    # -- work --------------------------------------------------------------------------------------------

    def lease(
        self, number: int, incarnation: int, next_sequence: int, now_s: float, asks: WorkRequest = NO_REQUEST
    ) -> Assignment:
        """Give a replica something to do; a repeated call, whose answer was lost, gets the same.

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
        if not asks.ahead:  # else it is at work, whatever comes of that
            member.state = _DOING.get(type(work), "waiting")
        member.moved_s = now_s
        self.commit_due = self.commit_due or not isinstance(work, Wait)
        self._advance(now_s)
        return work

    @property
    def client_evaluates(self) -> bool:
        """Whether an evaluation waits that clients are to make, for there is no replica."""
        return self.training.evaluations.asked and not self.members.alive("replica")

    def record_heartbeat_progress(self, number: int, incarnation: int, now_s: float) -> None:
        """A life's work comes on."""
        member = self.members.find_pusher(number, incarnation)
        if member is not None:
            member.moved_s = now_s

    def record_usage(self, number: int, incarnation: int, told: ResourceUsage) -> None:
        """A life tells what it has spent since it began."""
        if told != ResourceUsage() and self.members.find_pusher(number, incarnation) is not None:
            self.progress.spent(number, incarnation, told)

    def report_progress(self, number: int, incarnation: int, told: ProgressReport, now_s: float) -> None:
        """A replica or client tells what was acknowledged; what is newly done is taken in."""
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
        """A replica tells of a bundle that all shards hold."""
        member = self.members.find("replica", number, incarnation)
        if member is None or self.over:
            return
        member.moved_s = now_s
        # Not written down: another coordinator has it computed again, and the shards have it already.
        if self.training.bundle_done(number, incarnation, told, now_s):
            self._note_progress()
            self._advance(now_s)

    def bundle_failed(self, number: int, incarnation: int, turn: int, bundle: int, reason: str, now_s: float) -> None:
        """A replica tells that it could not compute a bundle; others are to try."""
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
        """The batch method's program has run on all shards."""
        if self.over:
            return
        self.actions += self.training.program_ran(ticket, scalars)
        self.commit_due = True
        self._advance(now_s)

    def evaluated(
        self, number: int, incarnation: int, lease_id: int, loss: float, accuracy: float | None, now_s: float
    ) -> str:
        """An evaluation is done; returns the name to keep its parameters under, "" for none."""
        lease, keep_as, trouble, enough = self.training.evaluated(incarnation, lease_id, loss, accuracy)
        client = self.members.find("client", number, incarnation)
        if client is not None:
            client.state = "waiting"  # it asks for no lease that would say so
        if lease is not None:
            self._note("evaluation", set=lease.set, samples=lease.samples, loss=loss, accuracy=accuracy)
        if trouble:
            self.fail(trouble)
        elif enough:
            self.close(enough)
        self._advance(now_s)
        return keep_as

    def evaluation_stored(self, lease_id: int, now_s: float) -> None:
        """The parameters of an evaluation lie whole on the shards."""
        self.training.kept(lease_id)
        self.commit_due = True
        self._advance(now_s)

    # -- the end -----------------------------------------------------------------------------------------

    def stop(self, reason: str, now_s: float) -> None:
        """Somebody asked for the end: like `close`, without a last evaluation."""
        if self.state is State.READY:
            self.close(reason, evaluate=False)
            self._advance(now_s)
        elif self.state in (State.EMPTY, State.INITIALISING):
            self.fail(f"{reason}, before training began")

    def exported(self, now_s: float) -> None:
        """The model is written."""
        self.ending.exported = self.ending.step is ShutdownPhase.EXPORT
        self._advance(now_s)

    # -- moving on ---------------------------------------------------------------------------------------

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
        """Take every step of the end whose condition holds."""
        if self.recovery.rollback_set is not None:
            return
        batch, read = self.training.batch, self.training.evaluations.given
        if batch is not None and batch.accepting:
            self.actions += batch.advance(read)
        # What a dead life holds stays outstanding until it is fenced.
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
