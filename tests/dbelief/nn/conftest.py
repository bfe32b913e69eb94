from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn.layers.layer import Layer
from dbelief.nn.workspace import Workspace

Check = Callable[[Callable[[], float], Sequence[np.ndarray], Sequence[np.ndarray]], None]


CheckLayer = Callable[[Layer, np.ndarray], None]


@pytest.fixture(scope="session")
def check_gradient() -> Check:
    """Compare gradients with central differences along random directions.

    check(value, points, gradients): `value()` reads `points`, which are float64 and are moved in place; for a
    direction v over all of them together, (value(x + h v) - value(x - h v)) / 2h must be the inner product of
    v with `gradients`. One number decides, whatever the shapes.
    """

    def check(value: Callable[[], float], points: Sequence[np.ndarray], gradients: Sequence[np.ndarray]) -> None:
        rng, h = np.random.default_rng(1), 1e-6
        before = [point.copy() for point in points]
        expected = [gradient.copy() for gradient in gradients]
        for _ in range(3):
            directions = [rng.standard_normal(point.shape) for point in points]
            ends = []
            for sign in (1, -1):
                for point, start, direction in zip(points, before, directions, strict=True):
                    point[...] = start + sign * h * direction
                ends.append(value())
            slope = sum(float(np.vdot(g, v)) for g, v in zip(expected, directions, strict=True))
            size = sum(float(np.vdot(abs(g), abs(v))) for g, v in zip(expected, directions, strict=True))
            assert abs((ends[0] - ends[1]) / (2 * h) - slope) <= 1e-7 * size + 1e-8
        for point, start in zip(points, before, strict=True):
            point[...] = start

    return check


@pytest.fixture(scope="session")
def check_layer(check_gradient: Check) -> CheckLayer:
    """Check a layer's dL/dx and dL/dparameters at an x for L = <c, layer(x)> with a random c."""

    def check(layer: Layer, x: np.ndarray) -> None:
        rng, work = np.random.default_rng(x.size), Workspace(select_backend("cpu"))
        inputs = x.shape[1:]
        parameters = [rng.standard_normal(shape) for shape in layer.shapes(inputs)]
        c, y = (rng.standard_normal((len(x), *layer.outputs(inputs))) for _ in range(2))

        def value() -> float:
            layer.forward(work, x, parameters, y)
            return float(np.vdot(c, y))

        value()
        dx = np.full_like(x, np.nan)
        gradients = [np.full_like(p, np.nan) for p in parameters]
        layer.backward(work, x, y, c, parameters, gradients, dx)
        alone = [np.full_like(p, np.nan) for p in parameters]
        layer.backward(work, x, y, c, parameters, alone, None)
        assert all(np.array_equal(one, other) for one, other in zip(gradients, alone, strict=True))
        d_inputs = np.full_like(x, np.nan)
        layer.backward(work, x, y, c, parameters, [], d_inputs)
        assert np.array_equal(d_inputs, dx)
        check_gradient(value, [x, *parameters], [dx, *gradients])

    return check
