"""Blocks of leases in lockstep, for `staleness: 0`. No clock, no socket.

Synchronous replicas must agree on the members of each clock before any of them computes it. So leases are granted in
blocks. When every living replica has requested work, each gets a lease that begins at the same clock. The shards
receive the members and their clocks before the leases are sent. A replica with a shorter lease leaves at the end of it;
a replica that joins waits for the next block; a failed one is removed from the remaining clocks.

With `turns`, the clocks of a block are assigned round-robin: the first replica has the first clock, the second the
next, and so on. The shards block a clock's only member until the one before has pushed.

Replica numbers are reused, so everything here is checked against the incarnation too: the end of an old incarnation
must not remove the new one from its block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dbelief.core.lease import DataLease

from ..core.states import Wait
from .leases import Leases

ASK_AGAIN_S = 0.02
"""Seconds before a replica in lockstep retries; short, because all replicas wait for the slowest."""


@dataclass
class RoundParticipant:
    """One replica's part of the block; `end` is one past its last clock, `done` when it has requested more work."""

    incarnation: int
    lease: DataLease
    end: int
    given: bool = False
    done: bool = False

    @property
    def clocks(self) -> range:
        """The clocks in which it takes part."""
        return range(self.lease.clock, self.end, self.lease.stride)


@dataclass
class SynchronousPolicy:
    """The current block and the clocks it covers.

    Attributes
    ----------
    turns
        Whether each clock belongs to one replica.
    clock
        The first clock after the block.
    blocks
        Number of blocks formed, over all coordinators of the job.
    shards_informed
        Whether the shards have received the members of this block.
    """

    turns: bool = False
    clock: int = 0
    member_epoch: int = 0
    blocks: int = 0
    shards_informed: bool = True
    _asking: dict[int, tuple[int, int]] = field(default_factory=dict)  # replica -> (incarnation, next sequence)
    _block: dict[int, RoundParticipant] = field(default_factory=dict)  # by replica
    _block_start: int = 0
    _retold: bool = False  # a shard lost rounds of this block
    _told: int = 0  # member epoch last sent to the shards, where it is sent in mid-block

    def held(self, replica: int, incarnation: int, next_sequence: int) -> DataLease | Wait | None:
        """A replica's lease in the block, where it has not begun it; also repeatedly, because a reply may be lost."""
        part = self._block.get(replica)
        if (
            part is None
            or part.incarnation != incarnation
            or (part.given and part.lease.first_sequence != next_sequence)
        ):
            return None
        if not self.shards_informed:
            return Wait(ASK_AGAIN_S)
        part.given = True
        return part.lease

    def done(self, replica: int, incarnation: int) -> None:
        """Mark this incarnation's part of the block as done: it requests work, and no lease is held for it."""
        part = self._block.get(replica)
        if part is not None and part.incarnation == incarnation and part.given and not part.done:
            part.done = True
            self.member_epoch += self._retold

    def shard_back(self) -> None:
        """A shard has lost rounds of this block: it must not wait for replicas that are done and send no more."""
        self._retold = True
        self.member_epoch += 1

    def membership_changed(self) -> bool:
        """Whether, in mid-block, the membership has to be sent to the shards; true once per change."""
        told, self._told = self._told, self.member_epoch
        return self._retold and told != self.member_epoch

    def ask(self, replica: int, incarnation: int, next_sequence: int) -> None:
        """Record that a replica requests a part of the next block."""
        self._asking[replica] = (incarnation, next_sequence)

    def complete(self, living: Mapping[int, int]) -> bool:
        """Whether all living replicas (incarnation by replica) have requested, and the last block is handed out."""
        asking = all(self._asking.get(replica, (0, 0))[0] == life for replica, life in living.items())
        return bool(living) and asking and all(part.given for part in self._block.values())

    def form(self, living: Mapping[int, int], leases: Leases) -> bool:
        """Form the next block; False where no data is left."""
        self._block.clear()
        self._retold = False
        self._block_start = self.clock
        self.member_epoch += 1
        stride = len(living) if self.turns else 1
        for turn, (replica, incarnation) in enumerate(sorted(living.items())):
            _, next_sequence = self._asking[replica]
            clock = self._block_start + turn * self.turns
            lease = leases.grant(replica, incarnation, next_sequence, None, clock, self.member_epoch, stride)
            if lease is None:
                break
            end = clock + (leases.cadence.steps(lease.samples) - 1) * stride + 1
            self._block[replica] = RoundParticipant(incarnation, lease, end)
            self.clock = max(self.clock, end)
        self._asking.clear()
        self.blocks += bool(self._block)
        self.shards_informed = not self._block
        return bool(self._block)

    def remove(self, replica: int, incarnation: int) -> bool:
        """Remove an incarnation from the remaining clocks; whether the shards need a membership update."""
        if self._asking.get(replica, (0, 0))[0] == incarnation:
            del self._asking[replica]
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation:
            return False
        del self._block[replica]
        self.member_epoch += 1
        return True

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "clock": self.clock,
            "member_epoch": self.member_epoch,
            "blocks": self.blocks,
            "block_start": self._block_start,
            "retold": self._retold,
            "asking": [[replica, *asked] for replica, asked in self._asking.items()],
            "block": [[replica, asdict(part)] for replica, part in self._block.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator; the membership is sent to the shards again."""
        self.clock, self.member_epoch, self.blocks = state["clock"], state["member_epoch"], state["blocks"]
        self._block_start, self._retold = state["block_start"], state["retold"]
        self._asking = {replica: (life, sequence) for replica, life, sequence in state["asking"]}
        self._block = {
            n: RoundParticipant(**{**part, "lease": DataLease(**part["lease"])}) for n, part in state["block"]
        }
        self.shards_informed = not self._block

    def membership(self) -> list[tuple[int, list[int]]]:
        """The members from each clock on, over this block; after it, none until the next.

        A replica that is done is not listed: its rounds are applied, except on a shard that lost them.
        """
        parts = {replica: part.clocks for replica, part in self._block.items() if not part.done}
        edges = sorted({self._block_start, self.clock, *(clocks.stop for clocks in parts.values())})
        if self.turns:
            edges = list(range(self._block_start, self.clock + 1))
        return [(edge, sorted(replica for replica, clocks in parts.items() if edge in clocks)) for edge in edges]
