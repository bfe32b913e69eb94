"""Directions without vectors, against the dense BFGS formula, SciPy's inverse Hessian and the recursion on vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.sandblaster.lbfgs import Lbfgs
from tests.local_vectors import LocalSpace

GOLDEN = Path(__file__).parents[2] / "golden"


def quadratic(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
    matrix: np.ndarray = basis * np.geomspace(1, 30, n) @ basis.T
    return matrix, rng.standard_normal(n)


class Descent:
    """Steps of fixed lengths along the directions; the pairs that come of it, newest first."""

    def __init__(self, method: Lbfgs, n: int, seed: int, dtype: type = np.float64) -> None:
        self.matrix, self.b = quadratic(n, seed)
        self.w = np.random.default_rng(seed + 1).standard_normal(n)
        self.method = method
        self.space = LocalSpace({"gradient": self.gradient()}, dtype)
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []
        self.slope = self._direct(None)

    def gradient(self) -> np.ndarray:
        gradient: np.ndarray = self.matrix @ self.w - self.b
        return gradient

    def _direct(self, step: float | None) -> float:
        self.method.absorb(self.space.run(self.method.inner_products(step)))
        program, slope = self.method.direction()
        self.space.run(program)
        return slope

    @property
    def direction(self) -> np.ndarray:
        return self.space.vectors["direction"]

    def step(self, t: float) -> None:
        s, before = t * self.direction, self.gradient()
        self.w = self.w + s
        self.pairs.insert(0, (s, self.gradient() - before))
        self.space.vectors["gradient"][:] = self.gradient()
        self.slope = self._direct(t)


def dense(pairs: list[tuple[np.ndarray, np.ndarray]], n: int) -> np.ndarray:
    """The inverse Hessian by the BFGS formula, from gamma I, oldest pair first."""
    s, y = pairs[0]
    inverse: np.ndarray = np.eye(n) * (s @ y) / (y @ y)
    for s, y in reversed(pairs):
        rho = 1 / (y @ s)
        left = np.eye(n) - rho * np.outer(s, y)
        inverse = left @ inverse @ left.T + rho * np.outer(s, s)
    return inverse


@given(st.integers(2, 30), st.integers(1, 12), st.integers(1, 8), st.integers(0, 1000))
def test_it_is_the_dense_formulas_direction(n: int, steps: int, history: int, seed: int) -> None:
    descent = Descent(Lbfgs(history), n, seed)
    assert np.array_equal(descent.direction, -descent.gradient())
    for _ in range(steps):
        descent.step(0.02)
        assert descent.method.skipped == 0
        expected = -dense(descent.pairs[:history], n) @ descent.gradient()
        assert np.linalg.norm(descent.direction - expected) <= 1e-12 * np.linalg.norm(expected)
        assert descent.slope == pytest.approx(descent.gradient() @ descent.direction, rel=1e-10)


def test_pair_without_curvature_is_skipped() -> None:
    descent = Descent(Lbfgs(4, curvature=1e-3), 6, 0)
    descent.step(0.02)
    before = {name: values.copy() for name, values in descent.space.vectors.items() if name[:2] in ("s.", "y.")}
    descent.space.vectors["gradient"][:] = descent.space.vectors["previous"]  # y = 0
    descent.method.absorb(descent.space.run(descent.method.inner_products(0.5)))
    assert descent.method.skipped == 1
    assert descent.method.pairs == 1
    for name in ("s.0", "y.0"):
        assert np.array_equal(descent.space.vectors[name], before[name])


def test_non_finite_product_is_an_error() -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        Lbfgs().absorb([float("inf")])


def test_new_samples_keep_pairs_and_replace_the_gradient() -> None:
    """A mini-batch method: pairs are differences on the same samples, the direction is for the new ones' gradient."""
    descent = Descent(Lbfgs(4), 15, 2)
    for _ in range(3):
        descent.step(0.02)
    other = np.random.default_rng(9).standard_normal(15)
    descent.space.vectors["gradient"][:] = other
    descent.method.absorb(descent.space.run(descent.method.inner_products(None)))
    program, slope = descent.method.direction()
    descent.space.run(program)
    expected = -dense(descent.pairs, 15) @ other
    assert np.linalg.norm(descent.direction - expected) <= 1e-12 * np.linalg.norm(expected)
    assert slope == pytest.approx(other @ expected, rel=1e-10)
    assert descent.method.gradient_norm == pytest.approx(np.linalg.norm(other), rel=1e-14)


def test_without_a_search_the_iterates_are_torchs() -> None:
    """Golden trajectory by tests/reference/torch_lbfgs.py."""
    with np.load(GOLDEN / "torch_lbfgs.npz") as golden:
        matrix, b, w, expected = golden["matrix"], golden["b"], golden["w0"], golden["trajectory"]
        rate, method = float(golden["rate"]), Lbfgs(int(golden["history"]))
    space = LocalSpace({"gradient": matrix @ w - b})
    step: float | None = None
    for wanted in expected:
        method.absorb(space.run(method.inner_products(step)))
        space.run(method.direction()[0])
        first = min(1.0, 1.0 / np.abs(space.vectors["gradient"]).sum())
        step = rate * first if step is None else rate
        w = w + step * space.vectors["direction"]
        space.vectors["gradient"][:] = matrix @ w - b
        np.testing.assert_allclose(w, wanted, rtol=0, atol=1e-10)
    assert method.skipped == 0
