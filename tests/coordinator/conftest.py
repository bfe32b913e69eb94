"""A job without processes: the machine, its shards in memory, and replicas that a test moves step by step.

The model has one number per segment and sample, and the rule adds what is pushed. So the parameters show how often
each sample of each epoch was applied to each segment, whatever died meanwhile: see `World.applied`.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.actions import (
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
from coordinator.job import JobMachine
from coordinator.plan import cadence
from coordinator.states import Evaluate, Shape, State, Stop, Told, Work
from dbelief.job import Job, build_job
from dbelief.layout import Layout
from dbelief.pushes import PARAMETERS, Push, Pusher
from dbelief.work import Lease
from ps_server.shard import Shard

SLOTS = 1024
"""Numbers in a segment: the least that a job cuts."""
LAYOUT = Layout.of({"counts": np.zeros((4, SLOTS), np.float32)})
OTHER_LAYOUT = Layout.of({"counts": np.zeros((SLOTS, 4), np.float32)})
SHAPE = Shape(train=100, validation=20, test=30)
_tokens = itertools.count(1)


class Adding:
    """The rule w <- w + g, without a loop that must be compiled."""

    name = "adding"
    state: tuple[str, ...] = ()

    def initial(self, state_name: str) -> float:
        raise AssertionError(state_name)

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        w += g

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Any, step: int) -> None:
        w += g


def make_job(**changes: Any) -> Job:
    """A small job; `strategy__lease=20` replaces a field of a section."""
    fields: dict[str, Any] = {
        "name": "test",
        "model": {"python": "model.py:Model"},
        "data": {"source": "digits"},
        "strategy": {
            "name": "downpour",
            "batch": 10,
            "rule": {"name": "sgd", "rate": 1.0},
            "warm_start": None,
            "lease": 30,
        },
        "limits": {"epochs": 2},
        "evaluate": {"every": 10**6},
        "shards": 2,
        "replicas": 2,
        "snapshots": {"every_s": None},
        "deadlines": {"beat_s": 5, "join_s": 60},
    }
    for path, value in changes.items():
        *sections, name = path.split("__")
        place = fields
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return build_job(fields, Path())


@dataclass
class StoredSet:
    """What a disk holds of a complete set: per segment what a shard wrote, and the coordinator's state."""

    segments: dict[int, tuple[dict[str, np.ndarray], int, int, dict[tuple[str, Pusher], int]]]
    state: dict[str, Any]


