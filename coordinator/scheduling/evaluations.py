"""Evaluations: asked for, leased to one replica each, and the best one's parameters kept. No clock, no socket.

asked --take--> given --told--> over, or keeping --kept--> over
  ^---------------'  its replica died; from `keeping` only once that life is fenced, for until then it may still
  ^------------------------------------ write the very vector that the next one would be kept under
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dbelief.core.push import PARAMETERS

from ..core.progress import Best
from ..core.states import EvaluationLease


class Evaluations:
    """The evaluations of one job."""

    def __init__(self) -> None:
        self._asked: deque[tuple[str, str]] = deque()
        self._given: dict[int, tuple[EvaluationLease, int]] = {}  # lease id -> (lease, incarnation)
        self._keeping: dict[int, tuple[Best, int]] = {}

    @property
    def under_way(self) -> bool:
        """Whether a replica evaluates, or stores what it evaluated."""
        return bool(self._given or self._keeping)

    @property
    def given(self) -> bool:
        """Whether a replica evaluates."""
        return bool(self._given)

    @property
    def asked(self) -> bool:
        """Whether one waits for a replica."""
        return bool(self._asked)

    @property
    def busy(self) -> bool:
        """Whether anything is not over."""
        return self.asked or self.under_way

    def ask(self, set_name: str, vector: str) -> None:
        """Want a named vector evaluated on a data set."""
        self._asked.append((set_name, vector))

    def clear(self) -> None:
        """Want nothing any more; what is given stays."""
        self._asked.clear()

    def held(self, incarnation: int) -> EvaluationLease | None:
        """What this life was given already: it asks again because the answer was lost."""
        return next((lease for lease, owner in self._given.values() if owner == incarnation), None)

    def take(self, incarnation: int, lease_id: int, samples: int) -> EvaluationLease | None:
        """Lease the next evaluation; None where nothing is asked for."""
        if not self._asked:
            return None
        lease = EvaluationLease(lease_id, *self._asked.popleft(), samples)
        self._given[lease_id] = (lease, incarnation)
        return lease

    def complete(self, lease_id: int, incarnation: int) -> EvaluationLease | None:
        """Take an outcome in; the lease, or None where it is not this life's (any more)."""
        lease, owner = self._given.get(lease_id, (None, 0))
        if lease is None or owner != incarnation:
            return None
        del self._given[lease_id]
        return lease

    def keep(self, lease_id: int, incarnation: int, best: Best) -> None:
        """Wait until the parameters of an evaluation are stored under their name."""
        self._keeping[lease_id] = (best, incarnation)

    def storage_name(self, lease_id: int, incarnation: int) -> str:
        """The name that this life is to store an evaluation's parameters under, "" for none."""
        best, owner = self._keeping.get(lease_id, (None, 0))
        return best.vector if best is not None and owner == incarnation else ""

    def stored(self, lease_id: int) -> Best | None:
        """The parameters lie whole on the shards; what they reached."""
        best, _ = self._keeping.pop(lease_id, (None, 0))
        return best

    def forget_vectors(self) -> None:
        """Named vectors may be gone: what is being kept is not, and what was to be read from them is not asked."""
        self._keeping.clear()
        self._asked = deque(asked for asked in self._asked if asked[1] == PARAMETERS)
        self._given = {n: (lease, own) for n, (lease, own) in self._given.items() if lease.vector == PARAMETERS}

    def requeue_all(self) -> None:
        """What is given reads numbers that will be others: it is asked for anew, and what comes of it forgotten."""
        self._asked.extendleft((lease.set, lease.vector) for lease, _ in self._given.values())
        self._given.clear()

    def state(self) -> dict[str, Any]:
        """All of it; JSON holds it."""
        return {
            "asked": list(self._asked),
            "given": [[asdict(lease), owner] for lease, owner in self._given.values()],
            "keeping": [[n, asdict(best), owner] for n, (best, owner) in self._keeping.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over from another coordinator."""
        self._asked = deque((name, vector) for name, vector in state["asked"])
        self._given = {fields["id"]: (EvaluationLease(**fields), owner) for fields, owner in state["given"]}
        self._keeping = {n: (Best(**fields), owner) for n, fields, owner in state["keeping"]}

    def holder_lost(self, incarnation: int) -> None:
        """A life is over: what it evaluated is for another."""
        for lease_id, (lease, owner) in list(self._given.items()):
            if owner == incarnation:
                del self._given[lease_id]
                self._asked.appendleft((lease.set, lease.vector))

    def fenced(self, incarnation: int, again: bool) -> None:
        """A life can write nothing more: what it had not stored whole is lost, and evaluated `again` if wanted."""
        for lease_id, (_, owner) in list(self._keeping.items()):
            if owner == incarnation:
                del self._keeping[lease_id]
                if again:
                    self._asked.appendleft(("validation", PARAMETERS))
