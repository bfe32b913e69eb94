"""Blocks of leases in lockstep, for `staleness: 0`. No clock, no socket.

Synchronous replicas must agree on who takes part in which clock before any of them computes it. So leases are made
in blocks: when every living replica asks for work, each gets a lease that begins at the same clock, and the shards
are told who takes part from which clock on before the leases are handed out. A replica whose lease is shorter drops
out at its end; those who join wait for the next block; one that dies drops out of the clocks that are left.

Where replicas take turns, a block's clocks go round: the first replica has the first clock, the second the next, and so
on; the shards hold a clock's only member back until the one before has pushed.

Numbers of the dead are given out again, so that everything here is held against the incarnation too: an old life's
end must not take the new one out of its block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dbelief.core.lease import DataLease

from ..core.states import Wait
from .leases import Leases

ASK_AGAIN_S = 0.02
"""Replicas in lockstep wait for the slowest of them: an answer must not cost them much more."""


@dataclass
class RoundParticipant:
    """One replica's part in the block; `end` is one past its last clock, `done` when it asked for more work."""

    incarnation: int
    lease: DataLease
    end: int
    given: bool = False
    done: bool = False

    @property
    def clocks(self) -> range:
        """The clocks it takes part in."""
        return range(self.lease.clock, self.end, self.lease.stride)


@dataclass
class SynchronousPolicy:
    """The present block and the clocks it covers.

    Attributes
    ----------
    turns
        Each clock is one replica's.
    clock
        The first clock after the block.
    blocks
        How many were formed in this life of the coordinator.
    armed
        The shards know the members of this block.
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
    _told: int = 0  # member epoch that shards are being told of, where they are told in mid-block

    def held(self, replica: int, incarnation: int, next_sequence: int) -> DataLease | Wait | None:
        """A replica's part in the block, where it has not begun it: also again, for an answer may be lost."""
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
        """This life asks for work, and no part is held for it: a part that it had is done."""
        part = self._block.get(replica)
        if part is not None and part.incarnation == incarnation and part.given and not part.done:
            part.done = True
            self.member_epoch += self._retold

    def shard_back(self) -> None:
        """A shard has lost rounds of this block: it must not wait for those who are done and will not call it again."""
        self._retold = True
        self.member_epoch += 1

    def membership_changed(self) -> bool:
        """Whether, in mid-block, the shards are to be told of the members; each time once."""
        told, self._told = self._told, self.member_epoch
        return self._retold and told != self.member_epoch

    def ask(self, replica: int, incarnation: int, next_sequence: int) -> None:
        """Note that a replica wants to be in the next block."""
        self._asking[replica] = (incarnation, next_sequence)

    def complete(self, living: Mapping[int, int]) -> bool:
        """Whether everyone alive (incarnation by replica) asks, and the last block has been handed out."""
        asking = all(self._asking.get(replica, (0, 0))[0] == life for replica, life in living.items())
        return bool(living) and asking and all(part.given for part in self._block.values())

    def form(self, living: Mapping[int, int], leases: Leases) -> bool:
        """Make the next block; False where no data is left."""
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
        """Take a life out of the clocks that are left; whether the shards must be told."""
        if self._asking.get(replica, (0, 0))[0] == incarnation:
            del self._asking[replica]
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation:
            return False
        del self._block[replica]
        self.member_epoch += 1
        return True

    def state(self) -> dict[str, Any]:
        """All of it; JSON holds it."""
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
        """Take over from another coordinator; the shards are told anew."""
        self.clock, self.member_epoch, self.blocks = state["clock"], state["member_epoch"], state["blocks"]
        self._block_start, self._retold = state["block_start"], state["retold"]
        self._asking = {replica: (life, sequence) for replica, life, sequence in state["asking"]}
        self._block = {
            n: RoundParticipant(**{**part, "lease": DataLease(**part["lease"])}) for n, part in state["block"]
        }
        self.shards_informed = not self._block

    def membership(self) -> list[tuple[int, list[int]]]:
        """Who takes part from which clock on, over this block; after it, nobody until the next.

        Who is done needs no naming: its rounds are applied, wherever they were not lost.
        """
        parts = {replica: part.clocks for replica, part in self._block.items() if not part.done}
        edges = sorted({self._block_start, self.clock, *(clocks.stop for clocks in parts.values())})
        if self.turns:
            edges = list(range(self._block_start, self.clock + 1))
        return [(edge, sorted(replica for replica, clocks in parts.items() if edge in clocks)) for edge in edges]
