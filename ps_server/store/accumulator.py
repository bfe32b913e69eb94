"""What a segment has of the pass at hand: the sum of the bundles' gradients, each added once whoever sends it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dbelief.arrays.vector_kernels import compiled
from dbelief.core.push import MOST_AHEAD

from .limits import check_limit


@dataclass
class BundleAccumulator:
    """One segment's sum.

    Attributes
    ----------
    number
        Of the pass; 0 before the first. A later one begins the sum anew, an earlier one adds nothing any more.
    added
        Bundles that the sum holds, or that wait for their turn.
    waiting
        In order: by bundle, copies of gradients whose turn has not come.
    next
        In order: the bundle whose turn it is.
    """

    number: int = 0
    added: set[int] = field(default_factory=set)
    waiting: dict[int, np.ndarray] = field(default_factory=dict)
    next: int = 1

    def add(self, total: np.ndarray, number: int, bundle: int, gradient: np.ndarray, ordered: bool) -> bool:
        """Add a bundle's gradient to `total`; False where it is in already, or belongs to an earlier pass.

        Parameters
        ----------
        total
            (length,) float64; set to 0 where this bundle is the first of its pass.
        ordered
            Add bundles by rising number, from 1 without gaps, in whatever order they come.

        Raises
        ------
        Refused
            In order: `MOST_AHEAD` bundles wait already, and it is not the turn of this one.
        """
        if number < self.number or (number == self.number and bundle in self.added):
            return False
        if number > self.number:
            self.number, self.next = number, 1
            self.added.clear()
            self.waiting.clear()
            total.fill(0)
        if ordered and bundle != self.next:
            check_limit("bundles that wait for their turn", bundle, self.waiting, MOST_AHEAD)
        self.added.add(bundle)
        if not ordered:
            _add(total, gradient)
            return True
        # A private copy where it has to wait: the message that it came in does not.
        self.waiting[bundle] = gradient if bundle == self.next else gradient.copy()
        while self.next in self.waiting:
            _add(total, self.waiting.pop(self.next))
            self.next += 1
        return True


def _add(total: np.ndarray, gradient: np.ndarray) -> None:
    compiled("two")(total, 1.0, total, 1.0, gradient)
