"""The shards of a job in one process, as one replica after the other fetches from them and pushes to them.

A replica's trainer calls them as it calls the shards' client, all within its turn. What it fetches is what it took at
its FETCH events, before; what it pushes is applied in its turn, or kept for its PUSH events to come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from dbelief.arrays.backend import aligned_float32
from dbelief.arrays.push_source import PushSource
from dbelief.core.layout import Layout, SegmentSpan
from dbelief.core.placement import Fetch, Placement, ShardPlacement
from dbelief.core.push import PARAMETERS, Push, Pusher, PushResult, PushStats
from dbelief.job import Diloco, Job
from dbelief.optim import Rule, make_rule, round_mean, warm_up

from .programs import part_of


class FetchedCopy(NamedTuple):
    """The parameters at a FETCH, which is not changed: replicas that fetch the same version share it.

    Attributes
    ----------
    values
        (N,) float32.
    versions
        (segments,) int64.
    round
        Number of the open round; 0 where there are none.
    """

    values: np.ndarray
    versions: np.ndarray
    round: int


@dataclass
class KeptPush:
    """A push that is computed and not applied; `stats` of its mini-batches, once the trainer has counted it."""

    values: np.ndarray
    versions: np.ndarray
    push: Push
    stats: PushStats | None = None


@dataclass
class Turn:
    """What one replica fetches, and under which number it pushes.

    Attributes
    ----------
    copies
        Of its fetches, the next one first.
    kept
        Receives its pushes where they are not to be applied now; None: they are applied at once.
    """

    pusher: Pusher
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
        self._newest: FetchedCopy | None = None
        self.turn = Turn(Pusher(0, 0), deque())

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
        copy = self.turn.copies.popleft()
        out[:], versions[:] = copy.values, copy.versions
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
        assert within is None, "a replay has no fragments"
        push, host = replace(push, pusher=self.turn.pusher), self._on_host(values)
        if self.turn.kept is None:
            result = self.apply(host, versions, push)
        else:
            result = PushResult(0.0)
            self.turn.kept.append(KeptPush(host.copy(), versions.copy(), push))
        if fetch is not None:
            self.pull(fetch.out, fetch.versions, clock=fetch.clock)
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

    def copy(self) -> FetchedCopy:
        """The present parameters. Cost: a copy, where the last one is of an older version."""
        segments: Mapping[int, Any] = self._shard.segments
        versions = [segments[span.index].version for span in self.placement.spans]
        if self._newest is None or self._newest.versions.tolist() != versions:
            values = self.array(self.placement.size)
            for span in self.placement.spans:
                values[span.start : span.stop] = segments[span.index].vectors[PARAMETERS]
            self._newest = FetchedCopy(values, np.array(versions, np.int64), 0)
        return self._newest._replace(round=self.rounds)

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


def rule_at_shards(job: Job) -> Rule:
    """The rule by which the job's shards apply a push."""
    at_shards = job.strategy.at_shards
    return make_rule(at_shards.name, at_shards.model_dump(exclude={"name", "rate"}))
