"""A rule's step on some rows of an arena: they are gathered, updated like any vector, and written back.

The rules are those of dense segments, which work number by number, and those that keep state by row (`by_row`). What is
gathered is as long as the push, and stays in the cache meanwhile.
"""

from __future__ import annotations

import numpy as np

from dbelief.optim.rules.row_adagrad import RowAdagrad
from dbelief.optim.rules.rule import Rule
from dbelief.sparse.row_form import RowForm

from .arena import Arena


def form_of(rule: Rule, width: int) -> RowForm:
    """Rows of a width, with the rule's state."""
    return RowForm.of(width, rule.state, isinstance(rule, RowAdagrad))


def step_rows(
    arena: Arena, rule: Rule, keys: np.ndarray, gradients: np.ndarray, rate: np.float32, step: int, stamp: int
) -> None:
    """Apply the rule to the rows of (n,) int64 keys, each once, with (n, width) float32 gradients.

    `step`: number of this push to the bucket, from 1; `stamp`: see `Arena.touch`. A key that gets no row is left out.
    """
    found = arena.touch(keys, stamp)
    if arena.refuses and found.size and found.min() < 0:
        gradients, found = gradients[found >= 0], found[found >= 0]
    copies, (w, *state) = arena.parts(found)
    rule.apply(w, gradients.reshape(-1), tuple(state), rate, step)
    arena.write(found, copies)
