"""Evaluations: queued, leased to one replica each, and the best one's parameters stored. No clock, no socket.

asked --take--> given --complete--> over, or keeping --stored--> over
  ^---------------'  its replica failed; from `keeping` only once that incarnation is fenced, because until then it
  ^------------------------------------ may still write the vector under which the next one would be stored

An evaluation at which `ATTEMPTS` replicas have failed in turn is over without a result: another would fail too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dbelief.core.push import PARAMETERS

from ..core.messages import EvaluationLease
from ..core.progress import Best

ATTEMPTS = 4
"""As many as a launcher starts one process."""


class Evaluations:
    """The evaluations of one job."""

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()  # by data set: replicas that failed in turn while they evaluated
        self._queue: deque[tuple[str, str]] = deque()
        self._leased: dict[int, tuple[EvaluationLease, int]] = {}  # lease id -> (lease, incarnation)
        self._storing: dict[int, tuple[Best, int]] = {}

    @property
    def under_way(self) -> bool:
        """Whether a replica evaluates, or stores the parameters of an evaluation."""
        return bool(self._leased or self._storing)

    @property
    def leased(self) -> bool:
        """Whether a replica evaluates."""
        return bool(self._leased)

    @property
    def queued(self) -> bool:
        """Whether an evaluation is queued."""
        return bool(self._queue)

    @property
    def busy(self) -> bool:
        """Whether an evaluation is queued or under way."""
        return self.queued or self.under_way

    def request(self, set_name: str, vector: str) -> None:
        """Queue an evaluation of a named vector on a data set."""
        self._queue.append((set_name, vector))

    def clear(self) -> None:
        """Empty the queue; leased evaluations stay."""
        self._queue.clear()

    def cancel(self) -> None:
        """Drop all evaluations, also the leased ones, whose outcomes are ignored; pending stores stay."""
        self._queue.clear()
        self._leased.clear()

    def held(self, incarnation: int) -> EvaluationLease | None:
        """The evaluation that this incarnation already holds: it repeats its request because the reply was lost."""
        return next((lease for lease, owner in self._leased.values() if owner == incarnation), None)

    def grant(self, incarnation: int, lease_id: int, samples: int) -> EvaluationLease | None:
        """Lease the next evaluation; None where none is queued."""
        if not self._queue:
            return None
        lease = EvaluationLease(lease_id, *self._queue.popleft(), samples)
        self._leased[lease_id] = (lease, incarnation)
        return lease

    def complete(self, lease_id: int, incarnation: int) -> EvaluationLease | None:
        """Record an outcome; the lease, or None where this incarnation does not hold it."""
        lease, owner = self._leased.get(lease_id, (None, 0))
        if lease is None or owner != incarnation:
            return None
        del self._leased[lease_id]
        del self._failed[lease.set]
        return lease

    def store(self, lease_id: int, incarnation: int, best: Best) -> None:
        """Record that this incarnation is to store the parameters of an evaluation under their name."""
        self._storing[lease_id] = (best, incarnation)

    def storage_name(self, lease_id: int, incarnation: int) -> str:
        """The name under which this incarnation is to store an evaluation's parameters, "" for none."""
        best, owner = self._storing.get(lease_id, (None, 0))
        return best.vector if best is not None and owner == incarnation else ""

    def stored(self, lease_id: int) -> Best | None:
        """The parameters are completely stored on the shards; the result that they reached."""
        best, _ = self._storing.pop(lease_id, (None, 0))
        return best

    def forget_vectors(self) -> None:
        """Drop what depends on named vectors, which may be lost: pending stores, and evaluations of such vectors."""
        self._storing.clear()
        self._queue = deque(asked for asked in self._queue if asked[1] == PARAMETERS)
        self._leased = {n: (lease, own) for n, (lease, own) in self._leased.items() if lease.vector == PARAMETERS}

    def requeue_all(self) -> None:
        """Requeue all leased evaluations: the parameters that they read will change, so their outcomes are ignored."""
        self._queue.extendleft((lease.set, lease.vector) for lease, _ in self._leased.values())
        self._leased.clear()

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {
            "asked": list(self._queue),
            "failed": self._failed,
            "given": [[asdict(lease), owner] for lease, owner in self._leased.values()],
            "keeping": [[n, asdict(best), owner] for n, (best, owner) in self._storing.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another coordinator."""
        self._queue = deque((name, vector) for name, vector in state["asked"])
        self._failed = Counter(state["failed"])
        self._leased = {fields["id"]: (EvaluationLease(**fields), owner) for fields, owner in state["given"]}
        self._storing = {n: (Best(**fields), owner) for n, fields, owner in state["keeping"]}

    def holder_lost(self, incarnation: int, died: bool) -> list[EvaluationLease]:
        """Requeue the evaluations of an incarnation that has ended; returns those at which too many have failed."""
        hopeless = []
        for lease_id, (lease, owner) in list(self._leased.items()):
            if owner != incarnation:
                continue
            del self._leased[lease_id]
            self._failed[lease.set] += died
            if self._failed[lease.set] >= ATTEMPTS:
                del self._failed[lease.set]
                hopeless.append(lease)
            else:
                self._queue.appendleft((lease.set, lease.vector))
        return hopeless

    def fenced(self, incarnation: int, again: bool) -> None:
        """Drop the pending stores of a fenced incarnation; with `again`, queue their evaluations anew."""
        for lease_id, (_, owner) in list(self._storing.items()):
            if owner == incarnation:
                del self._storing[lease_id]
                if again:
                    self._queue.appendleft(("validation", PARAMETERS))
