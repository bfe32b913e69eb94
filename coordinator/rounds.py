"""Blocks of leases in lockstep, for `staleness: 0`. No clock, no socket.

Synchronous replicas must agree on who takes part in which clock before any of them computes it. So leases are made
in blocks: when every living replica asks for work, each gets a lease that begins at the same clock, and the shards
are told who takes part from which clock on before the leases are handed out. A replica whose lease is shorter drops
out at its end; those who join wait for the next block; one that dies drops out of the clocks that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dbelief.work import Lease

from .leases import Leases


@dataclass
class Rounds:
    """The present block and the clocks it covers."""

    clock: int = 0
    member_epoch: int = 0
    armed: bool = True  # the shards know the members of this block
    _asking: dict[int, tuple[int, int]] = field(default_factory=dict)  # replica -> (incarnation, next sequence)
    _ready: dict[int, tuple[int, Lease]] = field(default_factory=dict)  # replica -> (incarnation, its lease)
    _last_clock: dict[int, int] = field(default_factory=dict)  # replica -> one past its last clock
    _block_start: int = 0

    def ask(self, replica: int, incarnation: int, next_sequence: int) -> Lease | None:
        """Note that a replica wants work; its lease, where the block is ready."""
        if replica in self._ready:
            owner, lease = self._ready[replica]
            if not self.armed or owner != incarnation:
                return None
            del self._ready[replica]
            return lease
        self._asking[replica] = (incarnation, next_sequence)
        return None

    def complete(self, living: set[int]) -> bool:
        """Whether everyone alive asks, and the last block has been handed out."""
        return bool(living) and not self._ready and living <= set(self._asking)

    def form(self, living: set[int], leases: Leases) -> bool:
        """Make the next block; False where no data is left."""
        self._last_clock.clear()
        self._block_start = self.clock
        self.member_epoch += 1
        for replica in sorted(living):
            incarnation, next_sequence = self._asking[replica]
            lease = leases.take(
                replica, incarnation, next_sequence, clock=self._block_start, member_epoch=self.member_epoch
            )
            if lease is None:
                break
            self._ready[replica] = (incarnation, lease)
            self._last_clock[replica] = self._block_start + leases.cadence.steps(lease.samples)
        self._asking.clear()
        self.clock = max(self._last_clock.values(), default=self.clock)
        self.armed = not self._ready
        return bool(self._ready)

    def died(self, replica: int) -> bool:
        """Take a replica out of the clocks that are left; whether the shards must be told."""
        self._asking.pop(replica, None)
        self._ready.pop(replica, None)
        if self._last_clock.pop(replica, None) is None:
            return False
        self.member_epoch += 1
        return True

    def membership(self) -> list[tuple[int, list[int]]]:
        """Who takes part from which clock on, over this block; after it, nobody until the next."""
        edges = sorted({self._block_start, *self._last_clock.values(), self.clock})
        return [(edge, sorted(r for r, end in self._last_clock.items() if end > edge)) for edge in edges]
