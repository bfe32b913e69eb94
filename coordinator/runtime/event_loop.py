"""Event loop around the machine: one lock, one clock, one executor thread that runs its actions in order.

Handlers and the main loop step the machine under the lock. Its actions go into a queue. The executor thread runs them
without the lock, and reports the outcome by another step. So no handler blocks on a shard.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dbelief.checkpoint.set_storage import LocalSets, SetStorage
from dbelief.errors import DbeliefError, Deposed, WriteFailed
from dbelief.job import Elastic, SyncSgd
from dbelief.monitor.event_text import event_text, is_trouble
from dbelief.process.clock import Clock
from dbelief.process.runtime import Event, runtime
from dbelief.process.terminal.console import cause_of, format_error
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.events import EventLog
from dbelief.rundir.folder import LAST_PASS, REDUCTION
from dbelief.rundir.summary import EARLIER, FILE, write_summary
from dbelief.telemetry.metrics import Metrics
from dbelief.tools.report.pictures import draw_pictures

from ..cluster.replica_scaling import ReplicaScaling
from ..core.effects import Action, LogEvent
from ..core.states import State
from ..job.machine import JobMachine
from ..job.persistence import serialize, serialize_changes
from ..monitoring.allreduce_traffic import GroupTraffic
from ..monitoring.latest_file import ThrottledJsonFile
from ..monitoring.measuring import predictions, totals
from ..monitoring.metrics import CoordinatorMetrics
from ..monitoring.summary import summary_of
from ..monitoring.throughput import MemberThroughput, Speed
from .executor import EffectExecutor
from .held_requests import HeldRequests
from .leader_lease import LeaderLease
from .shard_client import ShardClient

log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
TICK_S = 0.1
_PROGRESS_EVERY_S = 0.2
_FIGURES_EVERY_S = 1.0
_LOGGED = frozenset(
    {"member", "followed", "unfollowed", "promoted", "shard_back", "shard_taken_in", "rolled_back", "takeover"}
    | {"scaling", "scaled", "workers_scaled", "warm_start", "bundle_failed", "evaluation_failed"}
)
"""Events that the coordinator's log has too: an operator finds what failed, and why, without the run folder."""


