"""A rule on a replica's own parameters: each tensor has the steps that it took part in, in any part of a vector."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import Backend
from dbelief.core.layout import Layout
from dbelief.optim import RULES, make_rule
from dbelief.optim.apply import apply_rule
from dbelief.optim.local_rule import LocalRule
from tests.examples import examples

SIZES = {"a": 3, "b": 1, "c": 5}
RATE = np.float32(0.1)
LEFT_OUT = st.lists(st.sets(st.sampled_from(sorted(SIZES))), min_size=1, max_size=6)


@examples(60)
@given(name=st.sampled_from(RULES), left_out=LEFT_OUT)
def test_each_tensor_makes_the_steps_that_it_took_part_in(name: str, left_out: list[set[str]]) -> None:
    rng, rule = np.random.default_rng(0), make_rule(name, {})
    part = Layout.of({tensor: np.zeros(size) for tensor, size in SIZES.items()}).part(0)
    start = rng.standard_normal(part.size, dtype=np.float32)
    gradients = rng.standard_normal((len(left_out), part.size), dtype=np.float32)
    found, local = start.copy(), LocalRule(rule, part, Backend("numpy", np))
    for gradient, names in zip(gradients, left_out, strict=True):
        local.apply(found, gradient.copy(), RATE, names)
    for tensor, values in part.views(found).items():
        alone = part.views(start)[tensor].copy()
        states = tuple(np.full_like(alone, initial) for initial in rule.state.values())
        took_part = [g for g, names in zip(gradients, left_out, strict=True) if tensor not in names]
        for step, gradient in enumerate(took_part, 1):
            apply_rule(rule, alone, part.views(gradient)[tensor].copy(), states, RATE, step)
        assert alone.tobytes() == values.tobytes()
