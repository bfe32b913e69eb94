"""OWL-QN against the paper's equations in NumPy, iterate by iterate, and its optimum against SciPy's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.optimize import minimize

from coordinator.sandblaster.backtracking import Backtracking
from coordinator.sandblaster.lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from coordinator.sandblaster.line_search import MOST_TRIALS
from coordinator.sandblaster.orthant import unpenalised
from dbelief.core.absent import Ranges
from dbelief.core.layout import Kind, Layout
from tests.coordinator.replica import SLOTS
from tests.coordinator.sandblaster.test_lbfgs_driver import Loss, Problem, logistic, regularised
from tests.coordinator.scheduling.test_batch_method import SHAPE, STRATEGY
from tests.local_vectors import projected, pseudo_gradient

if TYPE_CHECKING:
    from tests.coordinator.world import World

SIZE = 12


def paper(
    loss: Loss, w: np.ndarray, l1: np.ndarray, history: int, iterations: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Algorithm 1 of Andrew and Gao 2007: all points at which the loss is computed, and the last iterate.

    `l1`: the factor of each number; where it is 0, the number is in no orthant.
    """
    on, points, pairs = l1 > 0, [w], list[tuple[np.ndarray, np.ndarray]]()
    value, gradient = loss(w)
    for _ in range(iterations):
        v = -pseudo_gradient(w, gradient, l1)
        p = projected(two_loop(v, pairs), np.sign(v), on)
        orthant = np.where(w == 0, np.sign(v), np.sign(w))
        step, shrink = (1.0, 0.5) if pairs else (min(1.0, 1 / float(np.linalg.norm(v))), 0.1)
        start = value + l1 @ np.abs(w)
        for _ in range(MOST_TRIALS):
            new = projected(w + step * p, orthant, on)
            points.append(new)
            value, slope = loss(new)
            if value + l1 @ np.abs(new) <= start - 1e-4 * v @ (new - w):
                break
            step *= shrink
        s, y = new - w, slope - gradient
        w, gradient = new, slope
        if y @ s > 1e-10 * np.linalg.norm(y) * np.linalg.norm(s):
            pairs = [(s, y), *pairs][:history]
    return points, w


