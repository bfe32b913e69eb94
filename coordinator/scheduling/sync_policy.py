"""Interface of the synchronization policies: which replica gets a lease of data when, and how far it may be ahead.

    free running        each replica gets the next lease when it requests one
    bounded staleness   the same, and the shards block a replica that is more than N + 1 clocks ahead of the slowest
    synchronous         leases are granted in blocks, and all replicas advance clock by clock
    groups              leases are granted in blocks to workers that exchange among themselves
    batch method        no leases: each pass over a batch is divided into bundles

A policy that lets the shards order the replicas by clock has members, which the shards receive before the leases that
depend on them. No clock, no socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease

from ..core.effects import Action, SetMembership
from ..core.messages import BundleLease, EvaluationLease, GroupLease, Wait, WorkRequest

RETRY_S = 0.05
"""Seconds before a free-running replica retries: the release, failure or end that it waits for is not urgent."""
LOCKSTEP_RETRY_S = 0.02
"""Seconds before a replica in lockstep retries whose request is not held; short, as all wait for the slowest."""


class Settled(NamedTuple):
    """Outcome of a replica's participation in a block, beyond what it had reported."""

    replica: int
    pushes: int
    samples: int
    lost: int


class SyncPolicy(ABC):
    """Policy of one job; the defaults are those of a policy without blocks and without members at the shards.

    Attributes
    ----------
    section
        Key of its state in the persisted state of the training.
    retry_s
        Seconds after which a replica without work retries.
    leases_are_pushed
        Whether the holder of a lease pushes each of its mini-batches to the shards, so that their ledgers count them.
    waits_at_shards
        Whether replicas wait at the shards for the slowest: then the waiting replicas report a stalled one.
    holds_requests
        Whether a request that finds no work can be held until `offer` changes; else the replica retries.
    clock
        One past the last clock that a granted lease covers; 0 without clocks.
    member_epoch
        Number of the current membership.
    ended_generation
        The highest group generation that no member needs to wait for.
    """

    section: ClassVar[str] = "dial"
    retry_s: ClassVar[float] = RETRY_S
    leases_are_pushed: ClassVar[bool] = True
    waits_at_shards: ClassVar[bool] = False
    holds_requests: ClassVar[bool] = False
    clock: int = 0
    member_epoch: int = 0
    ended_generation: int = 0

    def set_layout(self, layout: Layout) -> None:
        """Set the model's layout, before the first action; repeated with each replica that joins, and at a takeover."""

    # -- leases ------------------------------------------------------------------------------------------

    @abstractmethod
    def held(self, request: WorkRequest) -> DataLease | GroupLease | Wait | None:
        """The lease that this incarnation holds and has not begun: it requests again because the reply was lost.

        None: it has done its last one, which is recorded.
        """

    @abstractmethod
    def request_lease(
        self, request: WorkRequest, living: Collection[int], now_s: float
    ) -> DataLease | BundleLease | Wait | None:
        """A new lease for an incarnation that holds none; None where it gets one with the next block, or no more.

        `living`: numbers of the replicas that share a pass of a batch method.
        """

    @property
    def offer(self) -> object:
        """With `holds_requests`: changes whenever a replica that found no lease may find one."""
        return None

    def without_lease(self, request: WorkRequest, work: EvaluationLease | None) -> None:
        """Record that this incarnation got no lease: an evaluation, or no work at all."""

    def advance(self, living: Mapping[int, int], read: bool = False, reading: bool = False) -> list[Action]:
        """The actions that are due: form the next block if all living replicas have requested it.

        Parameters
        ----------
        living
            Incarnation by replica.
        read
            Whether a snapshot set or an evaluation is to read the parameters from the shards.
        reading
            Whether an evaluation reads them now: they may not be overwritten.
        """
        return []

    def write_last(self, living: Mapping[int, int]) -> list[Action] | None:
        """Write steps that the shards lack, at the end of the job: the actions for it; None where none is pending."""
        return None

    @property
    def iterations(self) -> int:
        """Iterations of a batch method that are done."""
        return 0

    @property
    def ended(self) -> str:
        """Why a batch method has ended; "" while it runs, and for all other policies."""
        return ""

    @property
    def failed(self) -> str:
        """Why no more work can be assigned, which fails the job; "" while it can."""
        return ""

    @property
    def needs_all_replicas(self) -> bool:
        """Whether all replicas have to be present before the first of them is assigned work."""
        return False

    def block_of(self, lease: DataLease) -> tuple[int, tuple[int, ...]]:
        """In lockstep: samples leased before the block of a lease, and those of each of the block's leases."""
        return 0, ()

    def rounds_after(self, lease_id: int, position: int) -> int:
        """In lockstep: rounds that are over once a push has completed a lease up to a position; 0 where unknown."""
        return 0

    # -- groups ------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether the shards hold one version of all parameters, with all trained steps.

        Workers that exchange among themselves write only now and then.
        """
        return True

    @property
    def unpersisted_steps(self) -> bool:
        """Whether workers that exchange among themselves have steps that the shards lack, and are to write them."""
        return False

    def settle(self) -> Iterable[Settled]:
        """End a group's block once all its participants have ended; their outcomes."""
        return ()

    # -- end of an incarnation ---------------------------------------------------------------------------

    def replica_lost(self, incarnation: int, died: bool, now_s: float) -> None:
        """Record the end of an incarnation, which may still push: it failed, or it left."""

    def fenced(self, replica: int, incarnation: int) -> list[Action] | None:
        """Record that an incarnation can push no more; the actions that follow.

        None: its leases are settled with its block, when the other participants have reported their steps.
        """
        return []

    # -- members at the shards ---------------------------------------------------------------------------

    def membership(self) -> SetMembership | None:
        """The members by clock, as sent to the shards; None where shards block no replica."""
        return None

    def membership_changes(self) -> list[Action]:
        """The membership update for the shards, once after each change that requests made."""
        return []

    def shards_acknowledged(self, member_epoch: int, clock: int) -> None:
        """Record that all shards have the members of this epoch; `clock`: the highest that was pushed to any."""

    def suspend(self) -> bool:
        """Discard the work under way where all shards are to return to a set; False where shards are independent."""
        return False

    def shard_recovered(self) -> list[Action]:
        """Record that a shard is available again, with less state than it had; the membership update that follows."""
        return self.membership_changes()

    # -- snapshot sets and coordinator failover ----------------------------------------------------------

    def resume(self, clock: int, member_epoch: int) -> None:
        """Continue at the clock and the member epoch of a snapshot set."""

    def state(self) -> dict[str, Any] | None:
        """The complete state, JSON-serialisable; None: it has none."""
        return None

    def restore(self, state: Any) -> None:
        """Restore the state of another coordinator."""
