"""Blocks of leases for workers that form a group and exchange among themselves. No clock, no socket.

When every living replica has requested work, all get leases that begin at the same step, from neighbouring ranges of
the epoch. Each lease lists the members: where each listens and how many samples it has. Every living replica is in the
block, if necessary without data. A block with other incarnations than the one before, or after one that broke, is a new
generation: its members connect anew, and those that lack the last step receive it from a member that has it.

A step contains a mini-batch of every member, so when a member has done a number of steps of a block, all have
contributed as many. When a member fails, the others cannot complete the next step. They request work again and report
how many steps they have done. Once all have requested or are fenced, the highest of these numbers is what all leases of
the block have done; the rest of each is returned. So no step is counted twice, and none is made twice. The first member
writes its parameters to the shards at the end of a block. If it is gone by then, another block follows, without data
if none is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dbelief.core.lease import DataLease

from ..core.states import GroupLease
from ..sandblaster.pass_scheduler import NO_REQUEST, WorkRequest
from .leases import Leases

IN_VAIN_AT_MOST = 5
"""Limit of consecutive blocks without a step and without a failed member."""


class Settled(NamedTuple):
    """Outcome of a replica's participation in a block, beyond what it had reported."""

    replica: int
    pushes: int
    samples: int
    lost: int


@dataclass
class GroupParticipant:
    """One replica's participation in the block.

    `done` is the number of steps that the group has made, None until the replica requests more work. `broken`: the
    group could not complete the next step. `over`: the incarnation is fenced.
    """

    incarnation: int
    lease: DataLease
    given: bool = False
    done: int | None = None
    broken: bool = False
    over: bool = False

    @property
    def ended(self) -> bool:
        """Whether it sends no more results."""
        return self.done is not None or self.over


