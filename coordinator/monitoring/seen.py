"""Display data of a job beside its own state: throughput of each member, contents of shards, learning curves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dbelief.process.clock import Clock
from dbelief.rpc import coordination_pb2 as wire

from ..core.members import Member
from ..core.progress import Progress
from .curves import LearningCurves
from .rates import RateWindow


class MemberThroughput:
    """Throughput of members, last reports of shards, and learning curves. The job does not depend on it.

    Attributes
    ----------
    held
        Last report of each shard, by its number.
    """

    def __init__(self, clock: Clock, events: Path, iterates: bool) -> None:
        self.course = LearningCurves(events, iterates)
        self.held: dict[int, wire.ShardFigures] = {}
        self._rates = RateWindow(clock)

    def shard(self, number: int, figures: wire.ShardFigures) -> None:
        """Record a shard's report of its work and contents."""
        self.held[number] = figures
        self._rates.note("shard", number, "pushes", figures.pushes)
        self._rates.note("shard", number, "bytes", figures.bytes_received + figures.bytes_sent)

    def pushers(self, members: Iterable[Member], progress: Progress) -> None:
        """Record the samples that these replicas and clients have trained since the run's last start or resume."""
        for member in members:
            self._rates.note("pusher", member.number, "samples", progress.samples_of_since(member.number))

    def per_second(self, member: Member, name: str) -> float:
        """Increase per second of a member's "samples", or a shard's "pushes" and "bytes"; 0 once it has ended."""
        kind = "shard" if member.kind == "shard" else "pusher"
        return self._rates.per_second(kind, member.number, name) if member.alive else 0.0