def two_loop(v: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """H v (Nocedal 1980), newest pair first."""
    q, kept = v.copy(), []
    for s, y in pairs:
        kept.append((s @ q) / (y @ s))
        q -= kept[-1] * y
    if pairs:
        s, y = pairs[0]
        q *= (s @ y) / (y @ y)
    for (s, y), a in zip(reversed(pairs), reversed(kept), strict=True):
        q += (a - (y @ q) / (y @ s)) * s
    return q


def solved(rules: StoppingRules, exempt: Ranges = (), dtype: type = np.float64, history: int = 10) -> Problem:
    problem = Problem(logistic(), np.zeros(SIZE), rules, dtype)
    problem.method = LbfgsDriver(rules, history)
    if problem.method.penalty is not None:
        problem.method.penalty.exempt = exempt
    return problem.run()


@pytest.mark.parametrize("exempt", [(), (3, 5, 11, 12)], ids=["all", "some exempt"])
@pytest.mark.parametrize(("l1", "l2"), [(0.003, 0.0), (0.03, 1e-3), (0.1, 0.0)])
def test_every_trial_is_the_papers(l1: float, l2: float, exempt: Ranges) -> None:
    factors = np.full(SIZE, l1)
    for start, stop in zip(exempt[::2], exempt[1::2], strict=True):
        factors[start:stop] = 0
    rules = StoppingRules(l2=l2, l1=l1, iterations=15)
    problem = solved(rules, exempt, history=4)
    points, w = paper(regularised(logistic(), l2), np.zeros(SIZE), factors, 4, problem.method.iterations)
    assert problem.method.iterations == 15
    assert len(points) == len(problem.trials)
    np.testing.assert_allclose(problem.trials, points, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(problem.space.vectors["w"] == 0, w == 0)
    assert l1 < 0.01 or (w == 0).any()


def optimum(loss: Loss, factors: np.ndarray) -> float:
    """Of the penalised loss, by SciPy: w is the difference of two vectors that are not negative."""

    def split(both: np.ndarray) -> tuple[float, np.ndarray]:
        up, down = both[:SIZE], both[SIZE:]
        value, gradient = loss(up - down)
        return value + factors @ (up + down), np.r_[gradient + factors, factors - gradient]

    options = {"ftol": 0, "gtol": 1e-12, "maxiter": 10_000, "maxfun": 100_000}
    bounds = [(0, None)] * (2 * SIZE)
    found = minimize(split, np.zeros(2 * SIZE), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(found.fun)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("l1", "exempt"), [(0.003, ()), (0.03, ()), (0.03, (0, 2))])
def test_its_optimum_is_scipys(l1: float, exempt: Ranges, dtype: type) -> None:
    factors = np.full(SIZE, l1)
    factors[slice(*exempt) if exempt else slice(0)] = 0
    problem = solved(StoppingRules(l1=l1, relative_decrease=1e-10), exempt, dtype)
    w = problem.space.vectors["w"].astype(np.float64)
    value, gradient = logistic()(w)
    assert value + factors @ np.abs(w) == pytest.approx(optimum(logistic(), factors), rel=1e-6)
    assert problem.method.value == pytest.approx(value + factors @ np.abs(w), rel=1e-6)
    assert np.abs(gradient + factors * np.sign(w))[w != 0].max() < 2e-3 * l1 + 1e-5
    assert (np.abs(gradient)[w == 0] <= factors[w == 0] * 1.001).all()


@pytest.mark.long
@pytest.mark.parametrize("solver", ["saga", "liblinear"])
def test_its_optimum_is_scikit_learns(solver: str) -> None:
    """Liblinear penalises its intercept, so there is none."""
    from sklearn.linear_model import LogisticRegression  # which takes a second to import

    rng, l1 = np.random.default_rng(5), 0.02
    x = rng.standard_normal((200, SIZE - 1))
    signs = np.where(x @ rng.standard_normal(SIZE - 1) + 1 + rng.standard_normal(200) > 0, 1.0, -1.0)
    intercept = solver == "saga"
    columns = np.c_[x, np.ones(200) if intercept else np.zeros(200)]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = signs * (columns @ w)
        return float(np.logaddexp(0, -z).mean()), -(columns.T @ (signs / (1 + np.exp(z)))) / 200

    theirs = LogisticRegression(
        C=1 / (200 * l1),
        l1_ratio=1,
        solver=solver,
        fit_intercept=intercept,
        tol=1e-10,
        max_iter=100_000,
        random_state=0,
    ).fit(x, signs)
    problem = Problem(loss, np.zeros(SIZE), StoppingRules(l1=l1, relative_decrease=1e-12))
    assert problem.method.penalty is not None
    problem.method.penalty.exempt = (SIZE - 1, SIZE)
    w = problem.run().space.vectors["w"]
    np.testing.assert_allclose(w, np.r_[theirs.coef_[0], theirs.intercept_], rtol=0, atol=2e-5)
    expected = loss(np.r_[theirs.coef_[0], theirs.intercept_])[0] + l1 * np.abs(theirs.coef_).sum()
    assert problem.method.value == pytest.approx(expected, rel=1e-8)
    assert ((w == 0) == (np.r_[theirs.coef_[0], theirs.intercept_] == 0)).all()


def test_more_numbers_are_zero_for_a_larger_penalty() -> None:
    steepest = float(np.abs(logistic()(np.zeros(SIZE))[1]).max())
    counts = []
    for l1 in (0.0, 1e-4, 1e-3, 0.01, 0.1, 1.01 * steepest):
        problem = solved(StoppingRules(l1=l1, l2=1e-3, relative_decrease=1e-10))
        counts.append(int((problem.space.vectors["w"] == 0).sum()))
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[3] < counts[4] < counts[5] == SIZE
    assert problem.method.evaluations == 1
    assert problem.method.ended == "the gradient's norm is 0"


def test_without_a_penalty_it_is_l_bfgs() -> None:
    """The programs have no operation and no vector of OWL-QN, so that neither cost nor bits can differ."""
    problem = Problem(logistic(), np.zeros(SIZE), StoppingRules(l1=0.0, iterations=5))
    names = set[str]()
    while problem.method.phase is not Phase.ENDED:
        if problem.method.phase not in PASSES:
            names |= {one.name for one in problem.method.program()}
        problem.turn()
    assert names == {"copy", "lincomb", "dots"}
    assert "pseudo" not in problem.space.vectors


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.03), (0.03, 0.0), (0.1, 0.03)])
def test_a_resumed_job_may_have_another_penalty(before: float, after: float) -> None:
    problem = Problem(logistic(), np.zeros(SIZE), StoppingRules(l1=before, l2=1e-3, iterations=4)).run()
    rules = StoppingRules(l1=after, l2=1e-3, relative_decrease=1e-10)
    resumed = LbfgsDriver(rules)
    assert resumed.rewind(json.loads(json.dumps(problem.method.state()))) == -4
    problem.method = resumed
    problem.run()
    assert problem.method.iterations > 4
    expected = optimum(regularised(logistic(), 1e-3), np.full(SIZE, after))
    assert problem.method.value == pytest.approx(expected, rel=1e-6)


