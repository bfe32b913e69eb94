"""Which of a rule's two forms updates a segment: the compiled loop where it was warmed up, or there are many numbers.

Both give the same bits (`Rule`). The formula costs up to 45 microseconds more on a short segment; the loop costs a
process the import of numba, more than half a second of processor time. A shard of a small model never imports it.
"""

import numpy as np

from dbelief.arrays.streaming_copy import LARGE, streaming_copy, streams

from .rules.elastic import ElasticMove
from .rules.rule import Rule

FEW = 1 << 14
"""Numbers up to which the formula is used where the loop was not warmed up: it takes at most 45 microseconds longer."""
_compiled: set[str] = set()
"""Names of the rules whose loops `warm_up` has compiled in this process, or loaded from the cache."""


def apply_rule(
    rule: Rule,
    w: np.ndarray,
    g: np.ndarray,
    states: tuple[np.ndarray, ...],
    rate: np.float32,
    step: int,
    before: np.ndarray | None = None,
) -> None:
    """Update w and states in place; arguments as of `Rule.apply`.

    `before`: (n,) float32, receives a copy of w as it is before; overlaps no other array.
    """
    if before is not None:
        if isinstance(rule, ElasticMove) and streams(before):
            rule.exchange(w, g, before, rate)
            return
        streaming_copy(before, w)
    if w.size <= FEW and rule.name not in _compiled:
        rule.apply_reference(np, w, g, states, rate, step)
    else:
        rule.apply(w, g, states, rate, step)


def warm_up(rule: Rule, longest: int = FEW + 1) -> None:
    """Compile the rule's loop, or load it from the cache, so that no push waits for it; not where no segment needs it.

    Parameters
    ----------
    longest : int
        Numbers in the longest segment.
    """
    if longest > FEW:
        states = tuple(np.zeros(1, np.float32) for _ in rule.state)
        rule.apply(np.zeros(1, np.float32), np.ones(1, np.float32), states, np.float32(0), 1)
        _compiled.add(rule.name)
    if isinstance(rule, ElasticMove) and 4 * longest >= LARGE:
        none = np.zeros(0, np.float32)
        rule.exchange(none, none, none, np.float32(0))
