"""What the simulation sees of a run, and the invariants that hold after every step.

The observer stands at the calls of clients (pull, push, exchange), where a user stands, and at the shards' pushes. It
knows no rule of the protocol but these:

* the parameters of a segment are what its ledger counts, after every push; all copies of a version are the same bits
* a ledger names the lease and the position of its pushers' last pushes
* no sample is leased twice at once
* a pull sees every push that was acknowledged before it began, and none that was not sent (linearizable counts)
* the version of a segment never falls
* of a segment and an incarnation of its shard, one process applies pushes
* a follower receives every record of its leader
* each copy that may lead has every push that was acknowledged (`copies`)
* where both copies of a segment were lost, what is missing is counted
* no program ends because the coordinator did not answer for less than its patience
* a replica's first push after a restore reports all of its pushes that were lost
* a sample is computed in every epoch, and trained once, unless it is counted as trained twice or lost
* the result has the loss that its test reports

Beside it, `rows` checks tables, `lead` the staleness bound, `rounds` and `local_steps` DiLoCo, and `stored_sets` each
snapshot set; `trajectory` compares L-BFGS with a run without failures.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from coordinator.scheduling.leases import Outstanding
from dbelief.core.layout import Kind
from dbelief.core.lease import DataLease
from dbelief.core.placement import Fetch
from dbelief.core.push import PARAMETERS, LedgerRow, Push, Pusher
from dbelief.errors import Unavailable
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.client.shard_client import ShardedParameterClient
from ps_server.controller import ShardController
from ps_server.replication.migration import Migration
from ps_server.store.ledger import PushLedger
from ps_server.store.segment import Segment
from ps_server.store.shard import Shard
from tests.simulation.models.jobs import WORKERS, SimulatedJob
from tests.simulation.models.marks import LENGTH, PROCESSES, ROWS, SAMPLES, TEST_SAMPLES, bowl_loss, inputs
from tests.simulation.world.programs import PATIENCE_S
from tests.simulation.world.scheduler import Process, Scheduler, Task

from .copies import Copies
from .lead import LeadWatch
from .local_steps import LocalStepWatch
from .rounds import RoundWatch
from .rows import RowWatch

TOLERANCE = 1e-3


class Observer:
    """Counts what clients sent and what was acknowledged, and compares it with what they see.

    Attributes
    ----------
    violations
        Texts; a run ends at the first.
    pushes
        Pushes and exchanges that were acknowledged.
    begun
        Pushes of gradients that were begun.
    leaders, followers
        By shard, the process that served it last, and the one that received records of it last.
    copies
        Of the segments.
    lead
        Of replicas, at a staleness bound.
    rounds
        Of DiLoCo.
    rows
        Of tables.
    computed
        How often each sample was computed.
    failed, left
        Names of processes that have failed, and that have left on a signal.
    restored
        Restores of a shard from a snapshot set: both copies were lost, and acknowledged pushes with them.
    """

    def __init__(self, scheduler: Scheduler, job: SimulatedJob, process_at: Callable[[str], Process | None]) -> None:
        self._scheduler = scheduler
        self._job = job
        self.copies = Copies(process_at)
        self.lead = LeadWatch(self.violation, lambda: not self.restored)
        self.rounds = RoundWatch(self.violation, lambda: not self.restored, self._is_detached, "quorum" in job.strategy)
        self.rows = RowWatch(job, self.violation, lambda: not self.restored, self._is_detached)
        self.violations: list[str] = []
        self.pushes = self.begun = 0
        self.restored = 0
        self._initialised = self._withdrawn = 0  # pushes of initial values, and gradients dropped with their pusher
        self.sent = np.zeros(LENGTH - PROCESSES)
        self.acknowledged = np.zeros(LENGTH - PROCESSES)
        self._versions = np.full(ROWS, -1, np.int64)  # the highest that were read
        self._versions_of: defaultdict[int, np.ndarray] = defaultdict(lambda: np.full(ROWS, -1, np.int64))  # by reader
        self._pushers: dict[Pusher, int] = {}  # the process of each
        self._sums: dict[tuple[Pusher, int], float] = {}  # samples up to a push
        self._rows: dict[tuple[Pusher, int], list[LedgerRow]] = {}  # of each push; one of each fragment
        self._contents: dict[tuple[int, int], int] = {}  # by segment and version
        self._appliers: dict[tuple[int, int], int] = {}
        self._answered_s: dict[Task, float] = {}  # when the coordinator answered last, or was called first
        self._heard_s: dict[Process, float] = {}  # when it answered any task of a process
        self._silent_s: defaultdict[Process, float] = defaultdict(float)  # longest time of a task without an answer
        self.failed: set[str] = set()
        self.left: set[str] = set()
        self.computed = np.zeros(SAMPLES, np.int64)
        self._lost: defaultdict[int, int] = defaultdict(int)  # pushes that were reported as lost, by process
        self._restoring = 0
        self._had_losses: set[int] = set()  # segments that were loaded from a set
        self.leaders: dict[int, Process] = {}
        self.followers: dict[int, Process] = {}
        self._incarnations: dict[Any, tuple[int, int]] = {}  # shard and its epoch, by what receives its segments
        self._attached: dict[tuple[int, int] | None, tuple[Any, int]] = {}  # the leader's link to it, and its epoch
        self._links: dict[Task | None, tuple[Any, int] | None] = {}  # of the record that a task applies

    def violation(self, text: str) -> None:
        """Record a violation: the run ends."""
        self._scheduler.stop()
        self.violations.append(f"{self._scheduler.now_s:.4f} s: {text}")

    @property
    def _process(self) -> int:
        assert self._scheduler.current is not None
        return self._scheduler.current.process.number

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe all processes of the simulation within the `with` block."""
        with ExitStack() as stack:
            if "staleness: 2" in self._job.strategy:
                stack.enter_context(self.lead.watching())
            if self._job.local_steps:
                stack.enter_context(self.rounds.watching())
                stack.enter_context(LocalStepWatch(self.rounds, self.violation).watching())
            if self._job.tables:
                stack.enter_context(self.rows.watching())
            for owner, name, wrapper in (
                (CoordinatorClient, "call", self._call),
                (ShardedParameterClient, "pull", self._pull),
                (ShardedParameterClient, "push", self._push),
                (ShardedParameterClient, "exchange", self._exchange),
                (Segment, "apply", self._apply),
                (Segment, "_count", self._count),
                (PushLedger, "withdraw", self._withdraw),
                (ShardController, "__init__", self._controller),
                (ShardController, "shard_for", self._shard_for),
                (Migration, "apply", self._follow),
                (ShardController, "_attach_follower", self._attach_follower),
                (ShardController, "restore", self._restore),
                (ShardController, "migration_for", self._migration_for),
            ):
                real = getattr(owner, name)
                stack.enter_context(mock.patch.object(owner, name, _method(wrapper, real)))
            yield

    # -- clients -------------------------------------------------------------------------------------------

    def _call(self, real: Callable[..., Any], client: CoordinatorClient, *words: Any, **named: Any) -> Any:
        task = self._scheduler.current
        assert task is not None
        # A thread that calls for the first time counts from the last answer to another thread of its process.
        self._answered_s.setdefault(task, self._heard_s.get(task.process, self._scheduler.now_s))
        try:
            reply = real(client, *words, **named)
        except Unavailable:
            silent_s = (self._scheduler.now_s - self._answered_s[task]) * task.process.rate
            self._silent_s[task.process] = max(silent_s, self._silent_s[task.process])
            raise
        self._answered_s[task] = self._heard_s[task.process] = self._scheduler.now_s
        return reply

    def check_patience(self, process: Process, error: str) -> None:
        """Check why a program ends: a coordinator that does not answer is tolerated for the program's patience."""
        silent_s = self._silent_s[process]
        away = any(reason in error for reason in ("no server at", "another coordinator may lead", "(no answer for"))
        if "coordinator at" in error and away and silent_s < 0.99 * PATIENCE_S:
            self.violation(f"{process.name} fails after {silent_s:.1f} s without an answer: {error}")

    def _pull(
        self, real: Callable[..., float], client: Any, out: np.ndarray, versions: np.ndarray, **named: Any
    ) -> float:
        with self._reading(out, versions) if named.get("vector", PARAMETERS) == PARAMETERS else nullcontext():
            return real(client, out, versions, **named)

    @contextmanager
    def _reading(
        self, out: np.ndarray, versions: np.ndarray, own: int = 0, within: frozenset[int] | None = None
    ) -> Iterator[None]:
        """Check what is read in the `with` block, of all segments or of some.

        `own`: samples of a push that the reader completes before.
        """
        floor, known, restored = self.acknowledged.copy(), self._versions.copy(), self.restored
        floor[self._process] += own
        mine = self._versions_of[self._process].copy()
        yield
        # Without the lock, a repeated push may be acknowledged while the first is still within its segment.
        complete = restored == self.restored == 0 and self._job.replication > 1
        self._saw(out, floor if complete else None)
        # A leader that has no follower, and was restored elsewhere while it was suspended, answers those who do not
        # know that yet: after a restore, versions rise for each reader, not across readers.
        read = sorted(within) if within is not None else list(range(ROWS))
        self._saw_versions(versions, known if restored == self.restored == 0 else mine, read)

    def _saw(self, out: np.ndarray, floor: np.ndarray | None) -> None:
        if not self._job.counts:
            return
        seen = -out.reshape(ROWS, LENGTH)[:, PROCESSES:]
        if (seen > self.sent).any():
            row, of = np.argwhere(seen > self.sent)[0]
            self.violation(
                f"segment {row} has {seen[row, of]:g} samples of process {of}, which has sent {self.sent[of]:g}"
            )
        if floor is not None and (seen < floor).any():
            row, of = np.argwhere(seen < floor)[0]
            self.violation(
                f"a pull of process {self._process} sees {seen[row, of]:g} samples of process {of} in segment {row}: "
                f"{floor[of]:g} were acknowledged before it began"
            )

    def _saw_versions(self, versions: np.ndarray, known: np.ndarray, read: list[int]) -> None:
        for row in read:
            if versions[row] < known[row]:
                self.violation(f"segment {row} has version {versions[row]}, and {known[row]} was read before")
            for highest in (self._versions, self._versions_of[self._process]):
                highest[row] = max(highest[row], versions[row])

    def _push(
        self,
        real: Callable[..., Any],
        client: Any,
        values: Any,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        *,
        within: frozenset[int] | None = None,
        **rows: Any,
    ) -> Any:
        if push.assign or push.vector != PARAMETERS or push.bundle is not None:
            result = real(client, values, versions, push, **rows)
            self.pushes += push.bundle is not None
            self._initialised += push.assign and push.vector == PARAMETERS
            return result
        number = self._process
        self.sent[number] += push.samples
        self.begun += 1
        self._pushers[push.pusher] = number
        self._sums[push.pusher, push.sequence] = self.sent[number]
        self._rows.setdefault((push.pusher, push.sequence), []).append(push.row)
        restored, placed = self.restored, client.placement.epoch
        reads = nullcontext() if fetch is None else self._reading(fetch.out, fetch.versions, push.samples, within)
        with reads:
            result = real(client, values, versions, push, fetch, within=within, **rows)
        self.acknowledged[number] += push.samples
        self.rows.acknowledged(push)
        self.pushes += 1
        self._lost[number] += result.lost
        self._check_copies()
        # A leader without a follower that was restored elsewhere acknowledges pushes of those who do not know that yet.
        knows = placed == client.placement.epoch == self.copies.placed_in
        if knows and restored and restored == self.restored and not self._restoring:
            self._check_losses(number)
        return result

    def _exchange(
        self, real: Callable[..., Any], client: Any, values: Any, out: np.ndarray, versions: np.ndarray, push: Push
    ) -> Any:
        result = real(client, values, out, versions, push)
        self.pushes += 1
        return result

    # -- shards --------------------------------------------------------------------------------------------

    def _apply(self, real: Callable[..., Any], segment: Segment, push: Push, *rest: Any) -> Any:
        """After a push, the ledger and the parameters of a segment agree, at its leader and at its follower."""
        outcome = real(segment, push, *rest)
        if self._job.counts and not (segment.lock_free or self._is_bucket(segment) or self._is_detached()):
            row = segment.ledger.last[PARAMETERS, push.pusher]
            counted = self._sums.get((push.pusher, row.sequence), 0.0)
            found = -float(segment.vectors[PARAMETERS][PROCESSES + self._pushers[push.pusher]])
            if found > counted or (found < counted and not self.restored):
                self.violation(
                    f"segment {segment.span.index} in process {self._process} has {found:g} samples of process "
                    f"{self._pushers[push.pusher]}, and its ledger counts {counted:g}"
                )
            if not self.restored:
                self._check_row(push.pusher, row, f"segment {segment.span.index} in process {self._process}")
        return outcome

    def _check_row(self, pusher: Pusher, row: LedgerRow, where: str) -> None:
        """A ledger's row names the lease and the position of its push; of lost pushes it has the number alone."""
        sent = self._rows.get((pusher, row.sequence), [row])
        if row not in sent:
            self.violation(
                f"{where} has lease {row.lease} and position {row.position} for push {row.sequence} of process "
                f"{self._pushers[pusher]}, which sent {sent}"
            )

    def _count(self, real: Callable[..., Any], segment: Segment) -> None:
        """All copies of a version of a segment are the same bits."""
        real(segment)
        if not (segment.lock_free or self._is_bucket(segment) or self._is_detached()):
            content = zlib.crc32(segment.vectors[PARAMETERS].data)
            if self._contents.setdefault((segment.span.index, segment.version), content) != content:
                self.violation(
                    f"segment {segment.span.index} at version {segment.version} differs between process "
                    f"{self._process} and another"
                )

    def _check_copies(self) -> None:
        """Each copy that may lead has every push that was acknowledged."""
        if not self.restored:
            lacking = self.copies.lacking(self.acknowledged) if self._job.counts else ()
            for text in (*lacking, *self.rows.lacking(self.copies)):
                self.violation(text)

    def _check_losses(self, number: int) -> None:
        """A process that has pushed since the last restore knows of its acknowledged pushes that are missing."""
        if not self._job.counts or self._job.replication == 1:
            return
        for whose, index, segment in self.copies.segments():
            if segment is not None and PARAMETERS in segment.vectors:
                missing = self.acknowledged[number] + segment.vectors[PARAMETERS][PROCESSES + number]
                if missing > self._lost[number] * self._job.push_samples:
                    self.violation(
                        f"{whose} lacks {missing:g} acknowledged samples of process {number} in segment {index}, which "
                        f"{self._lost[number]} pushes were reported to have lost"
                    )

    def _withdraw(self, real: Callable[..., None], ledger: PushLedger, pusher: Pusher, before: LedgerRow) -> None:
        """Gradients that wait for their rounds are dropped with their pusher: acknowledged, and not trained again."""
        self._withdrawn += ledger.row(pusher).sequence - before.sequence
        self.rows.withdrawn(pusher)
        real(ledger, pusher, before)

    def _controller(self, real: Callable[..., None], controller: Any, *rest: Any) -> None:
        real(controller, *rest)
        assert self._scheduler.current is not None
        self.copies.started(self._scheduler.current.process, controller)

    def _follow(self, real: Callable[..., None], migration: Any, record: Any) -> None:
        """No record is missing between two that a follower receives; a promoted one has a higher version than any."""
        segment = migration._received.get(record.index)
        if segment is not None and record.version > segment.version:
            self.violation(
                f"the follower in process {self._process} has version {segment.version} of segment {record.index}, and "
                f"the next record of its leader changes version {record.version}"
            )
        task = self._scheduler.current
        self._links[task] = self._attached.get(self._incarnations.get(migration))
        try:
            real(migration, record)
        finally:
            del self._links[task]

    def _attach_follower(self, real: Callable[..., None], controller: Any, command: Any) -> None:
        if command.address:
            self._attached[controller.index, command.shard_epoch] = controller.link, command.epoch
        real(controller, command)

    @staticmethod
    def _is_bucket(segment: Segment) -> bool:
        return segment.span.kind is Kind.TABLE

    def _is_detached(self) -> bool:
        """Whether this is a follower's task and its leader has another one, or none, since.

        Records that were under way to it may name numbers in shared memory that their worker has changed: its push was
        acknowledged without it. The coordinator had stored before that the copy is not in sync.
        """
        link = self._links.get(self._scheduler.current)
        return link is not None and link[0].epoch > link[1]

    def stored(self, written: Mapping[str, bytes | None], values: Mapping[str, bytes]) -> None:
        """Check what a coordinator stores: the copies, and that no sample is leased twice, or leased and free.

        Parameters
        ----------
        written
            Fields that it has just written.
        values
            All fields that are stored.
        """
        self.copies.stored(written)
        self._check_copies()
        if "training" not in values:
            return
        rows = [json.loads(text) for name, text in values.items() if name.startswith("lease:")]
        held = [
            Outstanding(DataLease(*fields), replica, incarnation, skipped=skipped)
            for fields, replica, incarnation, _, _, skipped in rows
        ]
        self.lead.stored((one.lease, one.incarnation) for one in held)
        ranges = [
            (one.lease.epoch, one.lease.start + start, one.lease.start + stop)
            for one in held
            for start, stop in one.left()  # what is skipped is free
        ]
        ranges = sorted([*ranges, *map(tuple, json.loads(values["training"])["leases"]["returned"])])
        for (epoch, _, stop), (other, start, _) in pairwise(ranges):
            if epoch == other and start < stop:
                self.violation(f"samples {start} to {stop} of epoch {epoch} are leased twice")

    def _shard_for(self, real: Callable[..., Shard], controller: Any, target: Any) -> Shard:
        shard = real(controller, target)
        key = controller.index, controller.epoch
        if controller.has_segments and self._scheduler.current is not None and target.shard_epoch:
            self.leaders[controller.index] = self._scheduler.current.process
        process = self._appliers.setdefault(key, self._process)
        if process != self._process and controller.has_segments:
            self.violation(
                f"processes {process} and {self._process} both serve shard {key[0]} in its incarnation {key[1]}"
            )
        return shard

    def _migration_for(self, real: Callable[..., Any], controller: Any, opening: Any) -> Any:
        assert self._scheduler.current is not None
        if not opening.HasField("command"):  # from its leader, not from a shard whose segments move
            self.followers[controller.index] = self._scheduler.current.process
        arrival = real(controller, opening)
        self._incarnations[controller._migration] = controller.index, controller.epoch
        return arrival

    def _restore(self, real: Callable[..., Any], controller: Any, request: Any) -> Any:
        self.restored += 1
        self._restoring += 1
        reply = real(controller, request)
        self._restoring -= 1
        self._check_set(controller.shard)
        self.rows.restored(controller.shard, request.set)
        return reply

    def outage(self, new_run: bool) -> None:
        """All processes have ended at once; `new_run`: their registry is lost too, and versions begin at the set's."""
        self.restored += 1
        self.leaders.clear()
        self.followers.clear()
        self.rounds.outage()
        self.rows.outage(new_run)
        if new_run:
            self._versions[:] = -1
            self._versions_of.clear()
            self._contents.clear()
            self._appliers.clear()

    def _check_set(self, shard: Shard) -> None:
        """In a snapshot set, too, the ledger and the parameters of a segment agree; before the segment's first loss."""
        for segment in shard.segments.values():
            first = segment.span.index not in self._had_losses
            self._had_losses.add(segment.span.index)
            if not first or not self._job.counts or segment.lock_free or self._is_bucket(segment):
                continue
            for (vector, pusher), row in segment.ledger.last.items():
                if vector == PARAMETERS and pusher in self._pushers:
                    self._check_row(pusher, row, f"a set's segment {segment.span.index}")
                    counted = self._sums.get((pusher, row.sequence), 0.0)
                    found = -float(segment.vectors[PARAMETERS][PROCESSES + self._pushers[pusher]])
                    if found != counted:
                        self.violation(
                            f"a set has {found:g} samples of process {self._pushers[pusher]} in segment "
                            f"{segment.span.index}, and its ledger counts {counted:g}"
                        )

    # -- the end -------------------------------------------------------------------------------------------

    def check_end(self, folder: Path) -> None:
        """Compare the result with what was trained, and with what the summary counts."""
        summary = json.loads((folder / "summary.json").read_text())
        if summary["state"] != "done" and "No space left" not in summary["reason"]:
            self.violation(f"the job is {summary['state']}: {summary['reason']}")
        # Initial values that a shard lost, and that are pushed again, have a number of their pusher's too.
        may_lose = max(0, self._initialised - 1) + self._withdrawn
        # Where all workers of a group fail, or leave on a signal, the steps since its last write are lost.
        ended = self.failed | self.left
        group_failed = self._job.groups and len([name for name in ended if name.startswith("worker")]) == WORKERS
        if summary["pushes_lost"] > may_lose and not (self.restored or group_failed):
            self.violation(f"{summary['pushes_lost']} pushes are counted as lost, and no shard was restored")
        if self.violations or summary["state"] != "done":
            return
        self.rows.check_end(self._job, summary["pushes_lost"], summary["pushes_trained_twice"])
        marks = load_file(folder / "model.safetensors")["marks"]
        if not self._job.clients and (self.computed < self._job.epochs).any() and not self._job.exact:
            sample = int(self.computed.argmin())
            self.violation(f"sample {sample} was computed {self.computed[sample]} times in {self._job.epochs} epochs")
        if (
            self._job.averages
            and not (self.restored or group_failed)
            and (-marks[:, :SAMPLES] < self._job.epochs - TOLERANCE).any()
        ):
            self.violation(f"the result has {(-marks[:, :SAMPLES]).min():g} of {self._job.epochs} epochs of a sample")
        if not (self._job.counts or self._job.averages or self._job.exact or self._job.tables):
            loss, tested = bowl_loss(marks, inputs(TEST_SAMPLES)), summary["test_loss"]
            if tested is not None and abs(loss - tested) > TOLERANCE * loss:
                self.violation(f"the result has loss {loss:g}, and its test reports {tested:g}")
        if self._job.counts:
            self._check_counts(marks, summary)
        if self._job.local_steps:
            self.rounds.check_end(self._job.epochs)

    def _check_counts(self, marks: np.ndarray, summary: Mapping[str, Any]) -> None:
        if summary["pushes"] > self.begun:
            self.violation(f"the summary counts {summary['pushes']} pushes, and {self.begun} were begun")
        counts = -marks
        seen, lost = counts[:, PROCESSES:], summary["pushes_lost"] * self._job.push_samples
        if self._job.replication == 1:
            # Without locks, a set counts the pushes in progress, one of each worker, and holds some of their numbers.
            lost += self.restored * WORKERS * self._job.push_samples
        if (seen > self.sent).any():
            self.violation("the result has pushes that were not sent")
        if self._job.clients:  # their last pushes may be acknowledged after the result was written
            return
        twice = summary["pushes_trained_twice"] * self._job.push_samples
        missing = np.maximum(self.acknowledged - seen, 0).sum(axis=1).max()
        # After a restore, what a failed worker had not reported is trained again, and counted nowhere.
        if missing > lost + twice and not self.restored:
            self.violation(f"{missing:g} acknowledged samples are missing, {lost + twice} are counted")
        trained = counts[:, :SAMPLES] - self._job.epochs
        skipped, doubled = np.maximum(-trained, 0).sum(axis=1).max(), np.maximum(trained, 0).sum(axis=1).max()
        if skipped > lost:
            self.violation(f"{skipped:g} samples were skipped, {lost} of pushes lost are counted")
        if doubled > twice:
            self.violation(f"{doubled:g} samples were trained twice, {twice} are counted")


def _method(wrapper: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    def method(own: Any, *words: Any, **named: Any) -> Any:
        return wrapper(real, own, *words, **named)

    return method
