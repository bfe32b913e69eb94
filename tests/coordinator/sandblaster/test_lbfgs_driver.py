"""L-BFGS over passes, in one process: SciPy's optimum in no more evaluations, and the same steps after a restore."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from coordinator.sandblaster.lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from tests.local_vectors import LocalSpace

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Mean loss over the samples, and its gradient."""
SAMPLES = 40


class Problem:
    """A loss, and the space that a method minimises it in."""

    def __init__(self, loss: Loss, start: np.ndarray, rules: StoppingRules, dtype: type = np.float64) -> None:
        self.loss = loss
        self.space = LocalSpace({"w": start, "accrued": np.zeros(len(start))}, dtype)
        self.method = LbfgsDriver(rules)
        self.trials: list[np.ndarray] = []
        self.twice: random.Random | None = None

    def turn(self) -> None:
        """Do what is due, once."""
        method, space = self.method, self.space
        if method.phase in PASSES:
            self.trials.append(space.vectors["trial"].astype(np.float64))
            value, gradient = self.loss(self.trials[-1])
            space.vectors["accrued"][:] = SAMPLES * gradient
            method.record_pass(SAMPLES * value, SAMPLES)
        else:
            answers = space.run(method.program())
            if self.twice is not None and self.twice.random() < 0.3:
                answers = space.run(method.program())
            method.record_scalars(answers)

    def run(self) -> Problem:
        while self.method.phase is not Phase.ENDED:
            self.turn()
        return self


def logistic(n: int = 60, features: int = 12) -> Loss:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, features)) * np.geomspace(0.1, 5, features)
    y = np.where(x @ rng.standard_normal(features) + rng.standard_normal(n) > 0, 1.0, -1.0)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = y * (x @ w)
        return float(np.logaddexp(0, -z).mean()), -(x.T @ (y / (1 + np.exp(z)))) / n

    return loss