@dataclass
class GroupPolicy:
    """The current block.

    Attributes
    ----------
    clock
        Steps done in all blocks before the current one.
    generation
        Of the group for which the current or last block was made; 0 before the first.
    ended
        The highest generation that no member needs to wait for: it has lost a member, or broke.
    blocks
        Number of blocks formed.
    failed
        Why no more blocks can be formed; "" while they can.
    written
        Steps that are contained in the parameters on the shards.
    """

    clock: int = 0
    generation: int = 0
    ended: int = 0
    blocks: int = 0
    failed: str = ""
    written: int = 0
    _asking: dict[int, tuple[int, int]] = field(default_factory=dict)  # replica -> (incarnation, next sequence)
    _block: dict[int, GroupParticipant] = field(default_factory=dict)  # by replica, in the order of ranks
    _lives: list[int] = field(default_factory=list)  # incarnations of this generation, by rank
    _in_vain: int = 0  # consecutive blocks without a step and without a failed member
    _why: str = ""

    def held(self, replica: int, incarnation: int, last: int) -> GroupLease | None:
        """A replica's lease in the block, unless it was its `last` one; repeatable, because a reply may be lost."""
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation or part.ended or last == part.lease.id:
            return None
        part.given = True
        members = tuple((number, one.lease.samples) for number, one in self._block.items())
        first = next(iter(self._block.values()))
        return GroupLease(part.lease, self.generation, members, first.lease.samples_before, self.written)

    def request_work(self, replica: int, incarnation: int, next_sequence: int, asks: WorkRequest = NO_REQUEST) -> None:
        """Record a request for more work: this incarnation's participation in the block, if any, is done."""
        part = self._block.get(replica)
        if part is not None and part.incarnation == incarnation and part.given and not part.ended:
            part.done, part.broken = asks.steps, asks.broken == self.generation
            if part.broken:
                self.ended, self._why = asks.broken, asks.why
        self._asking[replica] = (incarnation, next_sequence)

    def busy(self, replica: int) -> None:
        """Withdraw this replica's request, because it was assigned other work; it will request again."""
        self._asking.pop(replica, None)

    @property
    def idle(self) -> bool:
        """Whether no block is under way, so that the parameters on the shards do not change."""
        return not self._block

    @property
    def unpersisted_steps(self) -> bool:
        """Whether the workers have made steps that the shards do not have."""
        return self.written < self.clock

    def complete(self, living: Mapping[int, int]) -> bool:
        """Whether no block is under way, and every living replica (incarnation by replica) has requested the next."""
        asking = all(self._asking.get(replica, (0, 0))[0] == life for replica, life in living.items())
        return bool(living) and asking and self.idle and not self.failed

    def form(self, living: Mapping[int, int], leases: Leases, data: bool = True) -> None:
        """Form the next block, if data is left and `data` allows it, or if there are unpersisted steps."""
        at_most = None if data else 0
        if not leases.room(at_most) and not self.unpersisted_steps:
            return
        for replica, incarnation in sorted(living.items()):
            # A replica for which no data is left takes part without: it may be the only one that has the last step.
            first = self._asking[replica][1]
            lease = leases.grant(replica, incarnation, first, at_most, self.clock) or leases.empty(first, self.clock)
            self._block[replica] = GroupParticipant(incarnation, lease)
        self._asking.clear()
        self.blocks += 1
        lives = [part.incarnation for part in self._block.values()]
        self.generation += self.ended == self.generation or lives != self._lives
        self._lives = lives

    def gone(self, incarnation: int) -> None:
        """Mark the end of an incarnation, which may still write: the others need not wait for it."""
        if any(part.incarnation == incarnation and not part.ended for part in self._block.values()):
            self.ended = self.generation
        self._asking = {replica: asked for replica, asked in self._asking.items() if asked[0] != incarnation}

    def fenced(self, replica: int, incarnation: int) -> bool:
        """Mark an incarnation that can write no more; whether its lease is to be settled with the block."""
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation:
            return False
        part.over = True
        return True

    def settle(self, leases: Leases) -> list[Settled]:
        """End the block once all its participants have ended: count the group's steps, and return the rest."""
        if self.idle or not all(part.ended for part in self._block.values()):
            return []
        done = max(self._done(part, leases) for part in self._block.values())
        survivors = any(not part.over for part in self._block.values())
        self.clock += done
        if self._writes_told(leases) or not survivors:  # without survivors, only the shards have a state
            self.written = self.clock
        self._in_vain = 0 if done or any(part.over for part in self._block.values()) else self._in_vain + 1
        if self._in_vain >= IN_VAIN_AT_MOST:
            self.failed = f"the workers cannot reach each other, {self._in_vain} times in a row: {self._why}"
        settled = []
        for replica, part in self._block.items():
            own, before = min(done, leases.cadence.steps(part.lease.samples)), leases.pushes
            last = part.lease.first_sequence + own - 1
            samples, _ = leases.revoke(part.incarnation, last, last)
            settled.append(Settled(replica, leases.pushes - before, samples, 0 if survivors else own))
        self._block.clear()
        return settled

    def _writes_told(self, leases: Leases) -> bool:
        """Whether the shards have the block's result: rank 0 reports its last step only after it has written."""
        first = next(iter(self._block.values()))
        if first.done is not None:
            return not first.broken
        return bool(first.lease.samples) and first.lease.id not in leases.outstanding

    @staticmethod
    def _done(part: GroupParticipant, leases: Leases) -> int:
        held = leases.outstanding.get(part.lease.id)
        told = leases.cadence.steps(part.lease.samples) if held is None else held.pushes
        return max(told, part.done or 0)

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "clock": self.clock,
            "generation": self.generation,
            "ended": self.ended,
            "blocks": self.blocks,
            "written": self.written,
            "asking": [[replica, *asked] for replica, asked in self._asking.items()],
            "block": [[replica, asdict(part)] for replica, part in self._block.items()],
            "lives": self._lives,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator."""
        self.clock, self.generation, self.ended = state["clock"], state["generation"], state["ended"]
        self.blocks, self._lives, self.written = state["blocks"], list(state["lives"]), state["written"]
        self._asking = {replica: (life, sequence) for replica, life, sequence in state["asking"]}
        self._block = {
            n: GroupParticipant(**{**part, "lease": DataLease(**part["lease"])}) for n, part in state["block"]
        }
