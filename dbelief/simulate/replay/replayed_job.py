"""Training with the delays of many asynchronous replicas, on one thread: the events of a delays file decide the order.

Each replica has its own parameters, its own leases of data and its own local state; it trains by the worker's code, on
the shards' own store. What it computes between a FETCH and its PUSH depends on nothing that happens meanwhile, so that
all of it is computed at the PUSH: replicas that have fetched and not pushed cost a copy of the parameters, and those
that have fetched the same version share it.

A lease is what lies between two events of a replica at which others may see it: the mini-batches of a push, or of a
fetch where several pushes follow one. The pool of leases is the coordinator's: each sample of an epoch is trained once,
by whichever replica comes next, and what a lost replica has not pushed is leased again.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.core.layout import Layout, RankPart
from dbelief.core.lease import DataLease
from dbelief.core.push import Pusher, PushResult, PushStats, StalenessHistogram
from dbelief.core.ranks import RankGroup, SingleRank
from dbelief.data import Dataset
from dbelief.errors import DataError
from dbelief.job import Asynchronous, Diloco, Downpour, Elastic, Job
from dbelief.nn import Model
from dbelief.process.runtime import use_runtime
from dbelief.training.phases import PhaseTimer

from .delays import DOWNPOUR, ELASTIC, FETCH, LOST, PUSH, ROUNDS, DelayTrace
from .programs import OneThread, part_of
from .traced_shards import FetchedCopy, KeptPush, ScratchMemory, TracedFetcher, TracedShards, Turn

_TOGETHER = Pusher(0, 1)
_NO_TIME_S = 0.0
"""Time of all reports: how long a loss stays high is a matter of machines, and a replay has the same result on all."""


def kind_of(job: Job) -> str | None:
    """The kind of strategy that a delays file for this job has; None: there are no delays for it."""
    strategy = job.strategy
    if isinstance(strategy, Downpour | Asynchronous):
        return DOWNPOUR if strategy.staleness != 0 and strategy.locked else None
    if isinstance(strategy, Elastic):
        return ELASTIC if strategy.staleness is None and strategy.locked and not strategy.grouped else None
    return ROUNDS if isinstance(strategy, Diloco) else None


@dataclass
class TracedReplica:
    """One incarnation of a replica.

    Attributes
    ----------
    copies
        What it has fetched and not used, the oldest first.
    kept
        Pushes that are computed, for its next PUSH events.
    outside
        Whether it waits for the first FETCH after a PUSH: it takes no part before.
    amid
        Whether a FETCH has passed it since its last PUSH, so that it has not fetched all for the next one.
    passed
        Whether a PUSH has passed it while it was outside.
    left
        PUSH events to come of those that belong to its last lease; one that ended with its epoch has no push for some.
    open_round, round
        Round that was open at its last fetch, and the one that its last push was of.
    """

    pusher: Pusher
    copies: deque[FetchedCopy] = field(default_factory=deque)
    kept: deque[KeptPush] = field(default_factory=deque)
    outside: bool = True
    amid: bool = False
    passed: bool = False
    left: int = 0
    open_round: int = 0
    round: int = -1
    trainer: Any = None


@dataclass(frozen=True)
class _AsSession:
    """What the worker's factory of trainers reads of a session."""

    job: Job
    part: RankPart
    backend: Backend
    parameters: TracedShards
    pusher: Pusher
    ranks: RankGroup = field(default_factory=SingleRank)


