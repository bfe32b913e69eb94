"""Blocks of leases for workers that form a group and exchange among themselves. No clock, no socket.

When every living replica asks for work, all get leases that begin at the same step, from neighbouring ranges of the
epoch, and are told of each other: where each listens, how many samples each has. Whoever lives is in the block, if
need be without data. A block made of other lives than the one before, or after one that broke, is a new generation: its
members connect anew, and those who lack the last step take it from one who has it.

A step is made of everybody's mini-batch, so that whoever has done so many steps of a block knows that all have
contributed as many. When one dies the others come to no next step, and ask again, saying how many they have done. Once
all have asked, or are fenced, the highest of these numbers is what all leases of the block have done; the rest of each
goes back. So no step is counted twice, and none made twice. The first of a group writes what it has to the shards at a
block's end; if it is gone by then, another block follows, without data if none is left.
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
"""Blocks in a row that may come to no step though nobody died."""


class Settled(NamedTuple):
    """What a replica's part in a block has come to, beyond what it had told."""

    replica: int
    pushes: int
    samples: int
    lost: int


@dataclass
class GroupParticipant:
    """One replica's part in the block.

    `done` are the steps that the group has made, None until it asks for more; `broken` where there came no next one;
    `over` once its life is fenced.
    """

    incarnation: int
    lease: DataLease
    given: bool = False
    done: int | None = None
    broken: bool = False
    over: bool = False

    @property
    def ended(self) -> bool:
        """Whether no more of it is to come."""
        return self.done is not None or self.over


@dataclass
class GroupPolicy:
    """The present block.

    Attributes
    ----------
    clock
        Steps that all blocks before the present one have done.
    generation
        Of the group that the block is, or the last one was, made for; 0 before the first.
    ended
        The highest generation that nobody need wait for: it has lost a member, or broke.
    blocks
        How many were formed.
    failed
        Why there is no use in forming more; "" while there is.
    written
        Steps that are in what the shards hold.
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
    _in_vain: int = 0  # blocks in a row that came to no step, and nobody died
    _why: str = ""

    def held(self, replica: int, incarnation: int, last: int) -> GroupLease | None:
        """A replica's part in the block, unless it was its `last` one: also again, for an answer may be lost."""
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation or part.ended or last == part.lease.id:
            return None
        part.given = True
        members = tuple((number, one.lease.samples) for number, one in self._block.items())
        first = next(iter(self._block.values()))
        return GroupLease(part.lease, self.generation, members, first.lease.samples_before, self.written)

    def request_work(self, replica: int, incarnation: int, next_sequence: int, asks: WorkRequest = NO_REQUEST) -> None:
        """This life wants more work: its part in the block, if it had one, is done, as far as the group came."""
        part = self._block.get(replica)
        if part is not None and part.incarnation == incarnation and part.given and not part.ended:
            part.done, part.broken = asks.steps, asks.broken == self.generation
            if part.broken:
                self.ended, self._why = asks.broken, asks.why
        self._asking[replica] = (incarnation, next_sequence)

    def busy(self, replica: int) -> None:
        """This replica was given something else to do: it will ask again."""
        self._asking.pop(replica, None)

    @property
    def idle(self) -> bool:
        """Whether no block is under way: what the shards hold stays as it is."""
        return not self._block

    @property
    def unpersisted_steps(self) -> bool:
        """Whether the workers have made steps that the shards do not know of."""
        return self.written < self.clock

    def complete(self, living: Mapping[int, int]) -> bool:
        """Whether no block is under way, and everyone alive (incarnation by replica) asks for the next."""
        asking = all(self._asking.get(replica, (0, 0))[0] == life for replica, life in living.items())
        return bool(living) and asking and self.idle and not self.failed

    def form(self, living: Mapping[int, int], leases: Leases, data: bool = True) -> None:
        """Make the next block, if there is data for one, and `data` may be handed out, or something to be written."""
        at_most = None if data else 0
        if not leases.room(at_most) and not self.unpersisted_steps:
            return
        for replica, incarnation in sorted(living.items()):
            # Where no data is left for somebody, it takes part with none: the last step may be known to it alone.
            first = self._asking[replica][1]
            lease = leases.grant(replica, incarnation, first, at_most, self.clock) or leases.empty(first, self.clock)
            self._block[replica] = GroupParticipant(incarnation, lease)
        self._asking.clear()
        self.blocks += 1
        lives = [part.incarnation for part in self._block.values()]
        self.generation += self.ended == self.generation or lives != self._lives
        self._lives = lives

    def gone(self, incarnation: int) -> None:
        """A life is over, though it may still write: the others need not wait for it."""
        if any(part.incarnation == incarnation and not part.ended for part in self._block.values()):
            self.ended = self.generation
        self._asking = {replica: asked for replica, asked in self._asking.items() if asked[0] != incarnation}

    def fenced(self, replica: int, incarnation: int) -> bool:
        """A life can write nothing more; whether its lease is to be settled with the block."""
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation:
            return False
        part.over = True
        return True

    def settle(self, leases: Leases) -> list[Settled]:
        """End the block, once all its parts have: leases are done as far as the group came, and the rest goes back."""
        if self.idle or not all(part.ended for part in self._block.values()):
            return []
        done = max(self._done(part, leases) for part in self._block.values())
        survivors = any(not part.over for part in self._block.values())
        self.clock += done
        if self._writes_told(leases) or not survivors:  # where all are gone, what the shards hold is what there is
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
        """Whether the shards have what the block came to: rank 0 tells of its last step only when it has written."""
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
        """All of it; JSON holds it."""
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
        """Take over from another coordinator."""
        self.clock, self.generation, self.ended = state["clock"], state["generation"], state["ended"]
        self.blocks, self._lives, self.written = state["blocks"], list(state["lives"]), state["written"]
        self._asking = {replica: (life, sequence) for replica, life, sequence in state["asking"]}
        self._block = {
            n: GroupParticipant(**{**part, "lease": DataLease(**part["lease"])}) for n, part in state["block"]
        }
