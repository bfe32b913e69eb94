"""The machine's place in the world: one lock, one clock, one thread that carries out its actions in order.

Handlers and the main loop step the machine under the lock; what it wants done goes into a queue, and the actor thread
does it without the lock, telling the machine the outcome by another step. So no handler ever waits for a shard.
"""

from __future__ import annotations

import json
import queue
import shutil
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dbelief.clock import Clock
from dbelief.console import announce
from dbelief.errors import DbeliefError
from dbelief.export import write_model
from dbelief.metrics import Metrics
from dbelief.registry import Registry
from dbelief.report.curves import draw_curves
from dbelief.report.events import EventLog, read_events
from dbelief.report.summary import write_summary
from dbelief.rpc.parameters import ShardedParameters

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
from .job import JobMachine
from .sets import by_age, write_set
from .shards import Shards
from .states import State
from .summary import summary_of

TICK_S = 0.1
LEASE_TTL_S = 10.0
_PROGRESS_EVERY_S = 0.2


class Speed:
    """Samples per second over the last few seconds."""

    def __init__(self, clock: Clock, window_s: float = 5.0) -> None:
        self._clock = clock
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque()

    def note(self, samples: int) -> None:
        """Take the count of samples in, as of now."""
        now_s = self._clock.now()
        self._points.append((now_s, samples))
        while len(self._points) > 2 and self._points[1][0] < now_s - self._window_s:
            self._points.popleft()

    def per_second(self) -> float:
        """Samples per second; 0 before there is anything to divide."""
        if len(self._points) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._points[0], self._points[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0


class Runner:
    """Runs one job.

    Parameters
    ----------
    folder
        The run folder `runs/NAME`.
    leader_epoch
        Epoch of this coordinator's leadership in `registry`.
    """

    def __init__(
        self,
        machine: JobMachine,
        folder: Path,
        registry: Registry,
        leader_epoch: int,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self.folder = folder
        self.leader_epoch = leader_epoch
        self.speed = Speed(clock)
        self._machine = machine
        self._registry = registry
        self._metrics = metrics
        self._clock = clock
        self._began_s = clock.now()
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._finished = threading.Event()
        self._shards = Shards(machine.job.name, leader_epoch)
        self._events = EventLog(folder / "events.jsonl", clock)
        self._noted_s = -_PROGRESS_EVERY_S
        self._told_wait = ""

    def elapsed_s(self) -> float:
        """Seconds since this coordinator began."""
        return self._clock.now() - self._began_s

    @contextmanager
    def step(self) -> Iterator[tuple[JobMachine, float]]:
        """One step of the machine: it, the time, and its wishes queued afterwards."""
        with self._lock:
            try:
                yield self._machine, self._clock.now()
            finally:
                for action in self._machine.actions:
                    self._queue.put(action)
                self._machine.actions.clear()

    # -- the main loop -----------------------------------------------------------------------------------

    def run(self, interrupted: threading.Event) -> State:
        """Run until the job is over and everyone has heard; a set `interrupted` asks for a clean end, once."""
        actor = threading.Thread(target=self._act, name="actor", daemon=True)
        actor.start()
        stopping = False
        renewed_s = self._clock.now()
        never = threading.Event()
        while not self._finished.is_set():
            with self.step() as (machine, now_s):
                if not machine.over:  # members that have heard of the end are silent, and not dead
                    machine.tick(now_s)
                if interrupted.is_set() and not stopping:
                    stopping = True
                    machine.stop("stopped by a signal", now_s)
                self._show(machine)
                self._tell_wait(machine)
            if now_s - renewed_s > LEASE_TTL_S / 3:
                renewed_s = now_s
                self._renew()
            self._clock.wait(self._finished, TICK_S)
        goodbye_s = self._clock.now() + self._machine.job.deadlines.beat_s
        while self._clock.now() < goodbye_s and self._machine.members.alive("replica", "client"):
            self._clock.wait(never, TICK_S)  # replicas ask for a lease, hear the end, and leave
        self._queue.put(None)
        actor.join()
        self._shards.stop()
        self._shards.close()
        self._events.close()
        return self._machine.state

    def _tell_wait(self, machine: JobMachine) -> None:
        """Say what the job waits for, whenever that changes."""
        quiet = machine.over or machine.state is State.CLOSING
        waiting_for = "" if quiet else machine.waiting_for()
        if waiting_for and waiting_for != self._told_wait:
            announce(f"waiting for {waiting_for}")
        self._told_wait = waiting_for

    def _renew(self) -> None:
        job = self._machine.job.name
        try:
            if self._registry.renew(job, self.leader_epoch, LEASE_TTL_S):
                with self._lock:
                    state = json.dumps(self._state()).encode()
                self._registry.write(job, self.leader_epoch, {"state": state})
                return
            reason = "another coordinator leads this job now"
        except DbeliefError as error:
            reason = str(error)
        with self.step() as (machine, _):
            machine.fail(reason)

    def _state(self) -> dict[str, object]:
        """What another coordinator would need to know first."""
        machine = self._machine
        places = machine.placement.places if machine.placement is not None else ()
        return {
            "state": machine.state.value,
            "reason": machine.reason,
            "folder": str(self.folder),
            "shard_epoch": machine.shard_epoch,
            "incarnations": machine.members.incarnations,
            "shards": {p.shard: [p.address, p.shard_epoch, p.first, p.count] for p in places},
            "leases": machine.leases.state(),
            "progress": machine.progress.state(),
        }

    def _show(self, machine: JobMachine) -> None:
        metrics, progress = self._metrics, machine.progress
        self.speed.note(progress.samples)
        metrics.set_state(machine.state.value)
        metrics.members.labels("ps").set(len(machine.members.alive("shard")))
        metrics.members.labels("worker").set(len(machine.members.alive("replica", "client")))
        metrics.leases_outstanding.set(len(machine.leases.outstanding))
        metrics.epoch.set(machine.epoch)
        metrics.loss.set(progress.loss)
        metrics.samples_total.inc(max(0, progress.samples - (metrics.value("samples_total") or 0)))
        metrics.members_lost_total.inc(machine.members_lost - (metrics.value("members_lost_total") or 0))
        if progress.last is not None:
            metrics.validation_loss.set(progress.last.loss)
            if progress.last.accuracy is not None:
                metrics.validation_accuracy.set(progress.last.accuracy)

    # -- the actor ---------------------------------------------------------------------------------------

    def _act(self) -> None:
        while (action := self._queue.get()) is not None:
            try:
                self._do(action)
            except Exception as error:  # whatever it is: a job must not wait for a thread that is gone
                known = isinstance(error, (DbeliefError, OSError))
                reason = f"{type(action).__name__}: {error if known else repr(error)}"
                if not known:
                    traceback.print_exc()
                with self.step() as (machine, _):
                    if machine.over:  # for some other reason, which stands; but nobody else would hear of this one
                        announce(reason)
                    machine.fail(reason)

    def _do(self, action: Action) -> None:
        if isinstance(action, Note):
            self._note(action)
        elif isinstance(action, AssignShards):
            self._assign(action)
        elif isinstance(action, Restore):
            self._shards.restore(self.folder / "snapshots" / action.set_id, action.set_id)
            ledgers = self._shards.ledgers()
            with self.step() as (machine, now_s):
                machine.restored(ledgers, now_s)
        elif isinstance(action, TakeSnapshot):
            self._snapshot(action.set_id)
        elif isinstance(action, MakeReady):
            self._shards.make_ready()
            with self.step() as (machine, now_s):
                machine.ready(now_s)
        elif isinstance(action, Fence):
            lowest, highest = self._shards.fence(action.number, action.incarnation)
            with self.step() as (machine, now_s):
                machine.fenced(action.number, action.incarnation, lowest, highest, now_s)
        elif isinstance(action, SetMembership):
            clock = self._shards.set_membership(action.member_epoch, action.rounds)
            with self.step() as (machine, _):
                machine.membership_set(action.member_epoch, clock)
        elif isinstance(action, Export):
            self._export(action.vector)
        elif isinstance(action, Finish):
            self._finish()

    def _assign(self, action: AssignShards) -> None:
        job = self._machine.job
        self._shards.assign(action.placement, job.strategy, job.record, job.deadlines.progress_s)
        with self.step() as (machine, now_s):
            machine.assigned(now_s)

    def _note(self, note: Note) -> None:
        if note.event == "progress":  # one line per report would be thousands
            now_s = self._clock.now()
            if now_s - self._noted_s < _PROGRESS_EVERY_S:
                return
            self._noted_s = now_s
            self._events.write(note.event, **note.fields, samples_per_s=self.speed.per_second())
            return
        self._events.write(note.event, **note.fields)

    def _snapshot(self, set_id: str) -> None:
        folder = self.folder / "snapshots" / set_id
        self._shards.snapshot(folder, set_id)
        with self._lock:
            state = self._machine.set_state()
        write_set(folder, set_id, self._machine.job.name, state)
        sets = sorted((path for path in folder.parent.iterdir() if path.is_dir()), key=by_age)
        for old in sets[: -self._machine.job.snapshots.keep]:
            shutil.rmtree(old, ignore_errors=True)
        with self.step() as (machine, now_s):
            machine.snapshot_taken(set_id, now_s)

    def _export(self, vector: str) -> None:
        machine = self._machine
        assert machine.layout is not None
        assert machine.placement is not None
        reader = ShardedParameters(machine.job.name, machine.placement, deadline_s=machine.job.deadlines.progress_s)
        try:
            write_model(
                self.folder / "model.safetensors",
                machine.layout,
                reader.each_segment(vector),
                {"job": machine.job.name},
            )
        finally:
            reader.close()
        with self.step() as (machine, now_s):
            machine.exported(now_s)

    def _finish(self) -> None:
        """Close the run folder: summary and curves."""
        try:
            with self._lock:
                values = summary_of(self._machine, self.elapsed_s())
            write_summary(self.folder / "summary.json", values)
            events = read_events(self.folder / "events.jsonl")
            draw_curves(events, self.folder / "curves.png", self._machine.job.name)
        finally:
            self._finished.set()  # a full disk must not keep the job from ending
