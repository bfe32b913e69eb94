"""Records a simulated run: wraps the methods of the programs at which an action of the model takes place.

Every entry is made at the moment at which its action takes effect for others: with the lock held under which the state
changes, and without a task switch between the change and the entry. The recorder takes no lock and draws no number: a
recorded run is the run of its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dbelief.core.push import PARAMETERS, LedgerRow, Push
from dbelief.registry import MemoryRegistry
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.client.upload_call import ExchangeCall, PushCall
from ps_server.controller import ShardController
from ps_server.replication import migration as migrations
from ps_server.replication import sender
from ps_server.replication.link import LinkState, ReplicationLink
from ps_server.replication.migration import Migration
from ps_server.rpc.exchange import ExchangeHandler
from ps_server.rpc.push import PushHandler
from ps_server.store.journal import PushRecord
from ps_server.store.ledger import PushLedger
from ps_server.store.segment import Segment
from ps_server.store.shard import Shard
from tests.memory_network import MemoryNetwork
from tests.simulation.world.scheduler import Process, Scheduler

from .log import Entry, Lasts, Log

Real = Callable[..., Any]


def lasts(ledger: Mapping[tuple[str, Any], LedgerRow]) -> Lasts:
    """Rows of a ledger for "w"."""
    return {pusher: row.sequence for (vector, pusher), row in ledger.items() if vector == PARAMETERS}


class Recorder:
    """Records one run into `log`.

    Entries: of a client "learn", "begin", "received"; of a shard's process "apply" (with `follower`), "reply", "link",
    "copy", "command", "assign", "promote", "load", "fence", "read", "send", "receive", "serve", "forget"; of any
    process "end"; of a coordinator "registry".
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.log = Log()
        self._waited: dict[Any, Entry] = {}  # by task: the moment at which its wait for the follower ended
        self._request: dict[Any, Any] = {}  # by task: the command that it executes
        self._based: dict[Any, tuple[PushLedger, bool]] = {}  # by task: the push that it applies
        self._applied: dict[Any, Entry] = {}  # by task: that push, counted and not in the journal
        self._appended: dict[Any, Entry] = {}  # by task: that push, while the link's lock is held
        self._follows: dict[Any, int] = {}  # by task: the incarnation of the follower that it applies a record in
        self._known: dict[int, int] = {}  # by client: the epoch of its placement
        self._epochs: dict[Migration, int] = {}
        self._placement_epoch = 0  # of the client whose call begins

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record everything within the `with` block."""
        with ExitStack() as stack:
            for owner, name, wrapper in (
                (MemoryRegistry, "write", self._write),
                (MemoryNetwork, "start", self._listen),
                (Scheduler, "end", self._end),
                (ShardedParameterClient, "_run", self._run),
                (ShardedParameterClient, "_begin", self._begin),
                (PushCall, "begin", self._begin_call),
                (PushCall, "handle_reply", self._received),
                (ExchangeCall, "handle_reply", self._received),
                (PushLedger, "rebase", self._rebase),
                (PushLedger, "expect", self._expect),
                (PushLedger, "record", self._record),
                (PushLedger, "forget", self._forget),
                (PushLedger, "withdraw", self._withdraw),
                (PushHandler, "_replies", self._replies),
                (ExchangeHandler, "answers", self._replies),
                (ReplicationLink, "__init__", self._make_link),
                (ShardController, "_check_leader", self._command),
                (ShardController, "_configure", self._executes),
                (ShardController, "_give", self._executes),
                (ShardController, "_assign", self._assign),
                (ShardController, "_attach_follower", self._attach),
                (ShardController, "wait_replicated", self._wait_replicated),
                (Migration, "apply", self._apply_record),
                (Migration, "promote", self._promote),
                (Migration, "commit", self._commit),
                (Shard, "set_segments", self._set_segments),
                (Shard, "load", self._load),
                (Segment, "drop_staged", self._drop_staged),
                (Segment, "append_journal", self._append_journal),
                (ReplicationLink, "append", self._append),
                (ReplicationLink, "_wait_for", self._wait_for),
                (sender, "capture", self._copy),
                (migrations, "capture", self._send),
                (migrations, "install", self._receive),
            ):
                real = getattr(owner, name)
                stack.enter_context(mock.patch.object(owner, name, _method(wrapper, real)))
            yield

    @property
    def _task(self) -> Any:
        return self._scheduler.current

    @property
    def _process(self) -> int:
        current = self._scheduler.current
        return current.process.number if current is not None else -1

    def _add(self, kind: str, segment: int = -1, **about: Any) -> Entry:
        return self.log.add(kind, self._process, segment, **about)

    # -- processes and the registry ------------------------------------------------------------------------

    def _write(self, real: Real, registry: Any, job: str, epoch: int, values: Mapping[str, bytes | None]) -> None:
        real(registry, job, epoch, values)
        self._add("registry", epoch=epoch, values=dict(values), registry=id(registry))

    def _listen(self, real: Real, network: Any, address: str, server: Any) -> None:
        self.log.addresses[address] = server.process.number
        real(network, address, server)

    def _end(self, real: Real, scheduler: Any, process: Process) -> None:
        for task, entry in self._applied.items():
            if task.process is process and entry.about["new"]:
                entry.kind = "void"  # nobody has seen it, as its segment was locked
        self.log.add("end", process.number)
        real(scheduler, process)

    # -- clients -------------------------------------------------------------------------------------------

    def _run(self, real: Real, client: Any, calls: Any, *more: Any) -> None:
        for call in calls:
            call.began_in = client.placement.epoch
        real(client, calls, *more)

    def _begin(self, real: Real, client: Any, call: Any) -> None:
        if isinstance(call, PushCall) and call.push.vector == PARAMETERS and call.push.bundle is None:
            epoch = client.placement.epoch
            if self._known.get(id(client), epoch) != epoch:
                self._add("learn", pusher=call.push.pusher)
            self._known[id(client)] = epoch
            self._placement_epoch = epoch
        real(client, call)

    def _begin_call(self, real: Real, call: Any, base: int | None) -> None:
        real(call, base)
        push = call.push
        if push.vector == PARAMETERS and push.bundle is None:
            late = getattr(call, "began_in", self._placement_epoch) != self._placement_epoch
            for span in call.run[call.done :]:
                self._add(
                    "begin",
                    span.index,
                    pusher=push.pusher,
                    sequence=push.sequence,
                    base=push.base is not None,
                    address=call.place.address,
                    late=late,
                    exchange=isinstance(call, ExchangeCall),
                )

    def _received(self, real: Real, call: Any, answer: object) -> None:
        before = call.done
        real(call, answer)
        push = call.push
        if push.vector == PARAMETERS and push.bundle is None:
            for span in call.run[before : call.done]:
                self._add(
                    "received", span.index, pusher=push.pusher, sequence=push.sequence, address=call.place.address
                )

    # -- the ledgers of a leader and its follower ----------------------------------------------------------

    def _rebase(self, real: Real, ledger: PushLedger, push: Push) -> int:
        self._based[self._task] = ledger, push.base is not None
        lost: int = real(ledger, push)
        return lost

    def _expect(self, real: Real, ledger: PushLedger, push: Push) -> bool:
        new: bool = real(ledger, push)
        if not new:
            self._counted(ledger, push, new)
        return new

    def _record(self, real: Real, ledger: PushLedger, push: Push) -> None:
        real(ledger, push)
        self._counted(ledger, push, True)

    def _counted(self, ledger: PushLedger, push: Push, new: bool) -> None:
        counting, base = self._based.pop(self._task, (None, False))
        if push.vector == PARAMETERS and counting is ledger:
            about = {"pusher": push.pusher, "sequence": push.sequence, "base": base, "new": new, "assign": push.assign}
            entry = self._add("apply", ledger.segment, **about, follower=self._follows.get(self._task))
            if self._task not in self._follows:
                self._applied[self._task] = entry

    def _append_journal(self, real: Real, segment: Segment, make_record: Any) -> None:
        real(segment, make_record)
        if segment.journal is None:
            self._applied.pop(self._task, None)

    def _append(self, real: Real, link: ReplicationLink, record: Any) -> None:
        """A push takes place where the link has its record: what is in sync before lacks it, though it is counted."""
        entry = self._applied.pop(self._task, None)
        if entry is not None and _is_of(record, entry):
            self._appended[self._task] = entry
        real(link, record)

    def _forget(self, real: Real, ledger: PushLedger, incarnations: Any) -> None:
        if incarnations:
            self._add("forget", ledger.segment, incarnations=frozenset(incarnations))
        real(ledger, incarnations)

    def _withdraw(self, real: Real, ledger: PushLedger, pusher: Any, before: LedgerRow) -> None:
        self._add("forget", ledger.segment, incarnations=frozenset({pusher.incarnation}))
        real(ledger, pusher, before)

    def _apply_record(self, real: Real, migration: Migration, record: Any) -> None:
        self._follows[self._task] = self._epochs[migration]
        try:
            real(migration, record)
        finally:
            del self._follows[self._task]

    # -- acknowledgements ----------------------------------------------------------------------------------

    def _replies(self, real: Real, handler: Any, *words: Any) -> Iterator[Any]:
        push = handler._push
        counts = push.vector == PARAMETERS and push.bundle is None
        replies = real(handler, *words)
        while True:
            self._waited.pop(self._task, None)
            try:
                reply = next(replies)
            except StopIteration:
                return
            if counts:
                entry = self._waited.pop(self._task, None) or self._add("reply")
                entry.kind, entry.pusher, entry.sequence = "reply", push.pusher, push.sequence
            yield reply

    def _make_link(self, real: Real, link: ReplicationLink) -> None:
        real(link)
        link._lock = _Watched(link._lock, lambda: self._link_seen(link))
        self._link_seen(link)

    def _wait_for(self, real: Real, link: ReplicationLink, done: Callable[[], bool], *words: Any) -> bool:
        """A wait ends where its own task finds it done, with the link's lock held; others look too, to wake it."""
        task = self._task

        def observed() -> bool:
            holds = done()
            if holds and self._task is task:
                self._waited[task] = self._add("waited")
            return holds

        waited: bool = real(link, observed, *words)
        return waited

    def _link_seen(self, link: ReplicationLink) -> None:
        """At the end of each block that has a link's lock: an entry where the block has changed it."""
        appended = self._appended.pop(self._task, None)
        if appended is not None:
            self.log.move_to_end(appended)
        epoch, state = getattr(link, "seen", (0, LinkState.UNREPLICATED))
        if (link.epoch, link.state) != (epoch, state):
            command = self._request.get((self._task, "link"))
            self._add("link", epoch=link.epoch, before=epoch, state=link.state, command=command)
            link.seen = link.epoch, link.state  # type: ignore[attr-defined]

    # -- commands ------------------------------------------------------------------------------------------

    def _command(self, real: Real, controller: Any, command: Any) -> None:
        real(controller, command)
        self._add("command", epoch=command.leader_epoch)

    def _executes(self, real: Real, controller: Any, request: Any) -> Any:
        self._request[self._task] = request
        try:
            return real(controller, request)
        finally:
            del self._request[self._task]

    def _assign(self, real: Real, controller: Any, assignment: Any) -> None:
        real(controller, assignment)
        self._epochs[controller._migration] = controller.epoch
        self._add("assign", segments=tuple(controller.shard.segments), epoch=controller.epoch)

    def _attach(self, real: Real, controller: Any, command: Any) -> None:
        self._request[self._task, "link"] = command
        try:
            real(controller, command)
        finally:
            del self._request[self._task, "link"]

    def _wait_replicated(self, real: Real, controller: Any, *patience: float, **named: bool) -> None:
        self._waited.pop(self._task, None)
        real(controller, *patience, **named)
        request = self._request.get(self._task)
        fenced = {pusher.incarnation for pusher in getattr(request, "fenced", ())}
        if fenced and controller.shard is not None:
            entry = self._waited.pop(self._task, None) or self._add("read")
            entry.kind = "read"
            segments = controller.shard.segments
            entry.about = {"fenced": fenced, "lasts": {i: lasts(one.ledger.last) for i, one in segments.items()}}

    def _promote(self, real: Real, migration: Any, shard_epoch: int) -> None:
        real(migration, shard_epoch)
        received = {index: lasts(one.ledger.last) for index, one in migration._received.items()}
        fenced = {pusher.incarnation for pusher in self._request[self._task].fenced}
        self._add("promote", lasts=received, fenced=fenced)

    def _load(self, real: Real, shard: Any, stored: Any, *words: Any) -> None:
        real(shard, stored, *words)
        self._add("load", stored.span.index, lasts=lasts(stored.ledger))

    def _drop_staged(self, real: Real, segment: Segment, incarnations: Any) -> None:
        if self._task not in self._follows:
            self._add("fence", segment.span.index, incarnations=frozenset(incarnations))
        real(segment, incarnations)

    # -- segments ------------------------------------------------------------------------------------------

    def _commit(self, real: Real, migration: Any, indices: Any) -> None:
        request = self._request.get(self._task)
        self._request[self._task, "commit"] = not getattr(request, "promoted", False)
        try:
            real(migration, indices)
        finally:
            del self._request[self._task, "commit"]

    def _set_segments(self, real: Real, shard: Any, segments: Any, reported: Any) -> None:
        if self._request.get((self._task, "commit")):
            self._add("serve", segments=frozenset(segments))
        real(shard, segments, reported)

    def _copy(self, real: Real, segment: Segment, *words: Any, **named: Any) -> Any:
        self._add("copy", segment.span.index, lasts=lasts(segment.ledger.last))
        return real(segment, *words, **named)

    def _send(self, real: Real, segment: Segment, *words: Any, **named: Any) -> Any:
        address = self._request[self._task].address
        self._add("send", segment.span.index, lasts=lasts(segment.ledger.last), address=address)
        return real(segment, *words, **named)

    def _receive(self, real: Real, carried: Any, segment: Segment) -> None:
        real(carried, segment)
        self._add("receive", segment.span.index)


def _is_of(record: Any, entry: Entry) -> bool:
    """Whether a journal record is that of a push that was counted."""
    if not isinstance(record, PushRecord) or record.push.vector != PARAMETERS:
        return False
    return (record.index, record.push.pusher, record.push.sequence) == (entry.segment, entry.pusher, entry.sequence)


class _Watched:
    """A lock that calls `seen` at the end of each block that holds it."""

    def __init__(self, lock: Any, seen: Callable[[], None]) -> None:
        self._lock = lock
        self._seen = seen

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._seen()
        self._lock.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def _method(wrapper: Callable[..., Any], real: Real) -> Callable[..., Any]:
    def method(*words: Any, **named: Any) -> Any:
        return wrapper(real, *words, **named)

    return method
