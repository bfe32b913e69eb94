"""What people see of a job beside its own state: how fast each member goes, what shards hold, how loss went."""

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
    """Nothing that the job does depends on it.

    Attributes
    ----------
    held
        What each shard told last, by its number.
    """

    def __init__(self, clock: Clock, events: Path, iterates: bool) -> None:
        self.course = LearningCurves(events, iterates)
        self.held: dict[int, wire.ShardFigures] = {}
        self._rates = RateWindow(clock)

    def shard(self, number: int, figures: wire.ShardFigures) -> None:
        """A shard tells what it has done and holds."""
        self.held[number] = figures
        self._rates.note("shard", number, "pushes", figures.pushes)
        self._rates.note("shard", number, "bytes", figures.bytes_received + figures.bytes_sent)

    def pushers(self, members: Iterable[Member], progress: Progress) -> None:
        """The samples that these replicas and clients have trained in this leg of the run, as of now."""
        for member in members:
            self._rates.note("pusher", member.number, "samples", progress.samples_of_since(member.number))

    def per_second(self, member: Member, name: str) -> float:
        """What a member's "samples", or a shard's "pushes" and "bytes", rise by in a second; 0 once it is gone."""
        kind = "shard" if member.kind == "shard" else "pusher"
        return self._rates.per_second(kind, member.number, name) if member.alive else 0.0
