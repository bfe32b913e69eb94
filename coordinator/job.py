"""One job as a step machine: events in, actions out. No clock, no socket, no file.

    EMPTY --shards and layout--> INITIALISING --initial set written--> READY --all trained, or a limit--> CLOSING
    CLOSING --leases in, evaluated, snapshot, export--> DONE          anything that cannot be mended --> FAILED

Every method that takes an event first does what the event says, then `_advance`s, and what it wants done stands in
`actions` for the runner, who answers with an event of its own.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from dbelief.errors import Refused
from dbelief.job import Job
from dbelief.layout import Layout, cut, nominal_length, place
from dbelief.placement import Place, Placement
from dbelief.pushes import PARAMETERS
from dbelief.schedule import total_samples
from dbelief.work import Lease

from .actions import (
    Action,
    AssignShards,
    Export,
    Fence,
    Finish,
    MakeReady,
    Note,
    Restore,
    SetMembership,
    TakeSnapshot,
)
from .leases import Leases
from .members import Member, Members
from .plan import cadence, lease_size, progress
from .progress import Evaluated
from .rounds import Rounds
from .states import Closing, Evaluate, Shape, State, Stop, Told, Wait, Work


class JobMachine:
    """The job.

    Parameters
    ----------
    job
        The job file.
    shape
        Sizes of its data sets; zeros where it has no data.
    resume
        Id, shards' ledgers aside, of the snapshot set to go on from, with the state that set.json holds.
    first_shard_epoch
        Lowest shard epoch that may be given out: one above all that registry and set know.
    """

    def __init__(
        self,
        job: Job,
        shape: Shape,
        resume: tuple[str, dict[str, Any]] | None = None,
        first_shard_epoch: int = 1,
    ) -> None:
        self.job = job
        self.shape = shape
        self.state = State.EMPTY
        self.reason = ""
        self.actions: list[Action] = []
        self.members = Members(job.deadlines.beat_s, job.shards)
        self.total = total_samples(job.limits, shape.train or None)
        unbounded = 2**62 if shape.train else 0
        self.leases = Leases(shape.train, self.total or unbounded, lease_size(job, shape), cadence(job))
        self.progress = progress(job, shape, self.total)
        self.rounds = Rounds() if job.strategy.staleness == 0 else None
        self.layout: Layout | None = None
        self.placement: Placement | None = None
        self.shard_epoch = first_shard_epoch
        self.members_lost = 0
        self.pushes_twice = 0
        self.best_at_end = PARAMETERS
        self._resume = resume
        self._source_digest = ""
        self._shards_assigned = False
        self._initialiser: int | None = None
        self._warm_replica: int | None = None
        self._evaluations: deque[tuple[str, str]] = deque()
        self._evaluating: dict[int, tuple[Evaluate, int]] = {}  # lease id -> (lease, incarnation)
        self._keeping: dict[int, tuple[str, float, float | None, int]] = {}
        self._fencing: set[int] = set()
        self._closing = Closing.DRAIN
        self._snapshot_running = False
        self._sets = 0
        self._began_s: float | None = None
        self._last_set_s = 0.0
        self._someone_s: float | None = None
        self._told: dict[int, Told] = {}  # by lease, or by minus the incarnation of a client

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
        highest_epoch: int = 0,
        wish: int | None = None,
    ) -> Member:
        """Take a member in.

        Raises
        ------
        Refused
            A shard too many, a layout or source other than the job's, or a job that is over.
        """
        if self.over:
            raise Refused(f"job {self.job.name!r} is over: {self.reason}")
        if kind == "shard":
            self.shard_epoch = max(self.shard_epoch, highest_epoch + 1)
        elif layout is None:
            raise Refused("a replica joins with its model's layout")
        elif self.layout is None:
            self.layout, self._source_digest = layout, source_digest
        elif layout.digest() != self.layout.digest():
            raise Refused(
                "this replica's model has another layout than the job's: are all workers given the same code?"
            )
        elif source_digest != self._source_digest:
            raise Refused("this replica's model source differs from the job's: copy the same file to every machine")
        member = self.members.join(kind, token, name, address, now_s, wish)
        self._note("member", role=kind, id=member.number, what="joined", reason="", name=name)
        self._advance(now_s)
        return member

    def beat(self, kind: str, number: int, incarnation: int, now_s: float) -> bool:
        """A member is alive; False where it has been given up."""
        member = self.members.find(kind, number, incarnation)
        if member is None:
            return False
        member.last_beat_s = now_s
        return True

    def leave(self, kind: str, number: int, incarnation: int, reason: str, now_s: float) -> None:
        """A member says goodbye: what it had not finished goes back."""
        member = self.members.find(kind, number, incarnation)
        if member is not None:
            self._gone(member, "left", reason, now_s)

    def initialises(self, number: int, incarnation: int) -> bool:
        """Whether this replica is to push the initial values."""
        if self.state is not State.INITIALISING or self._resume or not self._shards_assigned:
            return False
        if self._initialiser is None and self.members.pusher(number, incarnation):
            self._initialiser = incarnation
        return self._initialiser == incarnation

    def tick(self, now_s: float) -> None:
        """Time passes: the silent are dead, limits may be reached, a snapshot may be due."""
        for member in self.members.silent(now_s):
            self._gone(member, "died", f"silent for {now_s - member.last_beat_s:.1f} s", now_s)
        self._advance(now_s)

    def _gone(self, member: Member, how: str, reason: str, now_s: float) -> None:
        member.state = how
        self._note("member", role=member.kind, id=member.number, what=how, reason=reason, name=member.name)
        if self.over:
            return
        if member.kind == "shard":
            self.fail(f"{member.title} at {member.address} {how}: {reason}; its part of the parameters is gone")
            return
        self.members_lost += how == "died"
        if self._initialiser == member.incarnation:
            self._initialiser = None
        if self._warm_replica == member.incarnation:
            self._warm_replica = None
        for lease_id, (lease, incarnation) in list(self._evaluating.items()):
            if incarnation == member.incarnation:
                del self._evaluating[lease_id]
                self._evaluations.appendleft((lease.set, lease.vector))
        if self.placement is not None:
            self._fencing.add(member.incarnation)
            self.actions.append(Fence(member.number, member.incarnation))
        self._advance(now_s)

    def fenced(self, number: int, incarnation: int, lowest: int, highest: int, now_s: float) -> None:
        """The shards refuse this life now; its ledgers say what it had pushed."""
        self._fencing.discard(incarnation)
        samples, twice = self.leases.give_back(incarnation, lowest, highest)
        self.progress.trained(number, Told(0, samples=samples), now_s)
        self.pushes_twice += twice
        self._told = {k: v for k, v in self._told.items() if k in self.leases.outstanding or -k in self._lives()}
        if self.rounds is not None and self.rounds.died(number):
            self._set_membership()
        self._advance(now_s)

    def _lives(self) -> set[int]:
        return {m.incarnation for m in self.members.alive("replica", "client")}

    # -- the shards answer -------------------------------------------------------------------------------

    def assigned(self, now_s: float) -> None:
        """Every shard knows its segments."""
        self._shards_assigned = True
        if self._resume:
            self.actions.append(Restore(self._resume[0]))
        self._advance(now_s)

    def restored(self, ledgers: dict[int, tuple[int, int]], now_s: float) -> None:
        """Every shard holds the set's values and accepts pushes."""
        assert self._resume is not None
        state = self._resume[1]
        self.members.incarnations = max(self.members.incarnations, state["incarnations"])
        self.pushes_twice += self.leases.restore(state["leases"], ledgers)
        self.progress.restore(state["progress"])
        # The ledgers know best: what was acknowledged after the set is trained again, and not counted twice.
        self.progress.samples = self.leases.done
        if self.rounds is not None:
            self.rounds.clock, self.rounds.member_epoch = state["clock"], state["member_epoch"]
        self._ready(now_s)

    def initialised(self, incarnation: int, now_s: float) -> None:
        """All initial values are acknowledged; they are made safe before training begins."""
        if self.state is State.INITIALISING and incarnation == self._initialiser and not self._snapshot_running:
            self._snapshot()
            self._advance(now_s)

    def snapshot_taken(self, set_id: str, now_s: float) -> None:
        """A snapshot set is complete."""
        self._snapshot_running = False
        self._last_set_s = now_s
        self._note("snapshot", set=set_id)
        if self.state is State.INITIALISING:
            self.actions.append(MakeReady())
        self._advance(now_s)

    def ready(self, now_s: float) -> None:
        """Every shard accepts pushes."""
        self._ready(now_s)

    def _ready(self, now_s: float) -> None:
        self._began_s = self._last_set_s = now_s
        self._become(State.READY, "")
        self._advance(now_s)

    def membership_set(self, member_epoch: int) -> None:
        """Every shard knows who takes part in this member epoch."""
        if self.rounds is not None and member_epoch == self.rounds.member_epoch:
            self.rounds.armed = True

    # -- work --------------------------------------------------------------------------------------------

    def lease(self, number: int, incarnation: int, next_sequence: int, now_s: float) -> Work:
        """Give a replica something to do."""
        member = self.members.find("replica", number, incarnation)
        if member is None:
            return Stop(f"replica {number} was given up; its work went to others")
        member.last_beat_s = now_s
        if self.over or (self.state is State.CLOSING and self._closing > Closing.TEST):
            return Stop(self.reason)
        work: Work | None = self._evaluation(incarnation)
        if work is None and self.state is State.READY:
            work = self._training(number, incarnation, next_sequence)
        if work is None:
            work = Wait(0.02 if self.rounds is not None else 0.05)
        member.state = {Lease: "training", Evaluate: "evaluating"}.get(type(work), "waiting")
        self._advance(now_s)
        return work

    def _evaluation(self, incarnation: int) -> Evaluate | None:
        if not self._evaluations or self.state not in (State.READY, State.CLOSING):
            return None
        if self.state is State.CLOSING and self._closing is Closing.DRAIN:
            return None
        name, vector = self._evaluations.popleft()
        lease = Evaluate(self.leases.next_id, name, vector, self.progress.samples)
        self.leases.next_id += 1
        self._evaluating[lease.id] = (lease, incarnation)
        return lease

    def _training(self, number: int, incarnation: int, next_sequence: int) -> Lease | None:
        if self.rounds is not None:
            return self.rounds.ask(number, incarnation, next_sequence)
        if self.progress.warm:
            if self._warm_replica is None:
                self._warm_replica = incarnation
            if self._warm_replica != incarnation:
                return None
        room = self.progress.warm_room(self.leases.leased)
        return self.leases.take(number, incarnation, next_sequence, at_most=room)

    def trained(self, number: int, incarnation: int, told: Told, now_s: float) -> None:
        """A replica or client tells what was acknowledged; what is newly done is taken in."""
        if self.members.pusher(number, incarnation) is None or self.over:
            return
        key = told.lease or -incarnation
        before = self._told.get(key, Told(told.lease))
        if told.pushes <= before.pushes or (told.lease and told.lease not in self.leases.outstanding):
            return
        self.leases.acknowledge(told.lease, told.pushes)
        self._told[key] = told
        if told.lease and told.lease not in self.leases.outstanding:
            del self._told[key]
        trouble = self.progress.trained(
            number,
            Told(
                told.lease,
                told.pushes - before.pushes,
                told.samples - before.samples,
                told.steps - before.steps,
                told.loss_sum - before.loss_sum,
                told.staleness_sum - before.staleness_sum,
            ),
            now_s,
        )
        self._note_progress()
        if trouble:
            self.fail(trouble)
        self._advance(now_s)

    def evaluated(
        self, number: int, incarnation: int, lease_id: int, loss: float, accuracy: float | None, now_s: float
    ) -> str:
        """An evaluation is done; returns the name to keep its parameters under, "" for none."""
        lease, owner = self._evaluating.pop(lease_id, (None, 0))
        if lease is None or owner != incarnation:
            return ""
        self._note("evaluation", set=lease.set, samples=lease.samples, loss=loss, accuracy=accuracy)
        keep_as = ""
        if lease.set == "test":
            self.progress.test = Evaluated(loss, accuracy, lease.samples)
        else:
            keep_as, reason = self.progress.evaluated(loss, accuracy, lease.samples)
            if keep_as:
                self._keeping[lease_id] = (keep_as, loss, accuracy, lease.samples)
            if not math.isfinite(loss):
                self.fail(f"diverged: the validation loss is {loss} after {lease.samples} samples; try a lower rate")
            elif reason and self.state is State.READY:
                self.close(reason)
        self._advance(now_s)
        return keep_as

    def kept(self, lease_id: int, now_s: float) -> None:
        """The parameters of an evaluation lie whole on the shards."""
        if lease_id in self._keeping:
            self.progress.kept(*self._keeping.pop(lease_id))
        self._advance(now_s)

    # -- the end -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Done or failed."""
        return self.state in (State.DONE, State.FAILED)

    def close(self, reason: str, evaluate: bool = True) -> None:
        """End as planned: finish what is leased, evaluate, snapshot, export."""
        if self.state is not State.READY:
            return
        self._become(State.CLOSING, reason)
        self._closing = Closing.DRAIN
        if not evaluate:
            self.shape = Shape(self.shape.train, 0, 0)

    def stop(self, reason: str, now_s: float) -> None:
        """Somebody asked for the end: like `close`, without a last evaluation."""
        if self.state is State.READY:
            self._evaluations.clear()
            self.close(reason, evaluate=False)
            self._advance(now_s)
        elif self.state in (State.EMPTY, State.INITIALISING):
            self.fail(f"{reason}, before training began")

    def fail(self, reason: str) -> None:
        """End now, with a reason."""
        if not self.over:
            self._become(State.FAILED, reason)
            self.actions.append(Finish())

    def exported(self, now_s: float) -> None:
        """The model is written."""
        self._closing = Closing.DONE
        self._advance(now_s)

    # -- moving on ---------------------------------------------------------------------------------------

    def _advance(self, now_s: float) -> None:
        if self._someone_s is None or self.members.alive("replica", "client"):
            self._someone_s = now_s
        if self.state is State.EMPTY:
            self._advance_empty(now_s)
        elif self.state is State.READY:
            self._advance_ready(now_s)
        elif self.state is State.CLOSING:
            self._advance_closing()
        patience_s = self.job.deadlines.join_s
        if not self.over and now_s - self._someone_s > patience_s:
            self.fail(f"no replica for {patience_s:g} s; waiting for: {self.waiting_for()}")

    def waiting_for(self) -> str:
        """What a job that does not train waits for."""
        shards = len(self.members.alive("shard"))
        if shards < self.job.shards:
            return f"shards ({shards} of {self.job.shards} joined)"
        if not self.members.alive("replica", "client"):
            return "a replica to join"
        if self.state is State.INITIALISING:
            return "initial values" if not self._resume else "the snapshot set to load"
        if self.rounds is not None and self.rounds.clock == 0 and self._replicas_missing():
            return f"replicas ({len(self.members.alive('replica'))} of {self.job.replicas} joined)"
        return ""

    def _replicas_missing(self) -> bool:
        return len(self.members.alive("replica")) < self.job.replicas

    def _advance_empty(self, now_s: float) -> None:
        shards = self.members.alive("shard")
        if self._began_s is None:
            self._began_s = now_s
        if len(shards) < self.job.shards or self.layout is None:
            if now_s - self._began_s > self.job.deadlines.join_s:
                self.fail(f"waited {self.job.deadlines.join_s:g} s for {self.waiting_for()}")
            return
        spans = cut(self.layout.rank_ranges(), nominal_length(self.layout.size, self.job.shards))
        if self._resume:
            spans = cut(self.layout.rank_ranges(), self._resume[1]["nominal_length"])
        runs = place(spans, self.job.shards)
        places = tuple(Place(m.number, m.address, self.shard_epoch, *run) for m, run in zip(shards, runs, strict=True))
        self.placement = Placement(1, tuple(spans), places)
        self._become(State.INITIALISING, "")
        self.actions.append(AssignShards(self.placement))

    def _advance_ready(self, now_s: float) -> None:
        if self.progress.release_due():
            self._note("warm_start", samples=self.progress.samples)
        if self.progress.evaluation_due() and not self._evaluations and not self._evaluating:
            self._evaluations.append(("validation", PARAMETERS))
        if self.rounds is not None:
            self._form_block()
        every_s = self.job.snapshots.every_s
        if every_s is not None and now_s - self._last_set_s >= every_s:
            self._snapshot()
        wall_s = self.job.limits.wall_s
        if wall_s is not None and now_s - (self._began_s or now_s) >= wall_s:
            self.close(f"wall time {wall_s:g} s reached")
        elif self._finished():
            self.close(f"{self.progress.samples} samples trained")
        if self.state is State.CLOSING:
            self._advance_closing()

    def _finished(self) -> bool:
        if self.shape.train:
            return self.leases.finished and not self._fencing
        return self.total is not None and self.progress.samples >= self.total  # clients with loops of their own

    def _form_block(self) -> None:
        assert self.rounds is not None
        living = {m.number for m in self.members.alive("replica")}
        if self.rounds.clock == 0 and self._replicas_missing():
            return
        if self.rounds.complete(living) and self.rounds.form(living, self.leases):
            self._set_membership()

    def _set_membership(self) -> None:
        assert self.rounds is not None
        rounds = tuple((clock, tuple(replicas)) for clock, replicas in self.rounds.membership())
        self.actions.append(SetMembership(self.rounds.member_epoch, rounds))

    def _advance_closing(self) -> None:
        """Take every step of the end whose condition holds."""
        if self._closing is Closing.DRAIN and not (self.leases.outstanding or self._fencing or self._evaluating):
            self._closing = Closing.VALIDATE
            self._evaluations.clear()
            last = self.progress.last
            if self.shape.validation and (last is None or last.samples < self.progress.samples):
                self._evaluations.append(("validation", PARAMETERS))
        if self._closing is Closing.VALIDATE and not self._busy():
            self._closing = Closing.TEST
            best = self.progress.best
            if self.progress.keep_best and best is not None:
                self.best_at_end = best.vector
            if self.shape.test:
                self._evaluations.append(("test", self.best_at_end))
        if self._closing is Closing.TEST and not self._busy() and not self._snapshot_running:
            self._closing = Closing.SNAPSHOT
            self._snapshot()
        if self._closing is Closing.SNAPSHOT and not self._snapshot_running:
            self._closing = Closing.EXPORT
            self.actions.append(Export(self.best_at_end))
        if self._closing is Closing.DONE:
            self._become(State.DONE, self.reason)
            self.actions.append(Finish())

    def _busy(self) -> bool:
        return bool(self._evaluations or self._evaluating or self._keeping)

    def _snapshot(self) -> None:
        if self._snapshot_running:
            return
        self._snapshot_running = True
        self._sets += 1
        self.leases.begin_set()
        self.actions.append(TakeSnapshot(f"{self.progress.samples:012d}-{self._sets:04d}"))

    def set_state(self) -> dict[str, Any]:
        """What set.json holds beside the shards' manifests; taken when all shards have written theirs."""
        assert self.layout is not None
        return {
            "leases": self.leases.state(),
            "progress": self.progress.state(),
            "incarnations": self.members.incarnations,
            "clock": self.rounds.clock if self.rounds else 0,
            "member_epoch": self.rounds.member_epoch if self.rounds else 0,
            "nominal_length": nominal_length(self.layout.size, self.job.shards)
            if not self._resume
            else self._resume[1]["nominal_length"],
            "shard_epoch": self.shard_epoch,
            "layout": self.layout.digest(),
        }

    # -- telling -----------------------------------------------------------------------------------------

    def _become(self, state: State, reason: str) -> None:
        self.state = state
        self.reason = reason or self.reason
        self._note("state", state=state.value, reason=reason)

    def _note(self, event: str, **fields: Any) -> None:
        self.actions.append(Note(event, fields))

    def _note_progress(self) -> None:
        p = self.progress
        self._note(
            "progress",
            samples=p.samples,
            epoch=self.epoch,
            loss=p.loss,
            staleness_mean=p.staleness_mean if p.pushes else None,
            members=len(self.members.alive("replica", "client")),
        )

    @property
    def epoch(self) -> float:
        """Samples trained over the size of the training set."""
        return self.progress.samples / self.shape.train if self.shape.train else 0.0