class DelayReplay:
    """A job's training in the order of a delays file.

    Parameters
    ----------
    job
        With as many replicas as the file has; `check_delays` has passed.
    file
        Name of the delays file, for errors.
    initial
        (N,) float32.

    Attributes
    ----------
    training
        The coordinator's: leases, progress and limits.
    shards
        Hold the parameters.
    passes
        How often the events have begun anew.
    replicas_lost
        Number of LOST events.
    trouble
        Why the job is to fail, "" while it trains well.
    staleness
        Of all pushes, in versions; in rounds, in rounds.
    late_pushes
        Pushes that came after the end of their round.
    """

    def __init__(
        self,
        job: Job,
        trace: DelayTrace,
        file: str,
        data: Dataset,
        model: Model,
        layout: Layout,
        initial: np.ndarray,
        backend: Backend,
    ) -> None:
        assert data.train is not None, "checked"
        strategy: Any = job.strategy
        self._trace, self._file, self._backend, self._model = trace, file, backend, model
        self._part = layout.part(0)
        self.shards = TracedShards(job, layout, initial)
        self._fetches, self._pushes = _cadence(strategy)
        lease = strategy.batch * max(strategy.n_fetch, strategy.n_push)
        alone = {"overlap": False} if isinstance(strategy, Downpour) else {}  # the file says what overlaps
        self._job = job.model_copy(update={"strategy": strategy.model_copy(update={"lease": lease, **alone})})
        self._overlaps = bool(getattr(strategy, "overlap", False))
        schedule: Any = part_of("coordinator", "scheduling.training")
        sizes = [len(split) if split is not None else 0 for split in (data.train, data.validation, data.test)]
        self.training = schedule.Training(self._job, schedule.DatasetSizes(*sizes))
        self._report, self._nothing = schedule.ProgressReport, schedule.Applied()
        self._train = data.train.read_by(model, backend)
        self._factory: Any = part_of("worker", "strategies.factory")
        self._batches = self._factory.BatchLoader(self._train, strategy.batch, job.seed, backend)
        self._scratch, self._phases = ScratchMemory(), PhaseTimer()
        self._shared: Any = self._new_trainer(_TOGETHER) if trace.strategy == DOWNPOUR else None
        self._sequences: Counter[Pusher] = Counter()
        self._incarnations = _TOGETHER.incarnation
        self._replicas = [self._join(number) for number in range(trace.replicas)]
        self.staleness = StalenessHistogram()
        self._turn = self._replicas[0]
        self._event = self.passes = self.replicas_lost = self.late_pushes = 0
        self.trouble = ""

    # -- events ------------------------------------------------------------------------------------------

    def run(self) -> Iterator[None]:
        """Train until all samples are trained; yields after each push, which may have given `trouble`.

        Raises
        ------
        DataError
            The file does not fit the job; names the event.
        NonFinite
            A gradient is not finite; names the tensor.
        """
        while True:
            for event, (kind, number) in enumerate(self._trace.events()):
                self._event = event
                if kind == PUSH:
                    if self._push(self._replicas[number]):
                        yield
                        if self.training.leases.finished:
                            return
                elif kind == FETCH:
                    self._fetch(self._replicas[number])
                elif kind == LOST:
                    self._lose(number)
                else:
                    self.shards.end_round()
                    self.training.progress.rounds = self.shards.rounds
            self._begin_anew()

    def close(self) -> None:
        """End the training: a round that has pushes ends, and so do the trainers' threads."""
        if self.shards.held:
            self.shards.end_round()
            self.training.progress.rounds = self.shards.rounds
        trainers = [self._shared, *(replica.trainer for replica in self._replicas)]
        for trainer in filter(None, trainers):
            trainer.close()

    def _fetch(self, replica: TracedReplica) -> None:
        warm = self.training.progress.warm_start
        if warm.active and warm.replica not in (None, replica.pusher.incarnation):
            replica.amid = True
            return  # another replica trains alone
        if replica.outside and replica.amid:
            return
        replica.outside = False
        if self._trace.strategy != DOWNPOUR:
            self._drop(replica)  # elastic: an exchange fetches; rounds: the newest parameters are those of the round
            replica.open_round = self.shards.rounds
            if replica.trainer is None or self._trace.strategy == ROUNDS:
                replica.copies.append(self.shards.fetch())
            return
        most = self._fetches * (1 + self._overlaps)
        if len(replica.copies) == most or (replica.left and not self._overlaps):
            raise self._misfit(replica, "fetches more often than it pushes")
        if replica.passed and self._overlaps:  # its other buffer has what it has fetched before
            replica.copies.append(self.shards.fetch())
        replica.passed = False
        replica.copies.append(self.shards.fetch())

    def _push(self, replica: TracedReplica) -> bool:
        """Apply a replica's push; whether there was one."""
        if replica.left:
            replica.left -= 1
            return bool(replica.kept) and self._apply_kept(replica)
        if replica.outside or replica.amid:
            self._leave(replica)
            replica.amid, replica.passed = False, True
            return False
        training, incarnation = self.training, replica.pusher.incarnation
        if self._trace.strategy != ELASTIC and len(replica.copies) < self._fetches:
            raise self._misfit(replica, "pushes more often than it fetches")
        lease = None
        if training.progress.warm_start.admits(incarnation):
            room = training.progress.warm_start.room(training.leases.leased)
            lease = training.leases.grant(replica.pusher.replica, incarnation, room)
        if lease is None:
            self._leave(replica)
            return False
        self._compute(replica, lease)
        return True

    def _leave(self, replica: TracedReplica) -> None:
        """Have a replica wait for the first FETCH after a PUSH."""
        self._drop(replica)
        replica.outside, replica.left = True, 0

    def _drop(self, replica: TracedReplica) -> None:
        """Drop what a replica has fetched and not used."""
        while replica.copies:
            self.shards.release(replica.copies.popleft())

    def _compute(self, replica: TracedReplica, lease: DataLease) -> None:
        """Train a lease, and apply the first push of it; the others are kept."""
        if self._trace.strategy == ROUNDS:
            lease = dataclasses.replace(lease, clock=self._round_of(replica))
        if self._trace.strategy == DOWNPOUR:
            trainer = self._shared
        else:
            trainer = replica.trainer = replica.trainer or self._new_trainer(replica.pusher)
        self._turn, replica.left = replica, self._pushes - 1
        # A lease that ends with its epoch may have no use for some of them.
        copies = [replica.copies.popleft() for _ in range(min(self._fetches, len(replica.copies)))]
        self.shards.turn = Turn(deque(copies), replica.kept if self._pushes > 1 else None)
        trainer.train(lease, self._sequences[self._pusher_of(replica)] + 1)
        for copy in copies:
            self.shards.release(copy)
        if replica.kept:
            self._apply_kept(replica)

    def _apply_kept(self, replica: TracedReplica) -> bool:
        """Apply the oldest push that is kept."""
        kept = replica.kept.popleft()
        assert kept.stats is not None, "the trainer has counted it"
        kept.stats.sequence = self._sequences[_TOGETHER] + 1  # by others' pushes since it was computed
        push = dataclasses.replace(kept.push, sequence=kept.stats.sequence)
        self._count(replica, kept.stats, self.shards.apply(kept.values, kept.versions, push))
        return True

    def _acknowledged(self, done: PushStats, result: PushResult) -> None:
        """Count a push that the trainer has made, which is applied or kept; on the trainer's thread."""
        replica = self._turn
        if self._pushes > 1:
            names = [one.name for one in dataclasses.fields(PushStats)]
            replica.kept[-1].stats = PushStats(**{name: getattr(done, name) for name in names})
        else:
            self._count(replica, done, result)

    def _count(self, replica: TracedReplica, done: PushStats, result: PushResult) -> None:
        training, pusher = self.training, replica.pusher
        self._sequences[self._pusher_of(replica)] = done.sequence
        self.staleness.add(result.staleness)
        if self._trace.strategy == ROUNDS:
            self.late_pushes += result.staleness > 0
        training.leases.acknowledge(pusher.incarnation, done.lease, done.position, done.sequence)
        report = self._report(
            pushes=1, samples=done.samples, steps=done.steps, loss_sum=done.loss_sum, staleness_sum=result.staleness
        )
        self.trouble = training.progress.record_report(pusher.replica, report, _NO_TIME_S) or ""

    def warm_start_ended(self) -> bool:
        """Whether the warm start has just ended: the others go on at their next FETCH."""
        alone = self.training.progress.warm_start.replica
        if not self.training.progress.warm_start_ends():
            return False
        for replica in self._replicas:
            if replica.pusher.incarnation != alone:
                self._leave(replica)
        return True

    def _lose(self, number: int) -> None:
        """Drop a replica's state and what it has not pushed; another incarnation takes its place."""
        lost = self._replicas[number]
        self._release_leases(lost)
        self.training.progress.warm_start.remove(lost.pusher.incarnation)
        self._drop(lost)
        self.shards.forget([lost.pusher.incarnation])
        self._sequences.pop(lost.pusher, None)
        if lost.trainer is not None:
            lost.trainer.close()
        self._replicas[number] = self._join(number)
        self.replicas_lost += 1

    def _release_leases(self, replica: TracedReplica) -> None:
        """Return the samples to the pool that a replica has not pushed."""
        self.training.leases.revoke(replica.pusher.incarnation, self._nothing)
        replica.kept.clear()

    def _begin_anew(self) -> None:
        """Go on at the first event: what replicas have fetched, or computed, for events to come is dropped."""
        self.passes += 1
        for replica in self._replicas:
            self._leave(replica)
            replica.amid = replica.passed = False
            if replica.kept:
                self._release_leases(replica)

    # -- replicas ----------------------------------------------------------------------------------------

    def _pusher_of(self, replica: TracedReplica) -> Pusher:
        """Who pushes, to the shards: with Downpour all replicas as one, for there a push is but a gradient."""
        return _TOGETHER if self._trace.strategy == DOWNPOUR else replica.pusher

    def _join(self, number: int) -> TracedReplica:
        self._incarnations += 1
        return TracedReplica(Pusher(number, self._incarnations))

    def _new_trainer(self, pusher: Pusher) -> Any:
        """A trainer of the worker's, whose helpers run on this thread."""
        session = _AsSession(self._job, self._part, self._backend, self.shards, pusher)
        self._scratch.begin()
        shares = {"batches": self._batches, "scratch": self._scratch, "fetcher": self._fetcher()}
        with use_runtime(OneThread()):
            return self._factory.pushing(
                session, self._model, self._job.strategy, self._train, self._phases, self._acknowledged, None, **shares
            )

    def _fetcher(self) -> TracedFetcher | None:
        """What Downpour's trainer fetches by; None: others pull."""
        strategy: Any = self._job.strategy
        if self._trace.strategy != DOWNPOUR:
            return None
        return TracedFetcher(self.shards, self._part, self._backend, changes=strategy.n_fetch > 1)

    # -- errors ------------------------------------------------------------------------------------------

    def _misfit(self, replica: TracedReplica, what: str) -> DataError:
        strategy: Any = self._job.strategy
        return DataError(
            f"{self._file}: event {self._event}: replica {replica.pusher.replica} {what} with n_fetch "
            f"{strategy.n_fetch} and n_push {strategy.n_push}: the file is of a job with others"
        )

    def _round_of(self, replica: TracedReplica) -> int:
        """The round that a replica's push is of: the one that was open when it fetched."""
        strategy, own = self._job.strategy, replica.open_round
        assert isinstance(strategy, Diloco), "others have no rounds"
        where = f"{self._file}: event {self._event}: replica {replica.pusher.replica}"
        if own == replica.round:
            raise DataError(f"{where} pushes twice in one round")
        if own < self.shards.rounds and strategy.quorum is None:
            raise DataError(
                f"{where} pushes after the end of its round, and strategy.quorum is null: rounds wait for all replicas"
            )
        replica.round = own
        return own


def _cadence(strategy: Any) -> tuple[int, int]:
    """Fetches and pushes of a lease, of which one number is 1."""
    cycle = math.lcm(strategy.n_fetch, strategy.n_push)
    return cycle // strategy.n_fetch, cycle // strategy.n_push
