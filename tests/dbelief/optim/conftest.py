from collections.abc import Callable

import numpy as np
import pytest

from dbelief.optim import Rule

Run = Callable[..., np.ndarray]


@pytest.fixture(scope="session")
def run() -> Run:
    """Give run(rule, w0, gradients, rate, states=None, fused=True): w after each gradient.

    `states`, where given, is started from and moved in place.
    """

    def trajectory(
        rule: Rule,
        w0: np.ndarray,
        gradients: np.ndarray,
        rate: float,
        states: tuple[np.ndarray, ...] | None = None,
        fused: bool = True,
    ) -> np.ndarray:
        w = w0.copy()
        states = states or tuple(np.full_like(w, value) for value in rule.state.values())
        steps = []
        for step, gradient in enumerate(gradients, start=1):
            if fused:
                rule.apply(w, gradient, states, np.float32(rate), step)
            else:
                rule.apply_reference(np, w, gradient, states, w.dtype.type(rate), step)
            steps.append(w.copy())
        return np.stack(steps)

    return trajectory
