"""Shards as tests want them: a small table of segments with initial values, and pushers that count."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import PARAMETERS, AppliedPush, Push, Pusher
from dbelief.optim import make_rule
from ps_server.store.quorum import Quorum
from ps_server.store.shard import SegmentResult, Shard
from tests.ps_server.servers import Job

INITIALISER = Pusher(0, 1_000_000)


@dataclass
class Subject:
    """A shard under test, and its lives of replicas: the last number of each."""

    shard: Shard
    spans: tuple[SegmentSpan, ...]
    sequences: dict[Pusher, int] = field(default_factory=dict)

    def send(self, push: Push, values: np.ndarray, segments: Sequence[int] | None = None) -> list[SegmentResult]:
        """Push (N,) values into some segments, all if none are named."""
        here = self.spans if segments is None else [self.spans[index] for index in segments]
        return [self.shard.push(push, span.index, values[span.start : span.stop]) for span in here]

    def push(
        self,
        pusher: Pusher,
        values: np.ndarray | float,
        rate: float = 1.0,
        clock: int = 0,
        samples: int = 1,
        lease: int = 0,
        position: int = 0,
    ) -> Push:
        """Push a gradient with the pusher's next number; a number stands for a vector of it."""
        sequence = self.sequences[pusher] = self.sequences.get(pusher, 0) + 1
        push = Push(pusher, sequence, np.float32(rate), samples, clock=clock, lease=lease, position=position)
        self.send(push, self.full(values))
        return push

    def assign(self, values: np.ndarray | float, vector: str = PARAMETERS, pusher: Pusher = INITIALISER) -> None:
        """Write values under a name, as that pusher's first push on it."""
        self.send(Push(pusher, 1, vector=vector, assign=True), self.full(values))

    def full(self, values: np.ndarray | float) -> np.ndarray:
        """Give (N,) float32 values."""
        return np.broadcast_to(np.asarray(values, np.float32), (sum(span.length for span in self.spans),)).copy()

    def read(self, vector: str = PARAMETERS) -> np.ndarray:
        """A named vector over all segments, (N,) float32."""
        parts = [self.shard.pull(vector, span.index)[1] for span in self.spans]
        return np.frombuffer(b"".join(part for part in parts if part is not None), np.float32)

    def everything(self) -> Any:
        """All that a refused call must leave as it was."""
        return [
            (
                {name: values.tobytes() for name, values in segment.vectors.items()},
                [state.tobytes() for state in segment.state],
                segment.version,
                segment.rounds,
                dict(segment.ledger.last),
            )
            for segment in self.shard.segments.values()
        ]


@pytest.fixture(scope="session")
def make() -> Callable[..., Subject]:
    """Give make(lengths, rule, staleness, initial, **options): a shard; without initial values where that is None."""

    def make(
        lengths: Sequence[int] = (5, 3, 4),
        rule: str = "sgd",
        staleness: int | None = None,
        initial: np.ndarray | float | None = 0.0,
        on_apply: Callable[[AppliedPush], None] | None = None,
        quorum: Quorum | None = None,
        **options: float,
    ) -> Subject:
        starts = np.cumsum([0, *lengths]).tolist()
        spans = tuple(
            SegmentSpan(index, start, n) for index, (start, n) in enumerate(zip(starts, lengths, strict=False))
        )
        subject = Subject(Shard(spans, make_rule(rule, options), staleness, on_apply, quorum=quorum), spans)
        if initial is not None:
            subject.assign(initial)
            subject.shard.make_ready()
        return subject

    return make


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    """Give start(...): a `Job`, closed at the end of the test."""
    jobs: list[Job] = []

    def begin(**options: Any) -> Job:
        jobs.append(Job(**options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


@pytest.fixture
def job(start: Callable[..., Job]) -> Job:
    return start()
