"""A job without processes: the machine, its shards in memory, a disk, and the runner's part.

The model has one number per segment and sample, and the rule adds what is pushed. So the parameters show how often
each sample of each epoch was applied to each segment, whatever died meanwhile: see `World.applied`.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from coordinator.core.effects import (
    Action,
    AssignShards,
    ConfirmOwnership,
    DecommissionShard,
    DropLedger,
    Export,
    Fence,
    FinishRun,
    LogEvent,
    MakeReady,
    MigrateSegments,
    RecoverShard,
    Restore,
    RollBack,
    RunProgram,
    SetMembership,
    TakeSnapshot,
)
from coordinator.core.ledgers import Applied, merge_ledgers
from coordinator.core.messages import EvaluationLease
from coordinator.core.states import DatasetSizes, State
from coordinator.job.machine import JobMachine
from coordinator.job.persistence import load_unfinished, restore, serialize, serialize_changes
from coordinator.runtime.executor import EffectExecutor
from coordinator.runtime.shard_client import ShardClient
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import StoredSegment
from dbelief.core.layout import Layout, SegmentSpan
from dbelief.core.placement import Placement
from dbelief.core.push import PARAMETERS
from dbelief.core.vector_program import Operation
from dbelief.errors import Moved, Unavailable
from dbelief.job import Job, build_job
from dbelief.process.clock import ManualClock
from dbelief.rundir.event_specs import EVENTS
from ps_server.programs import ProgramExecutor
from ps_server.replication.migration import Migration
from ps_server.store.shard import Shard
from tests.coordinator.replica import SLOTS, Replica, next_token

OTHER_LAYOUT = Layout.of({"counts": np.zeros((SLOTS, 4), np.float32)})
_FOR_SOME = LogEvent | FinishRun | RecoverShard | MigrateSegments | ConfirmOwnership | DecommissionShard
"""Actions that need not all shards."""
SHAPE = DatasetSizes(train=100, validation=20, test=30)


class Adding:
    """The rule w <- w + g, without a loop that must be compiled."""

    name = "adding"
    state: ClassVar[dict[str, float]] = {}

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

    segments: dict[int, StoredSegment]
    state: dict[str, Any]


class Committed:
    """A machine whose state is written down whenever it says so, as the runner does it."""

    def __init__(self, machine: JobMachine, world: World) -> None:
        self.__dict__.update(machine=machine, world=world)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.machine, name)
        return functools.partial(self._call, value) if inspect.ismethod(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.machine, name, value)

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        outcome = method(*arguments, **named)
        self.commit()
        return outcome

    def commit(self) -> None:
        """Write down what has to be."""
        if self.machine.commit_due:
            self.machine.commit_due = False
            self.world.store(self.machine)


@dataclass
class World:
    """A job, its shards, its disk, and the runner's part: actions are carried out one at a time, in order.

    Attributes
    ----------
    interleave
        Called between the parts of a snapshot set: training goes on while shards write.
    score
        Loss and accuracy of an evaluation.
    at
        Called at each step of a move: "begun", "given", "there", and "over" before both shards are told what they hold.
    """

    job: Job
    shape: DatasetSizes = SHAPE
    resume: tuple[str, dict[str, Any]] | None = None
    disk: dict[str, StoredSet] = field(default_factory=dict)
    now_s: float = 100.0
    interleave: Callable[[], None] = lambda: None
    score: Callable[[EvaluationLease], tuple[float, float | None]] = lambda lease: (0.5, 0.8)
    shards: list[Shard] = field(default_factory=list)
    waiting: deque[Action] = field(default_factory=deque)
    done: list[Action] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)  # sets on the disk that are not whole any more
    exported: tuple[str, np.ndarray] | None = None
    finished: bool = False
    dead: set[int] = field(default_factory=set)  # shards whose process is gone, or not loaded yet
    lives: list[int] = field(default_factory=list)  # by shard
    moves: list[Migration] = field(default_factory=list)  # by shard
    dismissed: list[int] = field(default_factory=list)  # shards that were told to end
    at: Callable[[str], None] = lambda step: None
    placement: Placement | None = None  # as the actor knows it
    stored: dict[str, str] = field(default_factory=dict)  # what the coordinator wrote down
    written: list[dict[str, str | None]] = field(default_factory=list)  # fields of each commit

    def __post_init__(self) -> None:
        first_epoch = self.resume[1]["shard_epoch"] + 1 if self.resume else 1
        self.machine = self._committed(JobMachine(self.job, self.shape, self.resume, first_epoch))
        self.lives = [1] * self.job.shards
        self.shard_members: list[tuple[int, int]] = []  # number, incarnation
        never = ManualClock()
        client = cast("ShardClient", self)
        self._actor = EffectExecutor(
            self.step, client, Path(), LocalSets(Path()), lambda note: None, lambda: None, lambda: None, never
        )

    # -- members -----------------------------------------------------------------------------------------

    def shard(self, token: int | None = None, requested: int | None = None, again: str = "") -> int:
        """A shard joins; its number. `again`: the name of a process that was started again."""
        token = token or next_token()
        name = again or f"s{token}"
        member = self.machine.join(
            "shard", token, name, f"10.0.0.{token}:1", self.now_s, requested_number=requested, restarted=bool(again)
        )
        self.shard_members.append((member.number, member.incarnation))
        return member.number

    def kill_shard(self, number: int) -> None:
        """A shard's process is gone; nobody has noticed yet."""
        self.dead.add(number)
        latest = {m.number: m.incarnation for m in self.machine.members.alive("shard")}
        self.shard_members.remove((number, latest[number]))

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

    def all_work_off(self, leave: bool = False) -> None:
        """Each replica takes up a lease; then each trains its own, and may leave."""
        for replica in self.replicas:
            replica.work()
        for replica in self.replicas:
            replica.train()
            if leave:
                replica.leave()

    # -- time and actions --------------------------------------------------------------------------------

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes; all who are not mute beat, and the machine looks twice a second."""
        for _ in range(max(1, round(seconds / 0.5))):
            self.now_s += min(seconds, 0.5)
            for number, incarnation in self.shard_members:
                self.machine.heartbeat("shard", number, incarnation, self.now_s)
            for replica in self.replicas:
                if not replica.mute:
                    self.machine.heartbeat(replica.kind, replica.number, replica.incarnation, self.now_s)
            self.machine.tick(self.now_s)

    def act(self) -> Action | None:
        """Carry out the next action; None where there is none."""
        self.waiting.extend(self.machine.actions)
        self.machine.actions.clear()
        if not self.waiting:
            return None
        action = self.waiting.popleft()
        try:
            if self.dead & self.machine.members.needed and not isinstance(action, _FOR_SOME):
                raise Unavailable("a shard is dead")
            self._do(action)
        except (Unavailable, Moved):
            if self._again(action):
                self.waiting.appendleft(action)
                return None
            return action
        if isinstance(action, LogEvent):
            logged = {"samples_per_s"} if action.event == "progress" else set()  # by the event loop
            unlogged = {"runs"} if action.event == "pass" else set()
            optional = {"member": {"residual"}, "progress": {"rounds"}}.get(action.event, set())
            listed = set(EVENTS[action.event].fields) - logged
            assert listed - optional <= action.fields.keys() - unlogged <= listed, action
        self.done.append(action)
        return action

    def _again(self, action: Action) -> bool:
        """Whether an action that some shard did not answer is tried again now; else it is kept, or over."""
        if isinstance(action, RecoverShard):
            return self.machine.members.find("shard", action.place.shard, action.incarnation) is not None
        if not self.machine.recovery.unavailable:  # until it answers, or is known to be dead
            return True
        self.machine.postpone(action)
        return False

    def settle(self) -> None:
        """Carry out all actions, and those that follow from them."""
        while self.act() is not None:
            pass

    def _do(self, action: Action) -> None:
        if isinstance(action, RecoverShard | SetMembership | DropLedger):
            self.store(cast("Committed", self.machine).machine)
        machine, now_s = self.machine, self.now_s
        if isinstance(action, AssignShards):
            placement = action.placement
            self.shards = [self._shard(placement.run(place)) for place in placement.places]
            self.moves = [Migration(shard) for shard in self.holders]
            machine.assigned(now_s)
        elif isinstance(action, Restore):
            self._restore(self.disk[action.set_id])
            machine.restored(self.ledgers(), now_s)
        elif isinstance(action, TakeSnapshot):
            if not machine.abort_obsolete_set():
                self._snapshot(action.set_id)
        elif isinstance(action, MakeReady):
            for shard in self.holders:
                shard.make_ready()
            machine.ready(now_s)
        elif isinstance(action, RecoverShard):
            self._actor._do([action])
        elif isinstance(action, Fence):
            for shard in self.holders:
                shard.fence([action.incarnation])
            machine.fenced(action.number, action.incarnation, self.ledgers().get(action.incarnation, Applied()), now_s)
        elif isinstance(action, DropLedger):
            for shard in self.holders:
                shard.forget([action.incarnation])
            machine.ledger_dropped(action.incarnation)
        elif isinstance(action, SetMembership):
            clocks = [shard.set_membership(action.member_epoch, action.rounds) for shard in self.holders]
            machine.training.policy.shards_acknowledged(action.member_epoch, max(clocks))
        elif isinstance(action, RunProgram):
            if machine.program_due(action.ticket):
                machine.program_ran(action.ticket, self._program(action.program), now_s)
        elif isinstance(action, RollBack):
            self._restore(self.disk[action.set_id], again=True)
            machine.rolled_back(action.set_id, self.disk[action.set_id].state, now_s)
        elif isinstance(action, Export):
            if machine.shutdown.exports(action.vector):
                self.exported = action.vector, self.vector(action.vector)
                machine.exported(machine.training.reached(), self.ledgers(), now_s)
        elif isinstance(action, MigrateSegments | ConfirmOwnership):
            self.placement = machine.placement
            self._actor._do([action])
        elif isinstance(action, DecommissionShard):
            self.dismissed.append(action.shard)
            if (action.shard, action.incarnation) in self.shard_members:
                self.shard_members.remove((action.shard, action.incarnation))
                machine.leave("shard", action.shard, action.incarnation, "the job is over", now_s)
        elif isinstance(action, FinishRun):
            self.finished = True

    def ledgers(self) -> dict[int, Applied]:
        """As `coordinator.runtime.shard_client.ShardClient.ledgers` reads them over the wire."""
        found = []
        for shard in (shard for shard in self.holders if shard.segments):
            lost, rows = shard.lost_of(), shard.ledgers().items()
            mine = {pusher: row for (vector, pusher), row in rows if vector == PARAMETERS}
            found.append(
                {
                    pusher.incarnation: Applied(lowest, highest.sequence, lost.get(pusher, 0))
                    for pusher, (lowest, highest) in mine.items()
                }
            )
        return merge_ledgers(found)

    def _program(self, program: Sequence[Operation]) -> list[float]:
        """As `coordinator.runtime.shard_client.ShardClient.run` has it run; no test asks for a largest number."""
        parts = []
        for shard in self.holders:
            programs = ProgramExecutor(shard)
            parts.append(programs.run(program))
            programs.close()
        return [sum(column) for column in zip(*parts, strict=True)]

    def _snapshot(self, set_id: str) -> None:
        rows = {}
        for shard in self.holders:
            for index, segment in shard.segments.items():
                self.interleave()
                vectors = {name: values.copy() for name, values in segment.vectors.items()}
                ledger = segment.applied_ledger()
                counts = segment.version, segment.applied, segment.rounds, segment.ledger.lost
                assert index not in rows, "every segment is in one part of a set"
                rows[index] = StoredSegment(segment.span, *counts, ledger, vectors, dict(segment.ledger.lost_of))
        assert len(rows) == 4, "and none is missing"
        self.interleave()
        self.disk[set_id] = StoredSet(rows, json.loads(json.dumps(self.machine.set_state())))
        self.machine.snapshot_taken(set_id, self.now_s)

    def _restore(self, stored: StoredSet, again: bool = False) -> None:
        for shard in self.holders:
            self._load(shard, stored, self.machine.shard_epoch, again)

    def _load(self, shard: Shard, stored: StoredSet, shard_epoch: int, again: bool = False) -> None:
        for index in shard.segments:
            shard.load(stored.segments[index], shard_epoch, again)
        shard.make_ready()

    def _shard(self, spans: Sequence[SegmentSpan]) -> Shard:
        strategy = self.job.strategy
        return Shard(spans, Adding(), strategy.staleness, ordered=getattr(strategy, "ordered", False))

    def recover(self, action: RecoverShard) -> tuple[str | None, dict[int, int]]:
        """See `ShardClient.recover`; the process becomes the shard."""
        machine, number = self.machine, action.place.shard
        if (number, action.incarnation) not in self.shard_members:
            raise Unavailable(f"shard {number} is dead")
        assert machine.placement is not None
        shard = self._shard(machine.placement.run(action.place))
        if action.membership is not None:
            shard.set_membership(action.membership.member_epoch, action.membership.rounds)
        set_id, lowest = action.set_id, dict[int, int]()
        if set_id in self.damaged:
            set_id = max(self.disk.keys() - self.damaged)
        if set_id is not None:
            self._load(shard, self.disk[set_id], action.place.shard_epoch)
            rows = shard.ledgers().items()
            lowest = {pusher.incarnation: row.sequence for (vector, pusher), (row, _) in rows if vector == PARAMETERS}
            shard.fence(action.fenced)
            shard.forget(action.settled)
        if self.shards:
            self._put(number, shard)
        self.dead.discard(number)
        return set_id, lowest

    def _put(self, number: int, shard: Shard) -> None:
        """A process is the shard of this number from now on, in a life of its own."""
        while len(self.shards) <= number:
            self.shards.append(self._shard(()))
            self.moves.append(Migration(self.shards[-1]))
            self.lives.append(0)
        self.shards[number], self.moves[number] = shard, Migration(shard)
        self.lives[number] += 1

    # -- segments move: what `coordinator.runtime.shard_client.ShardClient` does over the wire ---------------------

    @contextmanager
    def step(self) -> Iterator[tuple[JobMachine, float]]:
        """As the runner's: what has to be written down is, at its end."""
        yield self.machine, self.now_s
        cast("Committed", self.machine).commit()

    def reach(self, number: int) -> Migration:
        """A shard that answers."""
        if number in self.dead:
            raise Unavailable(f"shard {number} does not answer")
        return self.moves[number]

    def migrate(self, move: MigrateSegments) -> int:
        """See `ShardClient.migrate`; `at` is called at each step of it."""
        self.at("begun")
        giver = self.reach(move.sender)
        sent = giver.send(move.segments, "another", lambda carried: self.reach(move.receiver).receive(carried))
        self.at("given")
        self.reach(move.receiver)
        self.at("there")
        return sent

    def set_ownership(self, shards: Collection[int]) -> None:
        """See `ShardClient.set_ownership`."""
        assert self.placement is not None
        self.at("over")
        silent: Unavailable | None = None
        for place in self.placement.places:
            if place.shard in shards and not self.machine.recovery.is_unavailable(place):
                try:
                    self.reach(place.shard).commit(list(place.segments))
                except Unavailable as error:
                    silent = error
        if silent is not None:
            raise silent

    def store(self, machine: JobMachine) -> None:
        """Write down what has changed: then all is stored that there is, and nothing else."""
        fields = serialize_changes(machine, self.now_s)
        self.written.append(fields)
        for name, text in fields.items():
            if text is None:
                self.stored.pop(name, None)
            else:
                self.stored[name] = text
        assert self.stored == serialize(machine, self.now_s)

    def take_over(self) -> None:
        """The coordinator dies with all that it had not carried out; another goes on from what it had written."""
        parts = load_unfinished({name: text.encode() for name, text in self.stored.items()})
        assert parts is not None
        self.waiting.clear()
        machine = JobMachine(self.job, self.shape)
        restore(machine, parts, self.now_s)
        self.machine = self._committed(machine)

    def _committed(self, machine: JobMachine) -> JobMachine:
        return cast("JobMachine", Committed(machine, self))

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
        found = {index: shard.segments.get(index) for _, shard, held in self.places() for index in held}
        return [segment for _, segment in sorted(found.items()) if segment is not None]

    def places(self) -> list[tuple[int, Shard, list[int]]]:
        """The shards that have a place, each with its number and the segments that it is to hold."""
        assert self.machine.placement is not None
        places = self.machine.placement.places
        return [(place.shard, self.shards[place.shard], list(place.segments)) for place in places]

    def served(self) -> list[tuple[int, Shard, list[int]]]:
        """Of these, those that live."""
        return [place for place in self.places() if place[0] not in self.dead]

    @property
    def holders(self) -> list[Shard]:
        """The shards that have a place."""
        return [shard for _, shard, _ in self.places()]

    def vector(self, name: str = PARAMETERS) -> np.ndarray:
        """A named vector as (segments, SLOTS)."""
        return np.stack([segment.vectors[name] for segment in self.segments])

    def applied(self) -> np.ndarray:
        """How often each sample of each epoch was applied, as (segments, epochs x samples) whole numbers."""
        return np.round(self.vector()[:, : self.machine.total]).astype(int)

    def events(self, name: str) -> list[dict[str, Any]]:
        """What was noted under a name."""
        return [dict(a.fields) for a in self.done if isinstance(a, LogEvent) and a.event == name]

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
