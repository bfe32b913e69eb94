"""Executor thread for the machine's actions: one at a time, in order; those of workers that leave, together.

Attaching and detaching followers, and promotions, are urgent: they run out of order, between two attempts of another
action and while shards read or write files for one. While a store of objects is waited for, so do those of workers.

The outcome of an action is reported to the machine by another step. If a shard does not reply, the action is retried
until it does or is known to have failed. Then the machine postpones the action until all shards are available.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dbelief.checkpoint.safetensors_io import write_model
from dbelief.checkpoint.set_storage import SetStorage
from dbelief.errors import DbeliefError, Deposed, Moved, Rejected, Unavailable, WriteFailed
from dbelief.monitor.format import plural
from dbelief.process.clock import Clock
from dbelief.process.gc_control import collect
from dbelief.process.runtime import Empty, Queue, runtime
from dbelief.process.terminal.console import format_error
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rundir.model_metadata import model_metadata

from ..core import effects
from ..core.ledgers import Applied
from ..job.machine import JobMachine
from .shard_client import ShardClient

log = logging.getLogger(__name__)

T = TypeVar("T")
Step = Callable[[], AbstractContextManager[tuple[JobMachine, float]]]
RETRY_S = 0.2
LOOK_S = 0.05
"""Time between two looks for other actions while a store of objects is waited for, in seconds."""
_FOLLOWER = effects.AttachFollower | effects.DetachFollower
_PERSISTED_FIRST = effects.RecoverShard | effects.SetMembership | effects.DropLedger | _FOLLOWER
"""An epoch or a settled ledger must be persisted before the shards receive it, for coordinator failover."""
_OF_WORKERS = effects.LogEvent | effects.Fence | effects.DropLedger
MOST_TOGETHER = 256
"""Largest number of queued actions that are run together: the machine records all outcomes of a kind in one step."""


class _Signal(Enum):
    """Queue entries beside actions."""

    LOOK = "there is something that comes before its turn"
    END = "nothing follows"


class EffectExecutor:
    """Executor of the actions of one job.

    Parameters
    ----------
    step
        Makes a step of the machine: see `EventLoop.step`.
    folder, sets
        The run folder, and the run's snapshot sets.
    note, summarise, finish
        Write an event; write the summary; close the run folder.
    confirm_leads
        Raises Deposed where another coordinator has led until now.

    Attributes
    ----------
    retries
        Number of retries of actions after a shard did not reply.
    """

    def __init__(
        self,
        step: Step,
        shards: ShardClient,
        folder: Path,
        sets: SetStorage,
        note: Callable[[effects.LogEvent], None],
        summarise: Callable[[], None],
        finish: Callable[[], None],
        clock: Clock,
        wall_s: Callable[[], float] = lambda: 0.0,
        confirm_leads: Callable[[], None] = lambda: None,
    ) -> None:
        self._step = step
        self._shards = shards
        shards.on_idle = self._run_urgent
        self._folder, self._sets = folder, sets
        self._clock = clock
        self._wall_s = wall_s
        self._confirm_leads = confirm_leads
        self.retries = 0
        self._urgent: Queue[effects.Action] = runtime.queue()
        self._queue: Queue[effects.Action | _Signal] = runtime.queue()
        self._next: effects.Action | _Signal | None = None  # taken from the queue already
        self._ended = runtime.event()
        self._handlers: dict[type[effects.Action], Callable[[Any], None]] = {
            effects.AssignShards: self._assign,
            effects.AttachFollower: self._attach_follower,
            effects.ConfirmOwnership: lambda action: shards.set_ownership(action.shards),
            effects.DecommissionShard: lambda action: shards.decommission(action),
            effects.DetachFollower: self._detach_follower,
            effects.Export: self._export,
            effects.FinishRun: lambda _: finish(),
            effects.LogEvent: note,
            effects.MakeReady: self._make_ready,
            effects.MigrateSegments: self._migrate,
            effects.RecoverShard: self._recover,
            effects.Restore: self._restore,
            effects.RollBack: self._roll_back,
            effects.RunProgram: self._run_program,
            effects.SetMembership: self._set_membership,
            effects.TakeSnapshot: self._snapshot,
            effects.WriteSummary: lambda _: summarise(),
        }
        # A thousand workers that leave within a second are fenced by a few calls of each shard.
        self._together: dict[type[effects.Action], Callable[[list[Any]], None]] = {
            effects.Fence: self._fence,
            effects.DropLedger: self._drop_ledgers,
        }

    def submit(self, action: effects.Action) -> None:
        """Queue an action after all earlier ones; an action that others may be blocked on runs before them.

        A shard that has lost its follower acknowledges nothing until it is detached, and a fence or a program waits for
        that. A promoted follower is not in service until it receives its promotion.
        """
        if isinstance(action, _FOLLOWER) or (isinstance(action, effects.RecoverShard) and action.promoted):
            self._urgent.put(action)
            self._queue.put(_Signal.LOOK)  # wakes the thread if it is idle
        else:
            self._queue.put(action)

    def start(self) -> None:
        """Start the thread."""
        self._thread = runtime.spawn(self.run, "actor")

    def end(self) -> None:
        """End the thread, once all queued actions are done."""
        self._ended.set()
        self._queue.put(_Signal.END)
        self._thread.join()

    def run(self) -> None:
        """Run queued actions until `end` is called, or another coordinator leads."""
        with suppress(Deposed):  # of a step: the event loop ends this process, and no further action may run
            while (entry := self._take()) is not _Signal.END:
                for actions in self._with_those_behind(entry):
                    self._run_urgent()
                    self._carry_out(actions)
                self._run_urgent()

    def _take(self) -> effects.Action | _Signal:
        entry, self._next = self._next, None
        return self._queue.get() if entry is None else entry

    def _with_those_behind(self, action: effects.Action | _Signal) -> list[list[effects.Action]]:
        """An action and those behind it in the queue that are run with it, by kind: a call of each shard for each kind.

        Each worker that leaves has an event, a fence, and later another action to drop its ledger rows. These are
        independent of those of other workers, so they may run in another order.
        """
        if isinstance(action, _Signal):
            return []
        actions = [action]
        with suppress(Empty):
            while isinstance(action, _OF_WORKERS) and len(actions) < MOST_TOGETHER:
                following = self._queue.get(block=False)
                if not isinstance(following, _OF_WORKERS):
                    self._next = following
                    break
                actions.append(following)
        events = [[one] for one in actions if type(one) not in self._together]
        together = [[one for one in actions if type(one) is kind] for kind in self._together]
        return [*events, *filter(None, together)]

    def _run_urgent(self) -> None:
        with suppress(Empty):
            while True:
                self._carry_out([self._urgent.get(block=False)])

    def _carry_out(self, actions: list[effects.Action]) -> None:
        """Run actions of one kind and retry them until they are done or no longer needed, or this coordinator ends."""
        try:
            while not self._done(actions):
                if self._clock.wait(self._ended, RETRY_S):
                    return  # it leaves the job: the next coordinator issues the action again
                self.retries += 1
                self._run_urgent()
        except Deposed:  # where the job is over, the step below persists nothing, and would not raise it again
            raise
        except Exception as error:  # any error: a job must not wait for a thread that has ended
            try:
                self._confirm_leads()  # a shard refuses a coordinator that was suspended and replaced: no failure
            except Deposed:
                raise
            except DbeliefError as registry_error:
                log.warning(f"the leader lease could not be confirmed: {registry_error}")
            reason = f"{type(actions[0]).__name__}: {format_error(error)}"
            with self._step() as (machine, _):
                if machine.over:  # for another reason, which stays: print this one here
                    log.warning(reason)
                machine.fail(reason)

    def _done(self, actions: list[effects.Action]) -> bool:
        """Run actions of one kind once; False if they are to be retried."""
        try:
            with self._step() as (machine, _):
                self._shards.placement = machine.placement
                machine.commit_due |= isinstance(actions[0], _PERSISTED_FIRST)
            self._do(actions)
        except (Unavailable, Moved):
            if isinstance(actions[0], effects.LogEvent | effects.FinishRun):
                raise
            with self._step() as (machine, _):
                return machine.over or self._dropped(machine, actions)
        return True

    @staticmethod
    def _dropped(machine: JobMachine, actions: list[effects.Action]) -> bool:
        """Whether actions that some shard did not answer are not retried now: they are obsolete, or postponed."""
        action = actions[0]
        if isinstance(action, effects.RecoverShard):
            return machine.members.find("shard", action.place.shard, action.incarnation) is None
        if isinstance(action, effects.AttachFollower):  # a retry could restart a stream that has started
            machine.follower_reported(action.shard, action.epoch, False, "the coordinator did not reach both")
            return True
        if isinstance(action, effects.DetachFollower):
            return not machine.replication.is_current(action)
        if isinstance(action, effects.DecommissionShard):
            return machine.members.find_server(action.shard, action.incarnation) is None
        if not machine.recovery.unavailable:  # the failure has not been detected yet
            return False
        for action in actions:
            machine.postpone(action)
        return True

    def _do(self, actions: list[effects.Action]) -> None:
        """Run actions of one kind and report their outcomes to the machine."""
        if (together := self._together.get(type(actions[0]))) is not None:
            together(actions)
            return
        (action,) = actions
        self._handlers[type(action)](action)

    def _assign(self, action: effects.AssignShards) -> None:
        self._shards.assign(action.placement)
        with self._step() as (machine, now_s):
            machine.assigned(now_s)

    def _make_ready(self, _: effects.MakeReady) -> None:
        self._shards.make_ready()
        with self._step() as (machine, now_s):
            machine.ready(now_s)

    def _recover(self, action: effects.RecoverShard) -> None:
        with self._step() as (machine, _):
            action = machine.recovery.with_newest_set(action)
        set_id, lowest = self._shards.recover(action)
        with self._step() as (machine, now_s):
            machine.shard_recovered(action, set_id, lowest, now_s)

    def _attach_follower(self, action: effects.AttachFollower) -> None:
        if self._replicates(action) and not self._shards.attach_follower(action):
            with self._step() as (machine, _):
                machine.follower_reported(action.shard, action.epoch, False, "the coordinator cannot reach it")

    def _detach_follower(self, action: effects.DetachFollower) -> None:
        if self._replicates(action):
            self._shards.detach_follower(action)

    def _replicates(self, action: _FOLLOWER) -> bool:
        """Whether an action is current, and its shard in service with segments: others have no follower."""
        with self._step() as (machine, _):
            placed = {place.shard for place in machine.placement.places} if machine.placement is not None else set()
            return machine.replication.is_current(action) and action.shard in placed - machine.recovery.unavailable

    def _run_program(self, action: effects.RunProgram) -> None:
        with self._step() as (machine, _):
            if not machine.program_due(action.ticket):
                return
        scalars = self._shards.run(action.program)
        with self._step() as (machine, now_s):
            machine.program_ran(action.ticket, scalars, now_s)

    def _migrate(self, move: effects.MigrateSegments) -> None:
        """Run a migration if it is still due; then send both shards their ownership after its outcome."""
        with self._step() as (machine, began_s):
            due = machine.resharding.due(move)
        if due:
            try:
                sent = self._shards.migrate(move)
            except (Unavailable, Rejected) as error:
                log.warning(f"shard {move.sender} keeps {plural(len(move.segments), 'segment')}: {error}")
                with self._step() as (machine, now_s):
                    machine.migration_failed(move, str(error), now_s)
            else:
                with self._step() as (machine, now_s):
                    machine.segments_migrated(move, now_s - began_s, sent)
        with self._step() as (machine, _):
            self._shards.placement = machine.placement
        self._shards.set_ownership((move.sender, move.receiver))
        with self._step() as (machine, now_s):
            machine.ownership_confirmed(move, now_s)

    def _fence(self, actions: list[effects.Fence]) -> None:
        ledgers = self._shards.fence([action.incarnation for action in actions])
        with self._step() as (machine, now_s):
            for action in actions:
                applied = ledgers.get(action.incarnation, Applied())
                machine.fenced(action.number, action.incarnation, applied, now_s)

    def _drop_ledgers(self, actions: list[effects.DropLedger]) -> None:
        self._shards.drop_ledgers([action.incarnation for action in actions])
        with self._step() as (machine, _):
            for action in actions:
                machine.ledger_dropped(action.incarnation)
        collect()  # their connections are closed

    def _set_membership(self, action: effects.SetMembership) -> None:
        clock = self._shards.set_membership(action)
        with self._step() as (machine, _):
            machine.training.policy.shards_acknowledged(action.member_epoch, clock)

    # -- files -------------------------------------------------------------------------------------------

    def _restore(self, action: effects.Restore) -> None:
        self._shards.restore(action.set_id)
        ledgers = self._shards.ledgers()
        with self._step() as (machine, now_s):
            machine.restored(ledgers, now_s)

    def _roll_back(self, action: effects.RollBack) -> None:
        self._shards.restore(action.set_id, again=True)
        state = self._sets.read(action.set_id)
        with self._step() as (machine, now_s):
            machine.rolled_back(action.set_id, state, now_s)

    def _snapshot(self, action: effects.TakeSnapshot) -> None:
        set_id = action.set_id
        with self._step() as (machine, _):
            if machine.abort_obsolete_set():
                return
            if machine.resharding.running and machine.recovery.unavailable:
                # A shard that was declared failed may still run and reply. It is not sent its ownership after a failed
                # migration, so its file would lack the segments that it had sent.
                machine.postpone(action)
                return
        try:
            while not self._stored(
                partial(self._sets.claim, set_id)
            ):  # used by an earlier attempt: a shard may still write there
                with self._step() as (machine, _):
                    set_id = machine.retake_set()
            written = self._shards.snapshot(set_id)
            with self._step() as (machine, _):
                job, state = machine.job, machine.set_state()
            # After a suspension, its state lacks the leases that the next coordinator has granted; the files have them.
            self._confirm_leads()
            content = {**state, **written, "wall_s": self._wall_s()}
            self._stored(partial(self._sets.commit, set_id, job.name, content))
        except (Rejected, WriteFailed) as error:
            with self._step() as (machine, now_s):
                if isinstance(error, Moved) or not machine.set_failed(now_s):
                    raise
            self._stored(partial(self._sets.abort, set_id))
            log.warning(f"snapshot set {set_id} could not be written; the set before it stays valid: {error}")
            return
        with self._step() as (machine, now_s):
            machine.snapshot_taken(set_id, now_s)
        # After the step: the registry must never name a set that is removed.
        self._stored(partial(self._sets.prune, job.snapshots.keep))

    def _stored(self, call: Callable[[], T]) -> T:
        """The result of a call to the sets' storage; a store that is away answers with an error after its deadline.

        Urgent actions, and those of workers that are next in the queue, run meanwhile: what they change is not part of
        the set, whose state is read before.
        """
        if self._sets.disk is not None:
            return call()
        outcome: list[T] = []
        failure: list[Exception] = []
        ended = runtime.event()

        def run() -> None:
            try:
                outcome.append(call())
            except Exception as error:
                failure.append(error)
            finally:
                ended.set()

        thread = runtime.spawn(run, "sets")
        while not self._clock.wait(ended, LOOK_S):
            self._run_urgent()
            self._run_of_workers()
        thread.join()
        for error in failure:
            raise error
        return outcome[0]

    def _run_of_workers(self) -> None:
        """Run the actions of workers that are next in the queue."""
        with suppress(Empty):
            while self._next is None:
                following = self._queue.get(block=False)
                if isinstance(following, _OF_WORKERS):
                    self._carry_out([following])
                elif following is not _Signal.LOOK:
                    self._next = following

    def _export(self, action: effects.Export) -> None:
        with self._step() as (machine, _):
            if not machine.shutdown.exports(action.vector):
                return  # its vector was lost with a shard while it was retried
            job, layout, placement = machine.job, machine.layout, machine.placement
            about = model_metadata(job, machine.initialization.samples)
        assert layout is not None
        assert placement is not None
        reader = ShardedParameterClient(job.name, placement, deadline_s=job.deadlines.progress_s, direct=False)
        try:
            segments = reader.each_segment(action.vector)
            write_model(self._folder / "model.safetensors", layout, segments, about)
        finally:
            reader.close()
        with self._step() as (machine, _):
            reached = machine.training.reached()
        ledgers = self._shards.ledgers()
        with self._step() as (machine, now_s):
            machine.exported(reached, ledgers, now_s)