@dataclass
class World:
    """A job, its shards, its disk, and the runner's part: actions are carried out one at a time, in order.

    Attributes
    ----------
    interleave
        Called between the parts of a snapshot set: training goes on while shards write.
    score
        Loss and accuracy of an evaluation.
    """

    job: Job
    shape: Shape = SHAPE
    resume: tuple[str, dict[str, Any]] | None = None
    disk: dict[str, StoredSet] = field(default_factory=dict)
    now_s: float = 100.0
    interleave: Callable[[], None] = lambda: None
    score: Callable[[Evaluate], tuple[float, float | None]] = lambda lease: (0.5, 0.8)
    shards: list[Shard] = field(default_factory=list)
    waiting: deque[Action] = field(default_factory=deque)
    done: list[Action] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    exported: tuple[str, np.ndarray] | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        first_epoch = self.resume[1]["shard_epoch"] + 1 if self.resume else 1
        self.machine = JobMachine(self.job, self.shape, self.resume, first_epoch)
        self.shard_members: list[tuple[int, int]] = []  # number, incarnation

    # -- members -----------------------------------------------------------------------------------------

    def shard(self, token: int | None = None, wish: int | None = None) -> int:
        """A shard joins; its number."""
        token = token or next(_tokens)
        member = self.machine.join("shard", token, f"s{token}", f"10.0.0.{token}:1", self.now_s, wish=wish)
        self.shard_members.append((member.number, member.incarnation))
        return member.number

    def all_shards(self) -> World:
        """All shards join."""
        for _ in range(self.job.shards):
            self.shard()
        return self

    def replica(self, **options: Any) -> Replica:
        """A replica or client joins."""
        return Replica(self, **options)

    def started(self, replicas: int | None = None) -> World:
        """Everyone joins, initial values are pushed, and training begins."""
        self.all_shards()
        for _ in range(self.job.replicas if replicas is None else replicas):
            self.replica()
        self.settle()
        if not self.resume:
            first = next(r for r in self.replicas if r.is_initialiser())
            first.initialise()
        self.settle()
        assert self.machine.state in (State.READY, State.CLOSING), self.machine.reason
        return self

    # -- time and actions --------------------------------------------------------------------------------

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes; all who are not mute beat, and the machine looks twice a second."""
        for _ in range(max(1, round(seconds / 0.5))):
            self.now_s += min(seconds, 0.5)
            for number, incarnation in self.shard_members:
                self.machine.beat("shard", number, incarnation, self.now_s)
            for replica in self.replicas:
                if not replica.mute:
                    self.machine.beat(replica.kind, replica.number, replica.incarnation, self.now_s)
            self.machine.tick(self.now_s)

    def act(self) -> Action | None:
        """Carry out the next action; None where there is none."""
        self.waiting.extend(self.machine.actions)
        self.machine.actions.clear()
        if not self.waiting:
            return None
        action = self.waiting.popleft()
        self._do(action)
        self.done.append(action)
        return action

    def settle(self) -> None:
        """Carry out all actions, and those that follow from them."""
        while self.act() is not None:
            pass

    def _do(self, action: Action) -> None:
        machine, now_s = self.machine, self.now_s
        if isinstance(action, AssignShards):
            placement = action.placement
            self.shards = [Shard(placement.run(p), Adding(), self.job.strategy.staleness) for p in placement.places]
            machine.assigned(now_s)
        elif isinstance(action, Restore):
            self._restore(self.disk[action.set_id])
            machine.restored(self.ledgers(), now_s)
        elif isinstance(action, TakeSnapshot):
            self._snapshot(action.set_id)
        elif isinstance(action, MakeReady):
            for shard in self.shards:
                shard.make_ready()
            machine.ready(now_s)
        elif isinstance(action, Fence):
            for shard in self.shards:
                shard.fence([action.incarnation])
            lowest, highest = self.ledgers().get(action.incarnation, (0, 0))
            for shard in self.shards:
                shard.forget([action.incarnation])
            machine.fenced(action.number, action.incarnation, lowest, highest, now_s)
        elif isinstance(action, SetMembership):
            for shard in self.shards:
                shard.set_membership(action.member_epoch, action.rounds)
            machine.membership_set(action.member_epoch)
        elif isinstance(action, Export):
            self.exported = action.vector, self.vector(action.vector)
            machine.exported(now_s)
        elif isinstance(action, Finish):
            self.finished = True

    def ledgers(self) -> dict[int, tuple[int, int]]:
        """As `coordinator.shards.Shards.ledgers` reads them over the wire."""
        found: dict[int, list[tuple[int, int]]] = {}
        holders = [shard for shard in self.shards if shard.segments]
        for shard in holders:
            for (vector, pusher), row in shard.ledgers().items():
                if vector == PARAMETERS:
                    found.setdefault(pusher.incarnation, []).append(row)
        return {
            life: (min(low for low, _ in rows) if len(rows) == len(holders) else 0, max(high for _, high in rows))
            for life, rows in found.items()
        }

    def _snapshot(self, set_id: str) -> None:
        rows = {}
        for shard in self.shards:
            for index, segment in shard.segments.items():
                self.interleave()
                vectors = {name: values.copy() for name, values in segment.vectors.items()}
                rows[index] = vectors, segment.version, segment.rounds, segment.applied_ledger()
        self.interleave()
        self.disk[set_id] = StoredSet(rows, json.loads(json.dumps(self.machine.set_state())))
        self.machine.snapshot_taken(set_id, self.now_s)

    def _restore(self, stored: StoredSet) -> None:
        for shard in self.shards:
            for index in shard.segments:
                vectors, version, rounds, ledger = stored.segments[index]
                shard.load(index, vectors, (), version, rounds, ledger)
            shard.make_ready()

    def after_crash(self, **changes: Any) -> World:
        """Everything dies; another world goes on from the newest set."""
        set_id = max(self.disk)
        job = self.job.model_copy(update=changes)
        return World(job, self.shape, (set_id, self.disk[set_id].state), self.disk, self.now_s)

    # -- looking -----------------------------------------------------------------------------------------

    def state(self) -> State:
        """Where the job stands."""
        return self.machine.state

    @property
    def segments(self) -> list[Any]:
        """All segments, by index."""
        return [segment for shard in self.shards for _, segment in sorted(shard.segments.items())]

    def vector(self, name: str = PARAMETERS) -> np.ndarray:
        """A named vector as (segments, SLOTS)."""
        return np.stack([segment.vectors[name] for segment in self.segments])

    def applied(self) -> np.ndarray:
        """How often each sample of each epoch was applied, as (segments, epochs x samples) whole numbers."""
        return np.round(self.vector()[:, : self.machine.total]).astype(int)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What was noted under a name."""
        return [dict(a.fields) for a in self.done if isinstance(a, Note) and a.event == name]

    def did(self, kind: type[Action]) -> list[Any]:
        """Actions of a kind, in order."""
        return [action for action in self.done if isinstance(action, kind)]

    def run(self, turns: int = 2_000) -> World:
        """Let all replicas work in turn until the job is over."""
        for _ in range(turns):
            if self.machine.over:
                break
            for replica in list(self.replicas):
                replica.turn()
            self.tick(0.05)
            self.settle()
        self.settle()
        assert self.machine.over, f"{self.machine.state} after {turns} turns: {self.machine.waiting_for()}"
        return self


