"""An update rule that a replica applies to parameters of its own, with the rule's state beside it."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend, aligned_float32
from dbelief.core.absent import Missed, of_tensors, within
from dbelief.core.layout import RankPart

from .apply import apply_rule
from .present import missed_after, present_ranges
from .rules.rule import Rule


class LocalRule:
    """A rule and its state for the parameters of one rank, on the backend's device.

    A parameter that takes no part in a step is left as it is, and counts none, as on a shard. On a device the rule's
    formula has temporaries of the length of the parameters.
    """

    def __init__(self, rule: Rule, part: RankPart, backend: Backend) -> None:
        self._rule, self._part, self._backend = rule, part, backend
        self._states = tuple(backend.zeros(part.size, aligned_float32) for _ in rule.state)
        for values, initial in zip(self._states, rule.state.values(), strict=True):
            values[:] = initial
        self._made = 0
        self._missed: Missed = ()

    def apply(self, w: Any, g: Any, rate: np.float32, left_out: Set[str] = frozenset()) -> None:
        """Update w, (n,) float32 on the device, by the gradient g of those tensors that are not left out."""
        absent = within(of_tensors(self._part, left_out), self._part.start, self._part.stop)
        for start, stop, missed in present_ranges(0, self._part.size, absent, self._missed):
            own = slice(start, stop)
            arrays = w[own], g[own], tuple(values[own] for values in self._states)
            step = self._made + 1 - missed
            if self._backend.name == "numpy":
                apply_rule(self._rule, *arrays, rate, step)
            else:
                self._rule.apply_reference(self._backend.xp, *arrays, rate, step)
        self._missed = missed_after(self._rule, self._missed, absent)
        self._made += 1
