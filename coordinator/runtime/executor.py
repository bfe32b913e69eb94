"""Executor thread for the machine's actions: one at a time, in order.

Attaching and detaching followers, and promotions, are urgent: they run out of order, between two attempts of another
action and while shards read or write files for one.

The outcome of an action is reported to the machine by another step. If a shard does not reply, the action is retried
until it does or is known to have failed. Then the machine postpones the action until all shards are available.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from enum import Enum
from pathlib import Path

from dbelief.checkpoint.export import write_model
from dbelief.checkpoint.snapshot_set import abort_set, claim_set, prune_sets, read_set, write_set
from dbelief.errors import Moved, Rejected, Unavailable, WriteFailed
from dbelief.process.clock import Clock
from dbelief.process.console import announce, format_error
from dbelief.process.gc_control import collect
from dbelief.rpc.client.shard_client import ShardedParameterClient

from ..core.effects import (
    Action,
    AssignShards,
    AttachFollower,
    ConfirmOwnership,
    DecommissionShard,
    DetachFollower,
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
from ..job.machine import JobMachine
from .shard_client import ShardClient

Step = Callable[[], AbstractContextManager[tuple[JobMachine, float]]]
AGAIN_S = 0.2


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
    note, finish
        Write an event; close the run folder.

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
        note: Callable[[LogEvent], None],
        finish: Callable[[], None],
        clock: Clock,
        wall_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._step = step
        self._shards = shards
        shards.on_idle = self._run_urgent
        self._folder = folder
        self._note = note
        self._finish = finish
        self._clock = clock
        self._wall_s = wall_s
        self.retries = 0
        self._first: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._queue: queue.SimpleQueue[Action | _Signal] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self.run, name="actor", daemon=True)

    def submit(self, action: Action) -> None:
        """Queue an action after all earlier ones; an action that others may be blocked on runs before them.

        A shard that has lost its follower acknowledges nothing until it is detached, and a fence or a program waits for
        that. A promoted follower is not in service until it receives its promotion.
        """
        if isinstance(action, AttachFollower | DetachFollower) or (
            isinstance(action, RecoverShard) and action.promoted
        ):
            self._first.put(action)
            self._queue.put(_Signal.LOOK)  # wakes the thread if it is idle
        else:
            self._queue.put(action)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread, once all queued actions are done."""
        self._ended.set()
        self._queue.put(_Signal.END)
        self._thread.join()

    def run(self) -> None:
        """Run queued actions until `end` is called."""
        while (action := self._queue.get()) is not _Signal.END:
            self._run_urgent()
            if not isinstance(action, _Signal):
                self._carry_out(action)

    def _run_urgent(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._carry_out(self._first.get_nowait())

    def _carry_out(self, action: Action) -> None:
        """Run an action and retry it until it is done or no longer needed."""
        try:
            while not self._done(action):
                self._clock.wait(self._ended, AGAIN_S)
                self.retries += 1
                self._run_urgent()
        except Exception as error:  # any error: a job must not wait for a thread that has ended
            reason = f"{type(action).__name__}: {format_error(error)}"
            with self._step() as (machine, _):
                if machine.over:  # for another reason, which stays: print this one here
                    announce(reason)
                machine.fail(reason)

    def _done(self, action: Action) -> bool:
        """Run an action once; False if it is to be retried."""
        try:
            with self._step() as (machine, _):
                self._shards.placement = machine.placement
                # An epoch or a settled ledger must be persisted before the shards receive it, for coordinator failover.
                machine.commit_due |= isinstance(
                    action, RecoverShard | SetMembership | DropLedger | AttachFollower | DetachFollower
                )
            self._do(action)
        except (Unavailable, Moved):
            if isinstance(action, LogEvent | FinishRun):
                raise
            with self._step() as (machine, _):
                if machine.over:
                    return True  # it is no longer needed
                if isinstance(action, RecoverShard):
                    return machine.members.find("shard", action.place.shard, action.incarnation) is None
                if isinstance(action, AttachFollower):  # a retry could restart a stream that has started
                    machine.chain_told(action.shard, action.epoch, False, "the coordinator could not tell both")
                    return True
                if isinstance(action, DetachFollower):
                    return not machine.chains.is_current(action)
                if isinstance(action, DecommissionShard):
                    return machine.members.find_server(action.shard, action.incarnation) is None
                if not machine.recovery.unavailable:  # the failure has not been detected yet
                    return False
                machine.postpone(action)
        return True

    def _do(self, action: Action) -> None:
        if isinstance(action, LogEvent):
            self._note(action)
        elif isinstance(action, FinishRun):
            self._finish()
        elif isinstance(action, AssignShards):
            self._shards.assign(action.placement)
            with self._step() as (machine, now_s):
                machine.assigned(now_s)
        elif isinstance(action, RecoverShard):
            set_id = self._shards.recover(action)
            with self._step() as (machine, now_s):
                machine.revived(action, set_id, now_s)
        elif isinstance(action, RunProgram):
            self._run(action)
        elif isinstance(action, AttachFollower | DetachFollower):
            self._follow(action)
        elif isinstance(action, MakeReady):
            self._shards.make_ready()
            with self._step() as (machine, now_s):
                machine.ready(now_s)
        elif isinstance(action, Restore | RollBack | TakeSnapshot | Export):
            self._do_with_files(action)
        elif isinstance(action, MigrateSegments):
            self._move(action)
        elif isinstance(action, ConfirmOwnership):
            self._shards.set_ownership(action.shards)
        elif isinstance(action, DecommissionShard):
            self._shards.decommission(action)
        else:
            self._do_for_members(action)

    def _follow(self, action: AttachFollower | DetachFollower) -> None:
        with self._step() as (machine, _):
            # A recovered shard starts without a follower; one without segments is not replicated.
            placed = {place.shard for place in machine.placement.places} if machine.placement is not None else set()
            if not machine.chains.is_current(action) or action.shard not in placed - machine.recovery.unavailable:
                return
        if isinstance(action, DetachFollower):
            self._shards.stand_alone(action)
        elif not self._shards.follow(action):
            with self._step() as (machine, _):
                machine.chain_told(action.shard, action.epoch, False, "the coordinator cannot reach it")

    def _run(self, action: RunProgram) -> None:
        with self._step() as (machine, _):
            if not machine.program_due(action.ticket):
                return
        scalars = self._shards.run(action.program)
        with self._step() as (machine, now_s):
            machine.program_ran(action.ticket, scalars, now_s)

    def _move(self, move: MigrateSegments) -> None:
        """Run a migration if it is still due; then send both shards their ownership after its outcome."""
        with self._step() as (machine, began_s):
            due = machine.resizing.due(move)
        if due:
            try:
                sent = self._shards.move(move)
            except (Unavailable, Rejected) as error:
                announce(f"{len(move.segments)} segments stay at shard {move.giver}: {error}")
                with self._step() as (machine, now_s):
                    machine.not_moved(move, str(error), now_s)
            else:
                with self._step() as (machine, now_s):
                    machine.moved(move, now_s - began_s, sent)
        with self._step() as (machine, _):
            self._shards.placement = machine.placement
        self._shards.set_ownership((move.giver, move.taker))
        with self._step() as (machine, now_s):
            machine.told_holdings(move, now_s)

    def _do_for_members(self, action: Fence | DropLedger | SetMembership) -> None:
        if isinstance(action, Fence):
            lowest, highest = self._shards.fence(action.incarnation)
            with self._step() as (machine, now_s):
                machine.fenced(action.number, action.incarnation, lowest, highest, now_s)
        elif isinstance(action, DropLedger):
            self._shards.forget(action.incarnation)
            with self._step() as (machine, _):
                machine.members.unforgotten.discard(action.incarnation)
            collect()  # its connection is closed
        else:
            clock = self._shards.set_membership(action)
            with self._step() as (machine, _):
                machine.membership_set(action.member_epoch, clock)

    def _do_with_files(self, action: Restore | RollBack | TakeSnapshot | Export) -> None:
        if isinstance(action, Restore):
            self._shards.restore(action.set_id)
            ledgers = self._shards.ledgers()
            with self._step() as (machine, now_s):
                machine.restored(ledgers, now_s)
        elif isinstance(action, RollBack):
            folder = self._folder / "snapshots" / action.set_id
            self._shards.restore(action.set_id, again=True)
            with self._step() as (machine, now_s):
                machine.rolled_back(action.set_id, read_set(folder), now_s)
        elif isinstance(action, TakeSnapshot):
            self._snapshot(action.set_id)
        else:
            self._export(action.vector)

    def _snapshot(self, set_id: str) -> None:
        snapshots = self._folder / "snapshots"
        try:
            while not claim_set(snapshots, set_id):  # used by an earlier attempt: a shard may still write there
                with self._step() as (machine, _):
                    set_id = machine.retake_set()
            parts = self._shards.snapshot(set_id)
            with self._step() as (machine, _):
                job, state = machine.job, machine.set_state()
            write_set(snapshots / set_id, set_id, job.name, {**state, "parts": parts, "wall_s": self._wall_s()})
        except (Rejected, WriteFailed) as error:
            with self._step() as (machine, now_s):
                if isinstance(error, Moved) or not machine.set_failed(now_s):
                    raise
            abort_set(snapshots, set_id)
            announce(f"snapshot set {set_id} was not written, the one before stands: {error}")
            return
        prune_sets(snapshots, job.snapshots.keep)
        with self._step() as (machine, now_s):
            machine.snapshot_taken(set_id, now_s)

    def _export(self, vector: str) -> None:
        with self._step() as (machine, _):
            job, layout, placement = machine.job, machine.layout, machine.placement
        assert layout is not None
        assert placement is not None
        reader = ShardedParameterClient(job.name, placement, deadline_s=job.deadlines.progress_s)
        try:
            write_model(self._folder / "model.safetensors", layout, reader.each_segment(vector), {"job": job.name})
        finally:
            reader.close()
        with self._step() as (machine, now_s):
            machine.exported(now_s)
