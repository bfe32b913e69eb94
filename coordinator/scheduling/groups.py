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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dbelief.core.lease import DataLease
from dbelief.core.push import LedgerRow

from ..core.effects import Action
from ..core.ledgers import Applied
from ..core.messages import EvaluationLease, GroupLease, WorkRequest
from .leases import Leases
from .sync_policy import LOCKSTEP_RETRY_S, Settled, SyncPolicy

MAX_FRUITLESS_BLOCKS = 5
"""Limit of consecutive blocks without a step and without a failed member."""


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

    def row(self) -> dict[str, Any]:
        """Its fields, JSON-serialisable. `dataclasses.asdict` copies deeply, at 40 times the cost, in every commit."""
        return {**vars(self), "lease": vars(self.lease)}


@dataclass
class GroupPolicy(SyncPolicy):
    """The current block.

    Attributes
    ----------
    steps
        Steps done in all blocks before the current one.
    generation
        Of the group for which the current or last block was made; 0 before the first.
    ended_generation
        The highest generation that no member needs to wait for: it has lost a member, or broke.
    blocks
        Number of blocks formed.
    written
        Steps that are contained in the parameters on the shards.
    """

    section: ClassVar[str] = "groups"
    retry_s: ClassVar[float] = LOCKSTEP_RETRY_S
    leases_are_pushed: ClassVar[bool] = False
    holds_requests: ClassVar[bool] = True

    leases: Leases
    steps: int = 0
    generation: int = 0
    ended_generation: int = 0
    blocks: int = 0
    failed: str = ""
    written: int = 0
    _asking: dict[int, int] = field(default_factory=dict)  # incarnation by replica
    _block: dict[int, GroupParticipant] = field(default_factory=dict)  # by replica, in the order of ranks
    _incarnations: list[int] = field(default_factory=list)  # of this generation, by rank
    _unwritten: dict[int, int] = field(default_factory=dict)  # pushes in steps that the shards lack, by replica
    _holders: set[int] = field(default_factory=set)  # incarnations that have those steps
    _fruitless: int = 0  # consecutive blocks without a step and without a failed member
    _why: str = ""

    def held(self, request: WorkRequest) -> GroupLease | None:
        """A replica's lease in the block, unless it was its last one; else its request for the next is recorded."""
        part = self._block.get(request.replica)
        if part is not None and part.incarnation == request.incarnation and not part.ended:
            if request.last_lease != part.lease.id:
                part.given = True
                members = tuple((number, one.lease.samples) for number, one in self._block.items())
                first = next(iter(self._block.values()))
                return GroupLease(part.lease, self.generation, members, first.lease.samples_before, self.written)
            part.done, part.broken = request.steps, request.broken_generation == self.generation
            if part.broken:
                self.ended_generation, self._why = request.broken_generation, request.broken_reason
        self._asking[request.replica] = request.incarnation
        return None

    def request_lease(self, request: WorkRequest, living: Collection[int], now_s: float) -> None:
        """See `SyncPolicy.request_lease`: the request is recorded already."""

    @property
    def offer(self) -> int:
        """See `SyncPolicy.offer`."""
        return self.blocks

    def without_lease(self, request: WorkRequest, work: EvaluationLease | None) -> None:
        """Withdraw the request of a replica that got an evaluation; it will request again."""
        if work is not None:
            self._asking.pop(request.replica, None)

    @property
    def needs_all_replicas(self) -> bool:
        """See `SyncPolicy.needs_all_replicas`."""
        return not self.blocks

    @property
    def at_rest(self) -> bool:
        """See `SyncPolicy.at_rest`."""
        return not (self._block or self.unpersisted_steps)

    @property
    def unpersisted_steps(self) -> bool:
        """See `SyncPolicy.unpersisted_steps`."""
        return self.written < self.steps

    def write_last(self, living: Mapping[int, int]) -> list[Action] | None:
        """See `SyncPolicy.write_last`: by a block without data."""
        return self._form_block(living, data=False) if self.unpersisted_steps and living else None

    def advance(self, living: Mapping[int, int], read: bool = False, reading: bool = False) -> list[Action]:
        """See `SyncPolicy.advance`; no block is formed before a read that is possible now, or without work."""
        return [] if read and self.at_rest else self._form_block(living, data=True)

    def _form_block(self, living: Mapping[int, int], data: bool) -> list[Action]:
        asking = all(self._asking.get(replica) == incarnation for replica, incarnation in living.items())
        if not (living and asking) or self._block or self.failed:
            return []
        at_most = None if data else 0
        if not self.leases.room(at_most) and not self.unpersisted_steps:
            return []
        for replica, incarnation in sorted(living.items()):
            # A replica for which no data is left takes part without: it may be the only one that has the last step.
            lease = self.leases.grant(replica, incarnation, at_most, self.steps)
            self._block[replica] = GroupParticipant(incarnation, lease or self.leases.empty(self.steps))
        self._asking.clear()
        self.blocks += 1
        incarnations = [part.incarnation for part in self._block.values()]
        self.generation += self.ended_generation == self.generation or incarnations != self._incarnations
        self._incarnations = incarnations
        return []

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """Record the end of an incarnation, which may still write: the others need not wait for it."""
        if any(part.incarnation == incarnation and not part.ended for part in self._block.values()):
            self.ended_generation = self.generation
        self._asking = {replica: asked for replica, asked in self._asking.items() if asked != incarnation}
        self._holders.discard(incarnation)

    def fenced(self, replica: int, incarnation: int) -> list[Action] | None:
        """See `SyncPolicy.fenced`."""
        self._holders.discard(incarnation)  # its block may have ended between its removal and its fence
        part = self._block.get(replica)
        if part is None or part.incarnation != incarnation:
            return []
        part.over = True
        return None

    def settle(self) -> list[Settled]:
        """End the block once all its participants have ended: count the group's steps, and return the rest."""
        if not self._block:
            return self._lost_with_holders()
        if not all(part.ended for part in self._block.values()):
            return []
        done = max(self._done(part) for part in self._block.values())
        survivors = {part.incarnation for part in self._block.values() if not part.over}
        # Without a step, the participants may not have got the state of those who had it.
        self._holders = survivors if done else survivors & self._holders
        self.steps += done
        result_written = self._result_written()
        self._fruitless = 0 if done or any(part.over for part in self._block.values()) else self._fruitless + 1
        if self._fruitless >= MAX_FRUITLESS_BLOCKS:
            self.failed = f"the workers cannot reach each other, {self._fruitless} times in a row: {self._why}"
        settled = []
        for replica, part in self._block.items():
            own, reported = min(done, self.leases.steps(part.lease.samples)), self._reported(part)
            position = min(own * self.leases.batch, part.lease.samples)
            last = LedgerRow(lease=part.lease.id, position=position)
            samples = self.leases.revoke(part.incarnation, Applied(last)).samples
            settled.append(Settled(replica, own - reported, samples, 0))
            self._unwritten[replica] = self._unwritten.get(replica, 0) + own
        self._block.clear()
        if result_written:
            self.written = self.steps
            self._unwritten.clear()
        return [*settled, *self._lost_with_holders()]

    def _lost_with_holders(self) -> list[Settled]:
        """Count the steps that the shards lack as lost, once all workers that have them have ended."""
        if self._holders or not self.unpersisted_steps:
            return []
        lost = [Settled(replica, 0, 0, pushes) for replica, pushes in self._unwritten.items() if pushes]
        self.written = self.steps
        self._unwritten.clear()
        return lost

    def _result_written(self) -> bool:
        """Whether the shards have the block's result: rank 0 reports its last step only after it has written."""
        first = next(iter(self._block.values()))
        if first.done is not None:
            return not first.broken
        return bool(first.lease.samples) and first.lease.id not in self.leases.outstanding

    def _done(self, part: GroupParticipant) -> int:
        """Steps of the group, as far as this participant reported."""
        return max(self._reported(part), part.done or 0)

    def _reported(self, part: GroupParticipant) -> int:
        """Steps of its lease that a participant reported."""
        held = self.leases.outstanding.get(part.lease.id)
        return self.leases.steps(part.lease.samples if held is None else held.position)

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "clock": self.steps,
            "generation": self.generation,
            "ended": self.ended_generation,
            "blocks": self.blocks,
            "written": self.written,
            "asking": list(self._asking.items()),
            "block": [[replica, part.row()] for replica, part in self._block.items()],
            "lives": self._incarnations,
            "unwritten": list(self._unwritten.items()),
            "holders": sorted(self._holders),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator."""
        self.steps, self.generation, self.ended_generation = state["clock"], state["generation"], state["ended"]
        self.blocks, self._incarnations, self.written = state["blocks"], list(state["lives"]), state["written"]
        self._unwritten, self._holders = dict(state["unwritten"]), set(state["holders"])
        self._asking = dict(state["asking"])
        self._block = {
            n: GroupParticipant(**{**part, "lease": DataLease(**part["lease"])}) for n, part in state["block"]
        }
