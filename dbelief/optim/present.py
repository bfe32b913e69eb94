"""A rule's step on the numbers that took part in a push; absent ones keep their values and the rule's state.

Adam corrects the bias of its moments by the number of steps, which torch counts for each parameter. A segment counts
its steps, and beside that how many of them ranges of its numbers have missed: nothing in the usual case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from dbelief.core.absent import Missed, Ranges, pairs

from .apply import apply_rule
from .rules.adam import Adam
from .rules.rule import Rule


def apply_present(
    rule: Rule,
    w: np.ndarray,
    g: np.ndarray,
    states: tuple[np.ndarray, ...],
    rate: np.float32,
    made: int,
    absent: Ranges,
    missed: Missed,
    offset: int = 0,
) -> None:
    """Update w and states in place, but for the numbers in `absent`.

    Parameters
    ----------
    w, states
        (n,) float32, complete.
    g
        (k,) float32, of the numbers from `offset` on; what it has for absent ones is not read.
    made, missed
        Steps of this rule so far, and how many of them ranges have missed.
    """
    for start, stop, count in present_ranges(offset, offset + len(g), absent, missed):
        own = slice(start, stop)
        parts = tuple([state[own] for state in states])
        apply_rule(rule, w[own], g[start - offset : stop - offset], parts, rate, made + 1 - count)


def present_ranges(first: int, last: int, absent: Ranges, missed: Missed) -> Iterator[tuple[int, int, int]]:
    """Pieces of [first, last) that are not absent, each with the steps that its numbers have missed."""
    changes = _changes(missed)
    hidden, count, edges = False, 0, frozenset(absent)
    begun: tuple[int, int, int] | None = None
    for start, stop in pairwise(sorted({first, last, *absent, *changes})):
        hidden ^= start in edges
        count += changes.get(start, 0)
        if hidden or start < first or stop > last:
            continue
        if begun is not None and begun[1:] == (start, count):
            start = begun[0]
        elif begun is not None:
            yield begun
        begun = start, stop, count
    if begun is not None:
        yield begun


def counts_steps(rule: Rule) -> bool:
    """Whether the step of a rule depends on how many there were before."""
    return isinstance(rule, Adam)


def missed_after(rule: Rule, missed: Missed, absent: Ranges) -> Missed:
    """What ranges have missed after a step without those in `absent`; nothing under a rule that counts no steps."""
    if not counts_steps(rule):
        return ()
    changes = _changes(missed)
    for start, stop in pairs(absent):
        changes[start] += 1
        changes[stop] -= 1
    edges = sorted(at for at, change in changes.items() if change)
    rows, count = [], 0
    for start, stop in pairwise(edges):
        count += changes[start]
        if count:
            rows.append((start, stop, count))
    return tuple(rows)


def _changes(missed: Missed) -> Counter[int]:
    """By number, how the count of missed steps changes there."""
    changes: Counter[int] = Counter()
    for start, stop, count in missed:
        changes[start] += count
        changes[stop] -= count
    return changes
