"""Short segments are updated by a rule's formula, longer ones by its compiled loop: the same bits."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from dbelief.optim import RULES, apply_rule, make_rule, warm_up
from dbelief.optim.apply import FEW


@pytest.mark.parametrize("name", RULES)
def test_the_whole_and_its_two_parts_end_with_the_same_bits(name: str) -> None:
    rule, rng = make_rule(name, {}), np.random.default_rng(4)
    initial, gradients = rng.standard_normal((4, FEW + 1), np.float32)[0], rng.standard_normal((3, FEW + 1), np.float32)

    def end(cuts: list[slice]) -> bytes:
        w = initial.copy()
        states = tuple(np.full_like(w, value) for value in rule.state.values())
        for step, gradient in enumerate(gradients, 1):
            for cut in cuts:
                apply_rule(rule, w[cut], gradient[cut], tuple(s[cut] for s in states), np.float32(0.1), step)
        return b"".join(array.tobytes() for array in (w, *states))

    assert end([slice(None)]) == end([slice(0, 100), slice(100, None)])


@pytest.mark.parametrize(("longest", "calls"), [(FEW, 0), (FEW + 1, 1)])
def test_nothing_is_compiled_where_no_segment_needs_it(longest: int, calls: int) -> None:
    rule: Any = Mock(state=())
    warm_up(rule, longest)
    assert rule.apply.call_count == calls
