"""Training data handed out as ranges of each epoch's permutation. No clock, no socket.

A lease is done when all its pushes are acknowledged. When its holder dies, the shards' ledgers say how many of its
pushes were applied; the rest of the range goes back to the pool. So nothing is skipped, and at most one push, which
some segments had and others had not, is trained twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from dbelief.work import Cadence, Lease


@dataclass
class Outstanding:
    """A lease and who holds it."""

    lease: Lease
    replica: int
    incarnation: int
    pushes: int = 0  # acknowledged, as far as its holder told


@dataclass
class Leases:
    """The pool of one job's data.

    Attributes
    ----------
    epoch_samples
        Samples in an epoch.
    total
        Samples after which no more are leased.
    size
        Samples in a full lease.
    """

    epoch_samples: int
    total: int
    size: int
    cadence: Cadence
    epoch: int = 0
    position: int = 0
    leased: int = 0
    done: int = 0
    next_id: int = 1
    returned: deque[tuple[int, int, int]] = field(default_factory=deque)
    outstanding: dict[int, Outstanding] = field(default_factory=dict)
    _finished_since_set: list[Outstanding] = field(default_factory=list)

    def take(
        self,
        replica: int,
        incarnation: int,
        first_sequence: int,
        at_most: int | None = None,
        clock: int = 0,
        member_epoch: int = 0,
    ) -> Lease | None:
        """Lease the next range, returned ones first; None when nothing is left (or `at_most` is 0)."""
        room = min(self.size, self.total - self.leased, self.size if at_most is None else at_most)
        if room <= 0:
            return None
        epoch, start, stop = self._next_range(room)
        lease = Lease(self.next_id, epoch, start, stop, first_sequence, self.leased, clock, member_epoch)
        self.next_id += 1
        self.leased += lease.samples
        self.outstanding[lease.id] = Outstanding(lease, replica, incarnation)
        return lease

    def _next_range(self, room: int) -> tuple[int, int, int]:
        if self.returned:
            epoch, start, stop = self.returned.popleft()
            if stop - start > room:
                self.returned.appendleft((epoch, start + room, stop))
                stop = start + room
            return epoch, start, stop
        if self.position == self.epoch_samples:
            self.epoch, self.position = self.epoch + 1, 0
        start = self.position
        self.position = min(self.epoch_samples, start + room)
        return self.epoch, start, self.position

    def acknowledge(self, lease_id: int, pushes: int) -> int:
        """Note that so many pushes of a lease are done; returns how many samples are newly done."""
        held = self.outstanding.get(lease_id)
        if held is None or pushes <= held.pushes:
            return 0
        samples = held.lease.samples
        before = self.cadence.samples_in(samples, held.pushes)
        now = self.cadence.samples_in(samples, pushes)
        held.pushes = pushes
        self.done += now - before
        if now == samples:
            del self.outstanding[lease_id]
            self._finished_since_set.append(held)
        return now - before

    def give_back(self, incarnation: int, lowest: int, highest: int) -> tuple[int, int]:
        """Return what a dead life has not done.

        Parameters
        ----------
        lowest, highest
            Numbers of its last push that every segment, and that some segment, has applied.

        Returns
        -------
        tuple
            Samples newly known to be done, and pushes that will be trained twice (0 or 1).
        """
        newly = twice = 0
        for held in [h for h in self.outstanding.values() if h.incarnation == incarnation]:
            lease = held.lease
            pushes = self.cadence.pushes(lease.samples)
            applied = max(0, min(pushes, lowest - lease.first_sequence + 1))
            newly += self.acknowledge(lease.id, applied)
            if lease.id not in self.outstanding:
                continue
            done = self.cadence.samples_in(lease.samples, held.pushes)
            self.returned.append((lease.epoch, lease.start + done, lease.stop))
            self.leased -= lease.samples - done
            del self.outstanding[lease.id]
            # A push is on its way twice where some segment applied a number of this lease that not all have.
            twice += max(lowest, lease.first_sequence - 1) < min(highest, lease.first_sequence + pushes - 1)
        return newly, twice

    @property
    def exhausted(self) -> bool:
        """Nothing is left to lease, now; a death may return some."""
        return self.leased >= self.total

    @property
    def finished(self) -> bool:
        """Everything is leased and acknowledged."""
        return self.exhausted and not self.outstanding

    # -- snapshots ---------------------------------------------------------------------------------------

    def begin_set(self) -> None:
        """A snapshot set begins: leases that end from now on may not be in it."""
        self._finished_since_set.clear()

    def state(self) -> dict[str, Any]:
        """All that a snapshot set must hold, as of now, while the shards wrote since `begin_set`."""
        held = [*self._finished_since_set, *self.outstanding.values()]
        return {
            "epoch": self.epoch,
            "position": self.position,
            "next_id": self.next_id,
            "leased": self.leased,
            "done": self.done,
            "returned": list(self.returned),
            "held": [[asdict(h.lease), h.replica, h.incarnation, h.pushes] for h in held],
        }

    def restore(self, state: dict[str, Any], ledgers: dict[int, tuple[int, int]]) -> int:
        """Go on from a set's state and the ledgers in it (lowest, highest by incarnation); returns pushes doubled."""
        self.epoch, self.position = state["epoch"], state["position"]
        self.next_id, self.leased, self.done = state["next_id"], state["leased"], state["done"]
        self.returned = deque((e, a, b) for e, a, b in state["returned"])
        twice = 0
        for lease_fields, replica, incarnation, pushes in state["held"]:
            lease = Lease(**lease_fields)
            self.done -= self.cadence.samples_in(lease.samples, pushes)
            self.outstanding[lease.id] = Outstanding(lease, replica, incarnation)
        for incarnation in {h.incarnation for h in self.outstanding.values()}:
            twice += self.give_back(incarnation, *ledgers.get(incarnation, (0, 0)))[1]
        return twice
