"""Blocks of leases in lockstep, for `staleness: 0`. No clock, no socket.

Synchronous replicas must agree on the members of each clock before any of them computes it. So leases are granted in
blocks. When every living replica has requested work, each gets a lease that begins at the same clock. The shards
receive the members and their clocks before the leases are sent. A replica with a shorter lease leaves at the end of it;
a replica that joins waits for the next block; a failed one is removed from the remaining clocks. Scripts, which draw
ahead of their steps, request a lease of the next block before they have finished the one before.

With `turns`, the clocks of a block are assigned round-robin: the first replica has the first clock, the second the
next, and so on. The shards block a clock's only member until the one before has pushed.

Replica numbers are reused, so everything here is checked against the incarnation too: the end of an old incarnation
must not remove the new one from its block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from dbelief.core.lease import DataLease

from ..core.effects import Action, SetMembership
from ..core.messages import Wait, WorkRequest
from .leases import Leases
from .sync_policy import LOCKSTEP_RETRY_S, SyncPolicy


@dataclass
class RoundParticipant:
    """One replica's part of a block, which begins at clock `start`.

    `end` is one past its last clock; `done`: all its pushes are acknowledged, as it reported.
    """

    replica: int
    incarnation: int
    lease: DataLease
    start: int
    end: int
    given: bool = False
    done: bool = False

    @property
    def clocks(self) -> range:
        """The clocks in which it takes part."""
        return range(self.lease.clock, self.end, self.lease.stride)


@dataclass
class SynchronousPolicy(SyncPolicy):
    """The unfinished blocks and the clocks that they cover.

    Attributes
    ----------
    turns
        Whether each clock belongs to one replica.
    clock
        The first clock after the last block.
    blocks
        Number of blocks formed, over all coordinators of the job.
    shards_informed
        Whether the shards have received the members of the last block.
    """

    retry_s: ClassVar[float] = LOCKSTEP_RETRY_S
    waits_at_shards: ClassVar[bool] = True
    holds_requests: ClassVar[bool] = True

    leases: Leases
    turns: bool = False
    clock: int = 0
    member_epoch: int = 0
    blocks: int = 0
    shards_informed: bool = True
    _asking: dict[int, int] = field(default_factory=dict)  # incarnation by replica
    _parts: dict[int, RoundParticipant] = field(default_factory=dict)  # of unfinished blocks, by lease
    _shard_lost_rounds: bool = False  # of these blocks
    _sent: int = 0  # member epoch last sent to the shards, where it is sent in mid-block

    def held(self, request: WorkRequest) -> DataLease | Wait | None:
        """A replica's next lease in the blocks; `Wait` until the shards have the members."""
        self._mark_done()
        own = (part for part in self._parts.values() if part.incarnation == request.incarnation)
        part = next((part for part in own if part.lease.id > request.last_lease), None)
        if part is None:
            return None
        if not self.shards_informed:
            return Wait(LOCKSTEP_RETRY_S)
        part.given = True
        return part.lease

    def _mark_done(self) -> None:
        """Mark the parts whose last push is acknowledged."""
        for lease, part in self._parts.items():
            if not part.done and lease not in self.leases.outstanding:
                part.done = True
                self.member_epoch += self._shard_lost_rounds

    def request_lease(self, request: WorkRequest, living: Collection[int], now_s: float) -> None:
        """Record that a replica requests a part of the next block."""
        self._asking[request.replica] = request.incarnation

    def block_of(self, lease: DataLease) -> tuple[int, tuple[int, ...]]:
        """See `SyncPolicy.block_of`; those of a failed replica are not in it."""
        start = self._parts[lease.id].start
        leases = [part.lease for part in self._parts.values() if part.start == start]
        return min(one.samples_before for one in leases), tuple(one.samples for one in leases)

    def rounds_after(self, lease_id: int, position: int) -> int:
        """See `SyncPolicy.rounds_after`; in turns there are none."""
        held = self.leases.outstanding.get(lease_id)
        return 0 if held is None or self.turns else held.lease.clock + self.leases.steps(position)

    @property
    def offer(self) -> tuple[int, bool, bool]:
        """See `SyncPolicy.offer`; data may return while none is left, with a replica that failed."""
        return self.blocks, self.shards_informed, self.leases.room() > 0

    @property
    def needs_all_replicas(self) -> bool:
        """See `SyncPolicy.needs_all_replicas`."""
        return not self.blocks

    def advance(self, living: Mapping[int, int], read: bool = False, reading: bool = False) -> list[Action]:
        """See `SyncPolicy.advance`; the last block must be handed out, and data be left."""
        asking = all(self._asking.get(replica) == incarnation for replica, incarnation in living.items())
        if not (living and asking and all(part.given for part in self._parts.values())):
            return []
        self._mark_done()
        unfinished = {part.start for part in self._parts.values() if not part.done}
        self._parts = {lease: part for lease, part in self._parts.items() if part.start in unfinished}
        self._shard_lost_rounds = self._shard_lost_rounds and bool(unfinished)
        start = self.clock
        self.member_epoch += 1
        stride = len(living) if self.turns else 1
        size = self.leases.even_size(len(living))
        for turn, (replica, incarnation) in enumerate(sorted(living.items())):
            clock = start + turn * self.turns
            lease = self.leases.grant(replica, incarnation, None, clock, self.member_epoch, stride, size)
            if lease is None:
                break
            end = clock + (self.leases.steps(lease.samples) - 1) * stride + 1
            self._parts[lease.id] = RoundParticipant(replica, incarnation, lease, start, end)
            self.clock = max(self.clock, end)
        self._asking.clear()
        if self.clock == start:  # no data is left
            return []
        self.blocks += 1
        self.shards_informed = False
        return [self.membership()]

    def fenced(self, replica: int, incarnation: int) -> list[Action]:
        """Remove an incarnation from the remaining clocks, so that the others need not wait for it."""
        if self._asking.get(replica) == incarnation:
            del self._asking[replica]
        ended = [lease for lease, part in self._parts.items() if part.incarnation == incarnation]
        if not ended:
            return []
        for lease in ended:
            del self._parts[lease]
        self.member_epoch += 1
        return [self.membership()]

    def membership(self) -> SetMembership:
        """The members from each clock on, over the unfinished blocks; after them, none until the next.

        A replica that is done is not listed: its rounds are applied, except on a shard that lost them.
        """
        parts = [(part.replica, part.clocks) for part in self._parts.values() if not part.done]
        start = min((part.start for part in self._parts.values()), default=self.clock)
        edges = sorted({start, self.clock, *(edge for _, clocks in parts for edge in (clocks.start, clocks.stop))})
        if self.turns:
            edges = list(range(start, self.clock + 1))
        members = ((edge, sorted(replica for replica, clocks in parts if edge in clocks)) for edge in edges)
        return SetMembership(self.member_epoch, tuple((edge, tuple(replicas)) for edge, replicas in members))

    def membership_changes(self) -> list[Action]:
        """See `SyncPolicy.membership_changes`; in mid-block only where a shard has lost rounds."""
        sent, self._sent = self._sent, self.member_epoch
        return [self.membership()] if self._shard_lost_rounds and sent != self.member_epoch else []

    def shard_recovered(self) -> list[Action]:
        """A shard has lost rounds of this block: it must not wait for replicas that are done and send no more."""
        self._shard_lost_rounds = True
        self.member_epoch += 1
        return self.membership_changes()

    def shards_acknowledged(self, member_epoch: int, clock: int) -> None:
        """See `SyncPolicy.shards_acknowledged`: leases are granted once it is the current epoch."""
        self.shards_informed = self.shards_informed or member_epoch == self.member_epoch

    def resume(self, clock: int, member_epoch: int) -> None:
        """See `SyncPolicy.resume`; there are no members yet, a change that the shards must receive."""
        self.clock, self.member_epoch = clock, member_epoch + 1

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "clock": self.clock,
            "member_epoch": self.member_epoch,
            "blocks": self.blocks,
            "retold": self._shard_lost_rounds,
            "asking": list(self._asking.items()),
            "block": [asdict(part) for part in self._parts.values()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator; the membership is sent to the shards again."""
        self.clock, self.member_epoch, self.blocks = state["clock"], state["member_epoch"], state["blocks"]
        self._shard_lost_rounds = state["retold"]
        self._asking = dict(state["asking"])
        parts = [RoundParticipant(**{**part, "lease": DataLease(**part["lease"])}) for part in state["block"]]
        self._parts = {part.lease.id: part for part in parts}
        self.shards_informed = not self._parts