class EventLoop:
    """Event loop of one job.

    Parameters
    ----------
    folder
        The run folder `runs/NAME`.
    began_wall_s
        Start of the run in seconds since 1970, where another coordinator started it.
    pictures
        Whether pictures are drawn at the end of the job; one second of processor time.
    where
        Where the run's files are in the end; "": in the folder.
    sets
        The run's snapshot sets; None: those of the run folder.
    confirm
        Raises Deposed where another process writes the run's files by now.
    moved
        Why the run folder is not the run's any more; "" where it is. Called ten times a second.

    Attributes
    ----------
    job_yaml
        The job with all fields, as a job file.
    held
        Requests for work that wait for some.
    unwritten
        The error by which the last summary was not written; the run is not closed then, and the next coordinator
        writes it.
    """

    def __init__(
        self,
        machine: JobMachine,
        folder: Path,
        leadership: LeaderLease,
        metrics: Metrics,
        clock: Clock,
        began_wall_s: float | None = None,
        pictures: bool = True,
        where: str = "",
        sets: SetStorage | None = None,
        confirm: Callable[[], None] = lambda: None,
        moved: Callable[[], str] = lambda: "",
    ) -> None:
        self.folder = folder
        self.where = where or str(folder)
        sets = sets or LocalSets(folder / "snapshots")
        self._confirm_place, self._moved = confirm, moved
        self._pictures = pictures
        self.leadership = leadership
        self.speed = Speed(clock)
        self._waiting_s: dict[object, float] = {}  # since when steps wait for their turn
        self._machine = machine
        self._clock = clock
        began_wall_s = clock.wall() if began_wall_s is None else began_wall_s
        self.job_yaml = machine.job.to_yaml()
        self._run_section = json.dumps(
            {"folder": self.where, "began": began_wall_s, "legs": machine.earlier_wall_s, "job": self.job_yaml}
        )
        earlier_s = max(0.0, clock.wall() - began_wall_s)
        self._began_s = clock.now() - earlier_s
        self._lock = runtime.reentrant_lock()
        self._steps = 0  # counts the steps that must be persisted
        self._written = 0  # the last of them that is persisted
        self._unqueued: deque[tuple[int, Action]] = deque()  # actions, each with the step to persist before it
        self._finished = runtime.event()
        self.unwritten: WriteFailed | None = None
        self.held = HeldRequests()
        self.scaling = ReplicaScaling(machine.job)
        self.throughput = MemberThroughput(clock, folder / EVENTS, machine.training.batch is not None)
        self._shards = ShardClient(
            machine.job, lambda: leadership.epoch, machine.recovery.is_unavailable, sets, machine.run_id
        )
        self._events = EventLog(folder / EVENTS, clock, earlier_s)
        self._last_pass = ThrottledJsonFile(folder / LAST_PASS, clock)
        self._reduction = ThrottledJsonFile(folder / REDUCTION, clock)
        strategy = machine.job.strategy
        self._traffic = GroupTraffic(strategy.reduction) if isinstance(strategy, Elastic | SyncSgd) else None
        self._executor = EffectExecutor(
            self.step,
            self._shards,
            folder,
            sets,
            self._log_event,
            self._write_summary,
            self._finish,
            clock,
            self.wall_s,
            self._confirm_leads,
        )
        self.exporter = CoordinatorMetrics(metrics, machine.job, folder, clock)
        metrics.add_callback("retries_total", lambda: self._executor.retries, to="ps")
        self._progress_logged_s = self._figures_s = -math.inf
        self._waiting_for = ""

    def _confirm_leads(self) -> None:
        """Raise Deposed where another coordinator leads the job, or writes its files, by now."""
        self.leadership.confirm()
        self._confirm_place()

    def elapsed_s(self) -> float:
        """Seconds since the run started, or was resumed."""
        return self._clock.now() - self._began_s

    def wall_s(self) -> float:
        """Wall time of the run in seconds, including the time stored in the set that it was resumed from."""
        return self._machine.earlier_wall_s + self.elapsed_s()

    def record_traffic(self, replica: int, report: wire.Traffic) -> None:
        """Record what a worker received from others of its group; used only for a picture."""
        known = self._traffic.record(replica, report) if self._traffic is not None else None
        if known is not None:
            self._reduction.update(known)

    @contextmanager
    def step(self) -> Iterator[tuple[JobMachine, float]]:
        """One step of the machine: yields it and the time, and queues its actions afterwards.

        State needed for coordinator failover is persisted in the registry before this returns, and before any action of
        the step is queued. This also holds for a step that raises, as its changes remain.
        """
        steps, turn = 0, object()
        self._waiting_s[turn] = self._clock.now()
        try:
            with self._lock:
                del self._waiting_s[turn]
                try:
                    yield self._machine, self._clock.now()
                finally:
                    steps = self._collect()
        finally:
            if steps:
                self._commit(steps)

    def _collect(self) -> int:
        """End a step, under the lock; returns its number if it must be persisted, else 0."""
        due, self._machine.commit_due = self._machine.commit_due, False
        self._steps += due
        self._unqueued.extend((self._steps, action) for action in self._machine.actions)
        self._machine.actions.clear()
        self._queue_written()
        self.held.update(self._machine.offer)
        return self._steps if due else 0

    def _commit(self, steps: int) -> None:
        """Persist all steps up to this one, then queue their actions."""
        try:
            self.leadership.commit(self._fields, steps)
        except DbeliefError as error:
            if self.leadership.lost or self.leadership.released:
                raise  # another coordinator leads, or will: held actions must not run, and the job has not failed
            with self._lock:
                self._machine.fail(str(error))
                steps = self._collect() or steps
        with self._lock:
            self._written = max(self._written, steps)
            self._queue_written()

    def _queue_written(self) -> None:
        """Queue the actions whose steps are persisted, in the order of the steps."""
        while self._unqueued and self._unqueued[0][0] <= self._written:
            self._executor.submit(self._unqueued.popleft()[1])

    def _fields(self, complete: bool) -> tuple[int, dict[str, str | None]]:
        with self._lock:
            fields = (serialize if complete else serialize_changes)(self._machine, self._clock.now())
            return self._steps, {**fields, "run": self._run_section}

    # -- the main loop -----------------------------------------------------------------------------------

    def run(self, interrupted: Event, leaves: bool = False) -> State:
        """Run until the job is over and all members are notified; a set `interrupted` requests a clean stop, once.

        Parameters
        ----------
        leaves
            A set `interrupted` ends this process but not the job, which another coordinator continues.

        Returns
        -------
        State
            DONE or FAILED; another state where this process left the job.

        Raises
        ------
        Deposed
            Another coordinator leads the job now, or the run folder was moved: nothing was changed.
        """
        self._executor.start()
        try:
            self._run(interrupted, leaves)
        finally:
            self.held.close()
            self._executor.end()
            self._shards.close()
            self._events.close()
        return self._machine.state

    def _run(self, interrupted: Event, leaves: bool) -> None:
        stopping = False
        never = runtime.event()
        while not self._finished.is_set():
            if reason := self._moved():
                self.leadership.lose(reason)
            if self.leadership.lost:
                raise Deposed(self.leadership.lost)
            with self.step() as (machine, now_s):
                if not machine.over:  # members notified of the end send no heartbeats, and have not failed
                    machine.tick(now_s, now_s - min(self._waiting_s.copy().values(), default=now_s))
                if interrupted.is_set() and leaves and not machine.over:
                    return
                if interrupted.is_set() and not stopping and not machine.over:
                    stopping = True
                    machine.stop(f"stopped by {cause_of(interrupted)}", now_s)
                self.speed.note(machine.progress.samples_since)
                if now_s - self._figures_s >= _FIGURES_EVERY_S:
                    self._update_metrics(machine)
                    self._scale_by_measurement(machine, now_s)
                self._log_waiting_for(machine)
            with suppress(WriteFailed):  # for display only; an error is reported at the end
                self._last_pass.flush()
                self._reduction.flush()
            self._clock.wait(self._finished, TICK_S)
        with self._lock:
            self._update_metrics(self._machine)
        until_s = self._clock.now() + self._machine.job.deadlines.beat_s
        while self._clock.now() < until_s and self._machine.members.alive("replica", "client"):
            if interrupted.is_set() and not stopping:
                break  # the launcher of all of them has seen that their processes have ended
            self._clock.wait(never, TICK_S)  # replicas request a lease, receive the stop, and leave
        # Shards without segments too: a job that fails before it trains has assigned none.
        self._shards.stop([member.address for member in self._machine.members.alive("shard", "follower")])

    def _scale_by_measurement(self, machine: JobMachine, now_s: float) -> None:
        """Change the number of workers, where the job has `scale: auto` and all its workers may train."""
        if machine.job.scale is None or machine.state is not State.READY or machine.progress.warm_start.active:
            return
        event = self.scaling.follow(
            len(machine.members.alive("replica")),
            lambda: totals(machine, self.throughput, self.elapsed_s()),
            lambda before, after, count: predictions(machine.job, before, after, count),
            now_s,
        )
        if event is not None:
            machine.actions.append(event)

    def _log_waiting_for(self, machine: JobMachine) -> None:
        """Print what the job waits for, whenever that changes."""
        quiet = machine.over or machine.state is State.CLOSING
        waiting_for = "" if quiet else machine.waiting_for()
        if waiting_for and waiting_for != self._waiting_for:
            log.info(f"waiting for {waiting_for}")
        self._waiting_for = waiting_for

    def refused(self, kind: str) -> None:
        """Count a call that was answered with an error of this kind."""
        self.exporter.metrics.refused_total.labels(kind).inc()

    def _update_metrics(self, machine: JobMachine) -> None:
        """Update the figures for display; their cost grows with the members."""
        self._figures_s = self._clock.now()
        self.speed.note(machine.progress.samples_since)
        self.throughput.record_pushers(machine.members.alive("replica", "client"), machine.progress)
        if self.scaling.wanted is not None:
            self.exporter.metrics.members_wanted.labels("worker").set(self.scaling.wanted)
        self.exporter.update(machine, self.leadership.epoch, self.speed, self.elapsed_s())

    def _log_event(self, event: LogEvent) -> None:
        fields = dict(event.fields)
        if event.event in _LOGGED and not self._machine.over:  # at the end all members leave
            level = logging.WARNING if is_trouble(event.event, fields) else logging.INFO
            log.log(level, event_text(event.event, fields))
        if event.event == "progress":  # one line per report would be thousands
            now_s = self._clock.now()
            if now_s - self._progress_logged_s < _PROGRESS_EVERY_S:
                return
            self._progress_logged_s = now_s
            fields["samples_per_s"] = self.speed.per_second()
        if event.event == "pass":  # the log gets its numbers; the attempts are only for its picture
            self._last_pass.update(event.fields)
            del fields["runs"]
        else:
            self.throughput.curves.add(event.event, fields, self._clock.wall())
        self._events.write(event.event, **fields)

    def _write_summary(self) -> None:
        with self._lock:
            values = summary_of(self._machine, self.wall_s(), self.throughput.processors_by_member())
        if write_summary(self.folder / FILE, values).trained:
            (self.folder / EARLIER).unlink(missing_ok=True)

    def _finish(self) -> None:
        """Close the run folder: summary and curves. Coordinator failover is not needed any more."""
        if not self.leadership.certain:  # after a suspension: the next coordinator may have closed it
            try:
                self.leadership.confirm()
            except Deposed:
                raise
            except DbeliefError as error:
                log.warning(f"the leader lease could not be confirmed: {error}")
        if reason := self._moved():
            raise Deposed(reason)
        try:
            self._write_summary()
            self._draw()
            with self._lock:
                self._machine.finished = self._machine.commit_due = True
            with self.step():
                pass
        except WriteFailed as error:
            self.unwritten = error
        finally:
            self._finished.set()  # a full disk must not keep the job from ending

    def _draw(self) -> None:
        """Write the files that are for display alone; without them the run is complete."""
        try:
            self._last_pass.flush(at_once=True)
            self._reduction.flush(at_once=True)
            if self._pictures:
                draw_pictures(self.folder, self.folder, self._machine.job.name)
        except Exception as error:  # matplotlib's own too, as of a broken font
            log.error(f"{format_error(error)}; `dbelief report {self.where}` draws the pictures later")