def regularised(loss: Loss, l2: float) -> Loss:
    def whole(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(w)
        return value + l2 / 2 * float(w @ w), gradient + l2 * w

    return whole


def within(values: list[float], best: float, share: float = 1e-6) -> int:
    return next(number for number, value in enumerate(values, 1) if value <= best + share * abs(best))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_it_finds_scipys_optimum_in_as_many_evaluations(dtype: type) -> None:
    loss, l2 = logistic(), 1e-3
    seen: list[float] = []

    def noted(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = regularised(loss, l2)(w)
        seen.append(value)
        return value, gradient

    options = {"maxcor": 10, "ftol": 0, "gtol": 1e-10, "maxiter": 1000}
    best = minimize(noted, np.zeros(12), jac=True, method="L-BFGS-B", options=options).fun
    problem = Problem(loss, np.zeros(12), StoppingRules(l2=l2, relative_decrease=1e-9), dtype).run()
    ours = [regularised(loss, l2)(problem.space.vectors["w"].astype(np.float64))[0], problem.method.value]
    assert ours == pytest.approx([best, best], rel=1e-6)
    assert not problem.method.failed
    assert "brought the loss down" in problem.method.ended
    assert problem.method.evaluations == len(problem.trials)
    assert within([regularised(loss, l2)(w)[0] for w in problem.trials], best) <= 1.1 * within(seen, best)


def test_a_curved_valley_is_followed_to_its_end() -> None:
    rules = StoppingRules(gradient_norm=1e-8, iterations=500)
    problem = Problem(lambda w: (float(rosen(w)), rosen_der(w)), np.full(10, -1.0), rules).run()
    assert problem.method.ended.startswith("the gradient's norm is")
    assert problem.method.value < 1e-14 or problem.method.value == pytest.approx(3.98657, rel=1e-4)  # its other minimum


@pytest.mark.parametrize("l1", [0.0, 0.01])
def test_an_iteration_is_two_programs_beside_its_trials(l1: float) -> None:
    problem = Problem(logistic(), np.zeros(12), StoppingRules(l1=l1, iterations=12))
    steps = []
    while problem.method.phase is not Phase.ENDED:
        steps.append(problem.method.phase)
        problem.turn()
    trials = steps.count(Phase.TRIAL_PASS)
    assert steps.count(Phase.SLOPE) == trials
    assert steps.count(Phase.MOVE) == trials - 12
    assert steps.count(Phase.ACCEPT) == steps.count(Phase.DIRECTION) == 12
    assert len(steps) == 3 + 2 * trials + (trials - 12) + 2 * 12


@pytest.mark.parametrize("l1", [0.0, 0.01])
def test_state_restores_at_any_phase(l1: float) -> None:
    rules = StoppingRules(l2=1e-3, l1=l1, iterations=9)
    alone = Problem(logistic(), np.zeros(12), rules).run()
    handed = Problem(logistic(), np.zeros(12), rules)
    rng = handed.twice = random.Random(3)  # a program may have run before its coordinator died
    while handed.method.phase is not Phase.ENDED:
        if rng.random() < 0.5:
            successor = LbfgsDriver(rules)
            successor.restore(json.loads(json.dumps(handed.method.state())))
            handed.method = successor
        handed.turn()
    assert np.array_equal(handed.trials, alone.trials)
    assert np.array_equal(handed.space.vectors["w"], alone.space.vectors["w"])


def test_gradient_pairs_use_the_same_samples() -> None:
    """A quadratic whose centre moves with the batch: differences on one batch know nothing of the move."""
    scales = np.geomspace(1, 20, 8)

    def run(rules: StoppingRules, iterations: int) -> Problem:
        centres = np.random.default_rng(4).standard_normal((iterations + 2, 8))
        problem = Problem(lambda w: (0.0, w), np.zeros(8), rules)

        def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
            away = w - centres[problem.method.batch]
            return float(scales @ away**2) / 2, scales * away

        problem.loss = loss
        return problem.run()

    problem = run(StoppingRules(same_batch=False, iterations=10), 10)
    assert problem.method.iterations == problem.method.batch == 10
    vectors = problem.space.vectors
    assert problem.method.method.pairs == 10
    for i in problem.method.method.slots:
        np.testing.assert_allclose(vectors[f"y.{i}"], scales * vectors[f"s.{i}"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("l1", [0.0, 1e-3])
def test_failed_search_drops_history_then_ends(l1: float) -> None:
    """The gradient points the wrong way after a while: no point is better than the one at hand."""
    calls = [0]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        calls[0] += 1
        return float(w @ w) / 2 + calls[0], w if calls[0] < 4 else -w

    problem = Problem(loss, np.ones(3), StoppingRules(l1=l1)).run()
    assert problem.method.ended.startswith("no better point is found: ")
    assert not problem.method.failed


@pytest.mark.parametrize("l1", [0.0, 0.1])
@pytest.mark.parametrize(("value", "gradient"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_non_finite_start_is_a_failure(value: float, gradient: float, l1: float) -> None:
    problem = Problem(lambda w: (value, np.full(3, gradient)), np.zeros(3), StoppingRules(l1=l1)).run()
    assert problem.method.failed
    assert "after 0 iterations" in problem.method.ended


@pytest.mark.parametrize("l1", [0.0, 0.25])
def test_a_trial_that_is_not_finite_was_too_far(l1: float) -> None:
    rules = StoppingRules(l1=l1, iterations=30)
    problem = Problem(lambda w: (-float(np.log(w).sum()) + w.sum(), 1 - 1 / w), np.full(3, 5.0), rules)
    with np.errstate(invalid="ignore", divide="ignore"):
        problem.run()
    assert np.allclose(problem.space.vectors["w"], 1 / (1 + l1), atol=1e-4)


def test_end_request_ends_the_method() -> None:
    problem = Problem(logistic(), np.zeros(12), StoppingRules())
    for _ in range(20):
        problem.turn()
    problem.method.end("stopped by Ctrl-C")
    assert problem.method.phase is Phase.ENDED
    with pytest.raises(ValueError, match="no program is due at 'ended'"):
        problem.method.program()