class Replica:
    """One life of a replica (or client), that does what real ones do, one small step at a time.

    Attributes
    ----------
    mute
        Died, or cut off: it neither beats nor works.
    """

    def __init__(
        self,
        world: World,
        wish: int | None = None,
        kind: str = "replica",
        layout: Layout = LAYOUT,
        source: str = "",
        token: int | None = None,
    ) -> None:
        self.world = world
        self.kind = kind
        self.token = token or next(_tokens)
        member = world.machine.join(
            kind, self.token, f"r{self.token}", "", world.now_s, layout, source_digest=source, wish=wish
        )
        self.number, self.incarnation = member.number, member.incarnation
        self.mute = False
        self.sequences: dict[str, int] = {}
        self.lease: Lease | None = None
        self.evaluation: Evaluate | None = None
        self.told = Told(0)
        self._unsent: list[int] | None = None  # segments that the push under way has not reached; None: there is none
        world.replicas.append(self)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.number} life {self.incarnation}>"

    # -- initial values ----------------------------------------------------------------------------------

    def is_initialiser(self) -> bool:
        """Whether a beat would tell it to push initial values."""
        return self.world.machine.initialises(self.number, self.incarnation)

    def initialise(self, segments: Iterable[int] | None = None) -> None:
        """Push zeros to these segments; to all of them, and say so, where none are named."""
        self.assign(PARAMETERS, np.zeros((4, SLOTS), np.float32), segments)
        if segments is None:
            self.world.machine.initialised(self.incarnation, self.world.now_s)

    def assign(self, vector: str, values: np.ndarray, segments: Iterable[int] | None = None) -> None:
        """Store values under a name."""
        self.sequences[vector] = self.sequences.get(vector, 0) + 1
        push = Push(Pusher(self.number, self.incarnation), self.sequences[vector], vector=vector, assign=True)
        for shard in self.world.shards:
            for index in shard.segments:
                if segments is None or index in segments:
                    shard.push(push, index, values[index])

    # -- work --------------------------------------------------------------------------------------------

    def ask(self) -> Work:
        """Ask for work, and take it up."""
        next_sequence = self.sequences.get(PARAMETERS, 0) + 1
        work = self.world.machine.lease(self.number, self.incarnation, next_sequence, self.world.now_s)
        if isinstance(work, Lease):
            assert work.first_sequence == next_sequence
            self.lease, self.told, self._unsent = work, Told(work.id), None
        elif isinstance(work, Evaluate):
            self.evaluation = work
        return work

    def work(self) -> Lease:
        """Ask for work that must be training."""
        work = self.ask()
        assert isinstance(work, Lease), work
        return work

    def push(self, only: int | None = None) -> bool:
        """Make the next push of the lease, or go on with it; whether it is acknowledged.

        `only`: how many segments it reaches now.
        """
        assert self.lease is not None
        rhythm = cadence(self.world.job)
        before = rhythm.samples_in(self.lease.samples, self.told.pushes)
        after = rhythm.samples_in(self.lease.samples, self.told.pushes + 1)
        clock = self.lease.clock + self.told.pushes
        if self._unsent is None:
            if self._lockstep and any(segment.rounds < clock for segment in self.world.segments):
                return False  # the fetch before it still waits
            self.sequences[PARAMETERS] = self.sequences.get(PARAMETERS, 0) + 1
            self._unsent = [segment.span.index for segment in self.world.segments]
        if self._unsent:
            first = self.lease.epoch * self.world.shape.train + self.lease.start
            gradient = np.zeros(SLOTS, np.float32)
            gradient[first + before : first + after] = 1.0
            self._unsent = self._send(gradient, after - before, clock, self._unsent, only)
        if self._unsent or (self._lockstep and any(segment.rounds <= clock for segment in self.world.segments)):
            return False  # a push in lockstep is acknowledged when its round is applied
        self._unsent = None
        new, steps = after - before, rhythm.steps(after) - rhythm.steps(before)
        t = self.told
        self.told = Told(t.lease, t.pushes + 1, t.samples + new, t.steps + steps, t.loss_sum + new, t.staleness_sum)
        return True

    @property
    def _lockstep(self) -> bool:
        return self.world.job.strategy.staleness == 0

    def _send(self, gradient: np.ndarray, samples: int, clock: int, unsent: list[int], only: int | None) -> list[int]:
        sequence = self.sequences[PARAMETERS]
        push = Push(Pusher(self.number, self.incarnation), sequence, samples=samples, clock=clock)
        now = unsent[:only]
        for shard in self.world.shards:
            for index in now:
                if index in shard.segments:
                    shard.push(push, index, gradient)
        return unsent[len(now) :]

    def tell(self) -> None:
        """Report the lease's progress."""
        self.world.machine.trained(self.number, self.incarnation, self.told, self.world.now_s)

    def train(self, pushes: int | None = None, tell: bool = True) -> None:
        """Make so many pushes of the lease (all that are left), and report them."""
        assert self.lease is not None
        left = cadence(self.world.job).pushes(self.lease.samples) - self.told.pushes
        for _ in range(left if pushes is None else pushes):
            assert self.push()
        if tell:
            self.tell()
        if pushes is None or pushes == left:
            self.lease = None

    def evaluate(self, loss: float | None = None, accuracy: float | None = None, store: bool = True) -> str:
        """Report the evaluation at hand, and store its parameters where told to; under which name."""
        assert self.evaluation is not None
        lease, self.evaluation = self.evaluation, None
        if loss is None:
            loss, accuracy = self.world.score(lease)
        machine, now_s = self.world.machine, self.world.now_s
        values = self.world.vector(lease.vector)
        keep_as = machine.evaluated(self.number, self.incarnation, lease.id, loss, accuracy, now_s)
        if keep_as and store:
            self.assign(keep_as, values)
            machine.kept(lease.id, now_s)
        return keep_as

    def turn(self) -> None:
        """Live one small step: ask, push, report, evaluate or leave."""
        if self.mute:
            return
        if self.evaluation is not None:
            self.evaluate()
        elif self.lease is None:
            if isinstance(self.ask(), Stop):
                self.leave()
        elif self.push():
            self.tell()
            if self.told.samples == self.lease.samples:
                self.lease = None

    # -- ends --------------------------------------------------------------------------------------------

    def leave(self, reason: str = "asked to end") -> None:
        """Say goodbye."""
        self.mute = True
        self.world.machine.leave(self.kind, self.number, self.incarnation, reason, self.world.now_s)

    def die(self) -> None:
        """Fall silent until the machine has noticed."""
        self.mute = True
        self.world.tick(self.world.job.deadlines.beat_s + 1.0)


@pytest.fixture(scope="session")
def a_job() -> Callable[..., Job]:
    return make_job


@pytest.fixture(scope="session")
def a_world() -> Callable[..., World]:
    """Give a_world(strategy__lease=20, ...): a job in which nobody has joined yet."""

    def make(shape: Shape = SHAPE, **changes: Any) -> World:
        return World(make_job(**changes), shape)

    return make


@pytest.fixture(scope="session")
def other_layout() -> Layout:
    return OTHER_LAYOUT
