"""Results that may differ between machines: bounds on the errors of BLAS and transcendental functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dbelief.core.layout import Layout
from dbelief.nn import Batch, build_network
from tests.equivalence.harness import HOST

from .digests import numbers

EPS = 2.0**-24
"""Half a unit in the last place of a float32 from 1 to 2, as a share of it."""
ULPS = 4
"""Of float32, that NumPy's functions may be off: its own limit."""


@pytest.mark.parametrize(
    ("function", "exact", "argument"),
    [
        (np.exp, math.exp, lambda x: 8 * x),
        (np.log, math.log, lambda x: np.abs(x) + np.float32(2.0**-20)),
        (np.tanh, math.tanh, lambda x: x),
    ],
    ids=["exp", "log", "tanh"],
)
def test_functions_are_within_four_units_of_the_last_place(
    function: np.ufunc, exact: Callable[[float], float], argument: Callable[[np.ndarray], np.ndarray]
) -> None:
    x = argument(numbers("x", 10_007)).astype(np.float32)
    wanted = np.array([exact(value) for value in x.tolist()])
    off = np.abs(function(x) - wanted)
    assert (off <= ULPS * np.spacing(np.abs(wanted).astype(np.float32))).all()


@pytest.mark.parametrize("size", [1, 64, 1000, 4096])
def test_products_of_blas_are_within_the_bound_of_any_order(size: int) -> None:
    """|error| <= n eps |x| . |y|: whatever the order and however many products are fused with their sum."""
    a, b = numbers("a", 17 * size).reshape(17, size), numbers("b", size * 13).reshape(size, 13)
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = size * EPS * (np.abs(wide[0]) @ np.abs(wide[1])) + 2.0**-149
    assert (np.abs(a @ b - wide[0] @ wide[1]) <= bound).all()
    assert abs(float(np.dot(a[0], b[:, 0])) - wide[0][0] @ wide[1][:, 0]) <= bound[0, 0]


LOSS = 1.1082170978188515
GRADIENT = (0.00036399372038431466, 6.781537376809865e-05, -0.008595324121415615, -0.06579867005348206)
"""Of the network below on the machine that wrote them: the first numbers of each tensor's gradient."""


def test_gradient_matches_another_machine_within_its_bound() -> None:
    inputs = numbers("inputs", 32 * 7).reshape(32, 7)
    targets = (np.arange(32) % 3).astype(np.int64)
    layers = [("dense", {"units": 7}), ("tanh", {}), ("dense", {"units": 3})]
    model = build_network(layers, "softmax_cross_entropy", features=7, outputs=3, backend=HOST)
    shapes = {name: value.shape for name, value in model.parameters(np.random.default_rng(0)).items()}
    tensors = {name: numbers(name, math.prod(shape)).reshape(shape) / 8 for name, shape in shapes.items()}
    layout = Layout.of(tensors)
    w, out = (np.empty(layout.size, np.float32) for _ in range(2))
    layout.flatten(tensors, w)
    loss = float(model.loss_and_gradient(layout.views(w), Batch(inputs, targets), layout.views(out)))
    found = tuple(float(values.reshape(-1)[0]) for values in layout.views(out).values())
    # Sums of at most 32 terms in each of two layers, and functions that are off by ULPS.
    assert loss == pytest.approx(LOSS, rel=1e-6)
    assert found == pytest.approx(GRADIENT, rel=0, abs=1e-6 * float(np.abs(out).max()))
