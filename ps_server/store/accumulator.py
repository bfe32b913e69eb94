"""Sum of the bundles' gradients in a segment for the current pass; each is added once, whichever replica sends it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dbelief.arrays.positions import add_at
from dbelief.arrays.vector_kernels import compiled
from dbelief.core.push import MOST_AHEAD
from dbelief.sparse.table import unpack

from .admission import check_limit
from .packed import whole


@dataclass
class BundleAccumulator:
    """One segment's gradient sum.

    Attributes
    ----------
    number
        Of the pass; 0 before the first. A later pass restarts the sum; a bundle of an earlier one is not added.
    added
        Bundles that the sum holds, or that wait for the bundles before them.
    waiting
        With `ordered`: by bundle, copies of gradients that wait for the bundles before them.
    next
        With `ordered`: the bundle to be added next.
    """

    number: int = 0
    added: set[int] = field(default_factory=set)
    waiting: dict[int, np.ndarray] = field(default_factory=dict)
    next: int = 1

    def add(
        self, total: np.ndarray, number: int, bundle: int, gradient: np.ndarray, ordered: bool, packed: bool = False
    ) -> bool:
        """Add a bundle's gradient to `total`; False where it is a duplicate or belongs to an earlier pass.

        Parameters
        ----------
        total
            (length,) float64; set to 0 where this bundle is the first of its pass.
        ordered
            Add bundles by rising number, from 1 without gaps, in whatever order they arrive.
        packed
            Whether the gradient is packed: see `Push`. The sum has the same bits: what is left out are zeros.

        Raises
        ------
        Rejected
            With `ordered`: `MOST_AHEAD` bundles wait already, and this one is not the next.
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
        if ordered and bundle != self.next:  # a private copy: the message's buffer does not stay
            self.waiting[bundle] = whole(gradient, total.size) if packed else gradient.copy()
            return True
        if packed:
            positions, values = unpack(gradient, 1)
            add_at(total, positions, values.reshape(-1))
        else:
            _add(total, gradient)
        if ordered:
            self.next += 1
        while self.next in self.waiting:
            _add(total, self.waiting.pop(self.next))
            self.next += 1
        return True


def _add(total: np.ndarray, gradient: np.ndarray) -> None:
    compiled("two")(total, 1.0, total, 1.0, gradient)