def test_biases_and_what_is_not_trained_have_no_penalty() -> None:
    shapes = {
        "bias": (3,),
        "dense1.weight": (4, 2),
        "dense1.bias": (2,),
        "out.bias": (1,),
        "biased": (5,),
        "mean": (6,),
    }
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert unpenalised(Layout.of(tensors, kinds={"mean": Kind.SUMMED})) == (0, 3, 11, 14, 19, 25)
    assert unpenalised(Layout.of({"w": np.zeros(9)})) == ()


def test_biases_are_exempt_after_a_takeover_too(a_world: Callable[..., World]) -> None:
    layout = Layout.of({"weight": np.zeros((3, SLOTS), np.float32), "bias": np.zeros(SLOTS, np.float32)})
    strategy = {**STRATEGY, "l1": 0.1}
    world = a_world(SHAPE, strategy=strategy, limits={"epochs": 500}, shards=2, replicas=1).all_shards()
    replica = world.replica(layout=layout)
    world.settle()
    assert replica.is_initialiser()
    replica.initialise()
    world.settle()
    for _ in range(2):
        batch = world.machine.training.batch
        assert batch is not None
        assert batch.method.penalty is not None
        assert batch.method.penalty.exempt == (3 * SLOTS, 4 * SLOTS)
        world.take_over()


def test_a_trial_is_accepted_by_the_step_taken() -> None:
    search = Backtracking(10.0, 4.0)
    for value, change in ((11.0, -5.0), (float("nan"), -5.0), (10.0, 0.0), (9.0, 1.0), (9.9996, -5.0)):
        search.update(value, change)
        assert not search.accepted
        search = Backtracking(**json.loads(json.dumps(search.state())))
    assert search.t == 4 / 32
    search.update(9.9994, -5.0)
    assert search.accepted
    assert search.t == 4 / 32


def test_search_ends_after_most_trials() -> None:
    search = Backtracking(1.0, 1.0, shrink=0.1)
    while not search.ended:
        search.update(2.0, -1.0)
    assert search.trials == MOST_TRIALS
    assert search.ended == f"no step is good enough after {MOST_TRIALS} trials"
    with pytest.raises(ValueError, match="the first step is 0"):
        Backtracking(1.0, 0.0)
    with pytest.raises(ValueError, match="steps shrink by 1, must be between 0 and 1"):
        Backtracking(1.0, 1.0, shrink=1.0)
