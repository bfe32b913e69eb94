"""L-BFGS directions from inner products alone: scalars, and the linear combinations of vectors to compute.

Every vector of the method (the pairs s and y, the gradient, the direction) is kept by the shards. Each step runs
two programs. The first makes the new pair and returns its inner products with all other vectors. From them, in the
coordinates of (k times s, k times y, gradient), the two-loop recursion is arithmetic on 2k + 1 numbers. The second
program combines the direction. That is two round trips where the recursion on vectors takes 2k.

Pairs are stored in m + 1 slots (s.0, y.0 to s.m, y.m), of which one is free for the next. So no vector is moved, and
every program is idempotent: another coordinator can run the last one again.

Source: Nocedal 1980 for the recursion; Chen, Wang and Zhou 2014 for the form without vectors; DistBelief section 4.2
and appendix for the division of the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dbelief.core.vector_program import Operation, copy, dots, lincomb

GRADIENT, PREVIOUS, DIRECTION = "gradient", "previous", "direction"


@dataclass
class Lbfgs:
    """The state of the method between two steps; a few numbers, whatever the length of the vectors.

    Attributes
    ----------
    history
        Maximum of kept pairs, m.
    curvature
        A pair is used if y.s > curvature |s| |y|: below, the difference of the gradients is not informative.
    gram
        (2k + 1, 2k + 1) float64: inner products of the k vectors s, from the newest to the oldest, of the k vectors y,
        and of the vector `descends`.
    slots
        Slots of the k pairs, from the newest to the oldest.
    descends
        Name of the vector whose negative the direction is made of: the gradient, or with an L1 penalty another one. The
        vectors y are differences of the gradient in any case.
    skipped
        Pairs that were not used.
    """

    history: int = 10
    curvature: float = 1e-10
    gram: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    slots: list[int] = field(default_factory=list)
    skipped: int = 0
    descends: str = GRADIENT

    @property
    def gradient_norm(self) -> float:
        """Euclidean length of the gradient, or of what `descends` names."""
        return math.sqrt(self.gram[-1, -1])

    @property
    def pairs(self) -> int:
        """Number of pairs, k."""
        return len(self.slots)

    def _basis(self) -> list[str]:
        return [*(f"s.{slot}" for slot in self.slots), *(f"y.{slot}" for slot in self.slots), self.descends]

    @property
    def new_step(self) -> str:
        """Name of the vector for the next s, which no program reads before `products_with_new_pair`."""
        return f"s.{self._free}"

    @property
    def _free(self) -> int:
        return min(set(range(self.history + 1)) - set(self.slots))

    # -- the first program -------------------------------------------------------------------------------

    def inner_products(self, step: float | None) -> list[Operation]:
        """The program for the inner products with the current gradient.

        Parameters
        ----------
        step
            Distance along the direction that the parameters moved since `previous` was the gradient, on the same
            samples; None where there is no such pair: at the start, and where the samples have changed.
        """
        if step is None:
            return [dots(*((self.descends, name) for name in self._basis()))]
        return [lincomb(self.new_step, (step, DIRECTION)), *self.products_with_new_pair()]

    def products_with_new_pair(self) -> list[Operation]:
        """As `inner_products`, where `new_step` holds the step already."""
        new = [self.new_step, f"y.{self._free}", self.descends]
        others = self._basis()[:-1]
        return [
            lincomb(new[1], (1.0, GRADIENT), (-1.0, PREVIOUS)),
            dots(*((a, b) for i, a in enumerate(new) for b in (*others, *new[i:]))),
        ]

    # -- the second program ------------------------------------------------------------------------------

    def absorb(self, answers: Sequence[float]) -> None:
        """Take in the results of the program from `inner_products`.

        Raises
        ------
        FloatingPointError
            A product is not finite.
        """
        if not all(map(math.isfinite, answers)):
            raise FloatingPointError("an inner product is not finite")
        if len(answers) > len(self.gram):
            self._absorb(answers)
        else:
            self.gram[-1, :] = self.gram[:, -1] = answers

    def direction(self) -> tuple[list[Operation], float]:
        """The program that makes the direction, and the slope along it, `descends` . direction."""
        coefficients = self._coefficients()
        terms = [(float(c), name) for c, name in zip(coefficients, self._basis(), strict=True)]
        return [lincomb(DIRECTION, *terms), copy(PREVIOUS, GRADIENT)], float(self.gram[-1] @ coefficients)

    def _absorb(self, answers: Sequence[float]) -> None:
        """Add the new pair, if it is used, and the new gradient to the products."""
        k = self.pairs
        full = np.zeros((2 * k + 3, 2 * k + 3))  # the old pairs, then the new s, the new y and the gradient
        full[: 2 * k, : 2 * k] = self.gram[:-1, :-1]
        given = iter(answers)
        for row in range(2 * k, 2 * k + 3):
            for column in (*range(2 * k), *range(row, 2 * k + 3)):
                full[row, column] = full[column, row] = next(given)
        s, y, gradient = 2 * k, 2 * k + 1, 2 * k + 2
        if full[s, y] <= self.curvature * math.sqrt(full[s, s] * full[y, y]):
            self.skipped += 1
            kept = [*range(2 * k), gradient]
            self.gram = full[np.ix_(kept, kept)]
            return
        older = min(k, self.history - 1)
        kept = [s, *range(older), y, *range(k, k + older), gradient]
        self.gram = full[np.ix_(kept, kept)]
        self.slots = [self._free, *self.slots[:older]]

    def _coefficients(self) -> np.ndarray:
        """The direction in the basis, by the two-loop recursion."""
        k, gram = self.pairs, self.gram
        q = np.zeros(2 * k + 1)
        q[-1] = 1.0
        rho = [1.0 / gram[i, k + i] for i in range(k)]
        alpha = np.zeros(k)
        for i in range(k):
            alpha[i] = rho[i] * (gram[i] @ q)
            q[k + i] -= alpha[i]
        if k:
            q *= gram[0, k] / gram[k, k]
        for i in reversed(range(k)):
            q[i] += alpha[i] - rho[i] * (gram[k + i] @ q)
        return -q

    # -- state -------------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all pairs and keep the gradient: the next direction is that of steepest descent."""
        self.gram, self.slots = self.gram[-1:, -1:], []

    def state(self) -> dict[str, Any]:
        """The complete state, JSON-serialisable."""
        return {"gram": self.gram.tolist(), "slots": self.slots, "skipped": self.skipped}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self.gram, self.skipped = np.array(state["gram"], dtype=np.float64), int(state["skipped"])
        self.slots = [int(slot) for slot in state["slots"]]
