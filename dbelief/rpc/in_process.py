"""In-memory counterpart of the gRPC client: shards of this process, called directly. For tests and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dbelief.arrays.backend import aligned_float32
from dbelief.core.placement import Fetch, Placement
from dbelief.core.push import PARAMETERS, Push, PushResult
from dbelief.process.runtime import runtime


class LocalShard(Protocol):
    """Interface that the in-memory client requires of a shard."""

    def pull(self, vector: str, index: int, newer_than: int | None = None) -> tuple[int, bytes | None]:
        """Version and bytes of one segment."""

    def push(
        self, push: Push, index: int, gradient: np.ndarray, offset: int = 0, read_version: int = 0
    ) -> tuple[Any, int, int]:
        """Outcome, staleness and loss of one segment of a push."""

    def exchange(
        self, push: Push, parts: Sequence[tuple[int, np.ndarray]]
    ) -> tuple[list[tuple[int, np.ndarray]], int, int]:
        """Replies, duplicates and losses of some segments of an exchange."""

    @property
    def pulls_wait(self) -> bool:
        """Whether a pull waits for its clock."""

    def wait_for_clock(self, indices: Sequence[int], clock: int, timeout_s: float) -> None:
        """Wait until these segments may be read for `clock`."""

    def open_round(self, indices: Sequence[int]) -> int:
        """With a quorum: the latest of these segments' open rounds; else 0."""


class InProcessParameters:
    """`Parameters` over shards in the same process; `timeout_s` bounds the wait for a clock."""

    def __init__(self, shards: Sequence[LocalShard], placement: Placement, timeout_s: float = 10.0) -> None:
        self.shards = shards
        self.placement = placement
        self.timeout_s = timeout_s

    def array(self, size: int) -> np.ndarray:
        """See `Parameters.array`."""
        return aligned_float32(size)

    def pull(
        self,
        out: np.ndarray,
        versions: np.ndarray,
        *,
        vector: str = PARAMETERS,
        clock: int = 0,
        within: frozenset[int] | None = None,
    ) -> float:
        """See `Parameters.pull`; `within` as in `Parameters.push`."""
        waited_s = 0.0
        for place, shard in zip(self.placement.places, self.shards, strict=True):
            run = self.placement.run(place, within=within)
            began_s = runtime.monotonic()
            if shard.pulls_wait:
                shard.wait_for_clock([span.index for span in run], clock, self.timeout_s)
            waited_s += runtime.monotonic() - began_s
            for span in run:
                version, data = shard.pull(vector, span.index, int(versions[span.index]))
                if data is not None:
                    out[span.start : span.stop] = np.frombuffer(data, out.dtype)
                versions[span.index] = version
        return waited_s

    def push(
        self,
        values: np.ndarray,
        versions: np.ndarray,
        push: Push,
        fetch: Fetch | None = None,
        *,
        within: frozenset[int] | None = None,
    ) -> PushResult:
        """See `Parameters.push`."""
        staleness, applied, lost, sent, latest = 0, 0, 0, 0, 0
        for place, shard in zip(self.placement.places, self.shards, strict=True):
            run, staged = self.placement.run(place, within=within), False
            sent += len(run)
            for span in run:
                values_here = values[span.start : span.stop]
                outcome, late, gone = shard.push(push, span.index, values_here, 0, max(0, int(versions[span.index])))
                staleness += late
                lost = max(lost, gone)
                applied += outcome.value != "duplicate"
                staged = staged or outcome.value == "staged"
            if staged:  # with staleness bound 0, a push is done when its round is applied
                shard.wait_for_clock([span.index for span in run], push.clock + 1, self.timeout_s)
                latest = max(latest, shard.open_round([span.index for span in run]))
        if fetch is not None:
            self.pull(fetch.out, fetch.versions, clock=fetch.clock, within=within)
        return PushResult(staleness / max(1, applied), sent - applied, lost, latest)

    def exchange(self, values: np.ndarray, out: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        """See `ShardedParameterClient.exchange`."""
        staleness, lost = 0, 0
        for place, shard in zip(self.placement.places, self.shards, strict=True):
            run = self.placement.run(place)
            shard.wait_for_clock([span.index for span in run], push.clock, self.timeout_s)
            for span in run:
                ((version, before),), _, gone = shard.exchange(push, [(span.index, values[span.start : span.stop])])
                out[span.start : span.stop] = before
                staleness += max(0, version - max(0, int(versions[span.index])))
                versions[span.index] = version + 1
                lost = max(lost, gone)
        return PushResult(staleness / max(1, len(self.placement.spans)), 0, lost)
