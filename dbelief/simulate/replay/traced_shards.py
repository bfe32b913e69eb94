"""The shards of a job in one process, as one replica after the other fetches from them and pushes to them.

A replica's trainer calls them as it calls the shards' client, all within its turn. What it fetches is what it took at
its FETCH events, before; what it pushes is applied in its turn, or kept for its PUSH events to come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend, aligned_float32
from dbelief.arrays.push_source import PushSource
from dbelief.core.layout import Layout, RankPart, SegmentSpan
from dbelief.core.placement import Fetch, Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, Push, Pusher, PushResult, PushStats
from dbelief.job import Diloco, Job
from dbelief.optim import Rule, make_rule, round_mean, warm_up
from dbelief.training.parameter_buffer import ParameterBuffer

from .programs import part_of


@dataclass(eq=False)
class FetchedCopy:
    """The parameters at a FETCH; replicas that fetch the same version share it, and none changes it.

    Attributes
    ----------
    holders
        Number of fetches whose replicas have not used it.
    """

    buffer: ParameterBuffer
    holders: int = 0


@dataclass
class KeptPush:
    """A push that is computed and not applied; `stats` of its mini-batches, once the trainer has counted it."""

    values: np.ndarray
    versions: np.ndarray
    push: Push
    stats: PushStats | None = None


@dataclass
class Turn:
    """What one replica fetches, and what becomes of its pushes.

    Attributes
    ----------
    copies
        Of its fetches, the next one first.
    kept
        Receives its pushes where they are not to be applied now; None: they are applied at once.
    """

    copies: deque[FetchedCopy]
    kept: deque[KeptPush] | None = None


@dataclass
class ScratchMemory:
    """Memory that the trainers of replicas share: `Allocate`. Each trainer gets the same arrays, in its order."""

    arrays: list[np.ndarray] = field(default_factory=list)
    given: int = 0

    def begin(self) -> None:
        """The next trainer begins."""
        self.given = 0

    def __call__(self, size: int) -> np.ndarray:
        """The next array."""
        if self.given == len(self.arrays):
            self.arrays.append(aligned_float32(size))
        array = self.arrays[self.given][:size]
        assert len(array) == size, "trainers of one job need the same"
        self.given += 1
        return array


class TracedShards:
    """All parameters of a job at one shard of this process: `Parameters`, and the exchange of elastic averaging.

    Parameters
    ----------
    initial
        (N,) float32.

    Attributes
    ----------
    turn
        Of the replica whose trainer calls; to be set before it does.
    """

    def __init__(self, job: Job, layout: Layout, initial: np.ndarray) -> None:
        strategy = job.strategy
        spans = tuple(layout.segments(layout.size))  # one of each kind: updates are elementwise, however they are cut
        self.placement = Placement(1, spans, (ShardPlacement(0, "", 0, ((0, len(spans)),)),))
        store: Any = part_of("ps", "store.shard")
        of_rounds = isinstance(strategy, Diloco)
        quorum = None
        if isinstance(strategy, Diloco) and strategy.quorum is not None:
            quorum = store.Quorum(strategy.quorum, strategy.grace, strategy.stale)
        rule = rule_at_shards(job)
        self._shard = store.Shard(
            spans, rule, 0 if of_rounds else None, staleness_aware=strategy.staleness_aware, quorum=quorum
        )
        longest = max(span.length for span in spans)
        warm_up(rule, longest)
        if of_rounds:
            round_mean.warm_up(longest)
        self._set(initial)
        self._part = layout.part(0)
        self._newest: FetchedCopy | None = None
        self._free: list[FetchedCopy] = []
        self.turn = Turn(deque())

    def _set(self, values: np.ndarray) -> None:
        push = Push(Pusher(0, 0), 1, assign=True)
        for span in self.placement.spans:
            self._shard.push(push, span.index, values[span.start : span.stop])
        self._shard.make_ready()

    # -- what a trainer calls ----------------------------------------------------------------------------

    def array(self, size: int) -> np.ndarray:
        """See `Parameters.array`."""
        return aligned_float32(size)

    def pull(self, out: np.ndarray, versions: np.ndarray, *, vector: str = PARAMETERS, clock: int = 0) -> float:
        """See `Parameters.pull`: the oldest copy of the replica's that it has not used."""
        fetched = self.turn.copies.popleft().buffer
        out[:], versions[:] = fetched.host, fetched.versions
        return 0.0

    def push(
        self,
        values: np.ndarray | PushSource,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        *,
        within: frozenset[int] | None = None,
    ) -> PushResult:
        """See `Parameters.push`; where it is kept, its result is not known."""
        assert within is None, "rounds of a replay have no fragments"
        assert fetch is None, "a lease of a replay has no fetch behind a push"
        host = self._on_host(values)
        if self.turn.kept is None:
            result = self.apply(host, versions, push)
        else:
            result = PushResult(0.0)
            self.turn.kept.append(KeptPush(host.copy(), versions.copy(), push))
        return result

    def exchange(
        self, values: np.ndarray | PushSource, out: np.ndarray, versions: np.ndarray, push: Push
    ) -> PushResult:
        """See `ShardedParameterClient.exchange`."""

        def into(span: SegmentSpan) -> np.ndarray:
            # The answer is cached for a repetition, which there is not here: it may lie where it will change.
            return out[span.start : span.stop]

        staleness, host = 0, self._on_host(values)
        for span in self.placement.spans:
            own = host[span.start : span.stop]
            ((version, _),), _, _ = self._shard.exchange(push, [(span.index, own)], into)
            staleness += version - int(versions[span.index])
            versions[span.index] = version + 1
        return PushResult(staleness / len(self.placement.spans))

    def _on_host(self, values: np.ndarray | PushSource) -> np.ndarray:
        if isinstance(values, np.ndarray):
            return values
        return np.concatenate([block.copy() for block in values.blocks([(0, self.placement.size)])])

    # -- what happens by the file ------------------------------------------------------------------------

    def fetch(self) -> FetchedCopy:
        """The present parameters, to be released. Cost: a copy, where the last one is of an older version."""
        versions = self._shard.versions()
        newest = self._newest
        if newest is None or newest.buffer.versions.tolist() != versions:
            if newest is not None and not newest.holders:
                self._free.append(newest)
            newest = self._newest = self._free.pop() if self._free else self._new_copy()
            self.read(newest.buffer.host)
            newest.buffer.versions[:] = versions
        newest.holders += 1
        return newest

    def release(self, copy: FetchedCopy) -> None:
        """One replica has used a copy, or does not need it: its memory is used again after the last."""
        copy.holders -= 1
        if not copy.holders and copy is not self._newest:
            self._free.append(copy)

    def _new_copy(self) -> FetchedCopy:
        host = Backend("numpy", np)
        return FetchedCopy(ParameterBuffer.make(self._part, len(self.placement.spans), host))

    def read(self, out: np.ndarray) -> np.ndarray:
        """Copy the present parameters into (N,) float32 `out`."""
        segments: Mapping[int, Any] = self._shard.segments
        for span in self.placement.spans:
            out[span.start : span.stop] = segments[span.index].vectors[PARAMETERS]
        return out

    def values(self) -> np.ndarray:
        """A new copy of the present parameters, (N,) float32."""
        return self.read(self.array(self.placement.size))

    def apply(self, values: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        """Apply a push, or hold it until its round ends; its staleness in versions, with rounds in rounds."""
        staleness = 0
        for span in self.placement.spans:
            own = values[span.start : span.stop]
            staleness += self._shard.push(push, span.index, own, read_version=int(versions[span.index])).staleness
        return PushResult(staleness / len(self.placement.spans))

    @property
    def rounds(self) -> int:
        """Rounds that have ended: the number of the open one."""
        return int(self._shard.segments[0].rounds)

    @property
    def held(self) -> bool:
        """Whether pushes wait for the end of a round."""
        return bool(self._shard.segments[0].staged)

    def end_round(self) -> None:
        """End the open round: the outer step by the mean of what was pushed since the last."""
        for segment in self._shard.segments.values():
            with segment.lock:
                segment.close_round()

    def forget(self, incarnations: Sequence[int]) -> None:
        """Drop what is kept of replicas' incarnations that push no more; what they have pushed stays."""
        self._shard.forget(incarnations)


class TracedFetcher:
    """The worker's `Fetcher` on the copies of the replica whose turn it is.

    Parameters
    ----------
    changes
        Whether the trainer steps on what it has fetched, or needs it on a device: it gets a copy of its own then.
    """

    def __init__(self, shards: TracedShards, part: RankPart, backend: Backend, changes: bool) -> None:
        self._shards, self._own = shards, None
        if changes or backend.name != "numpy":
            self._own = ParameterBuffer.make(part, len(shards.placement.spans), backend)

    def fetch_now(self, clock: int) -> ParameterBuffer:
        """See `FetchThread.fetch_now`."""
        if self._own is None:
            return self._shards.turn.copies.popleft().buffer
        self._own.prepare_fetch()
        self._shards.pull(self._own.host, self._own.versions, clock=clock)
        return self._own

    def close(self) -> None:
        """See `FetchThread.close`."""


def rule_at_shards(job: Job) -> Rule:
    """The rule by which the job's shards apply a push."""
    at_shards = job.strategy.at_shards
    return make_rule(at_shards.name, at_shards.model_dump(exclude={"name", "rate"}))
