"""Adagrad on the shards, fed by the client (DistBelief, section 4.1): facts of the whole vector."""

from collections.abc import Iterable

import numpy as np
import pytest

from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters
from tests.equivalence.by_hand import gap, pseudocode, sequential
from tests.equivalence.harness import Problem, network, quadratic, replica, serve, settings, values_of

ADAGRAD = make_rule("adagrad", {})
RATE, BATCH, SAMPLES = 0.1, 4, 90
LEASES = [(0, 40), (40, 60), (60, 90)]
"""10, 5 and 8 mini-batches; the last holds 2 samples."""
ROUNDING = 2e-6
PROBLEMS = {"quadratic": quadratic(SAMPLES), "network": network(SAMPLES)}


@pytest.fixture(params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> Problem:
    return PROBLEMS[request.param]


def trained(problem: Problem, n: int = 1, literal: bool = False) -> np.ndarray:
    parameters = serve(problem.start, ADAGRAD, shards=3)
    with replica(problem, parameters, settings(RATE, BATCH, n, n, literal)) as one:
        for lease in LEASES:
            one.train(*lease)
    return values_of(parameters)


def fed(start: np.ndarray, gradients: Iterable[np.ndarray]) -> InProcessParameters:
    """Shards to which these gradients were pushed."""
    parameters = serve(start, ADAGRAD, shards=3)
    for sequence, gradient in enumerate(gradients, start=1):
        versions = np.full(len(parameters.placement.spans), sequence - 1, np.int64)
        parameters.push(gradient, versions, Push(Pusher(0, 1), sequence, np.float32(RATE)))
    return parameters


def test_fetch_and_push_every_step_is_sequential_adagrad(problem: Problem) -> None:
    w = trained(problem)
    assert np.array_equal(w, sequential(problem, LEASES, BATCH, ADAGRAD, RATE))
    assert gap(problem.start, w) > 0.1, "nothing was trained"


@pytest.mark.parametrize("literal", [False, True])
def test_an_accrued_push_counts_as_one_gradient(problem: Problem, literal: bool) -> None:
    """A grows by the square of the sum, not by the sum of the squares; local steps are plain SGD all the same."""
    w = trained(problem, 3, literal)
    assert np.array_equal(w, pseudocode(problem, LEASES, BATCH, ADAGRAD, RATE, 3, 3, literal))
    assert gap(w, sequential(problem, LEASES, BATCH, ADAGRAD, RATE)) > 100 * ROUNDING


@pytest.mark.parametrize("scale", [2.0**9, 2.0**-7])
def test_gradient_scale_of_a_power_of_two_changes_nothing(scale: float) -> None:
    scaled = quadratic(SAMPLES, scale=scale)
    assert np.array_equal(trained(scaled), trained(PROBLEMS["quadratic"]))
    assert not np.array_equal(
        scaled.gradients()(scaled.start, 0, 4), quadratic(SAMPLES).gradients()(scaled.start, 0, 4)
    )


def test_other_gradient_scales_change_only_rounding() -> None:
    assert gap(trained(quadratic(SAMPLES, scale=3.0)), trained(PROBLEMS["quadratic"])) < 1e-5


def test_the_first_step_is_the_rate_by_the_sign() -> None:
    start = np.arange(20, dtype=np.float32) / 7
    first = np.random.default_rng(0).normal(size=20).astype(np.float32)
    first[::4] = 0
    assert np.array_equal(values_of(fed(start, [first])), start - np.float32(RATE) * np.sign(first))


def test_a_constant_gradient_walks_like_the_inverse_roots() -> None:
    start, g = np.zeros(20, np.float32), np.linspace(-2, 3, 20).astype(np.float32)
    pushes = 50
    w = values_of(fed(start, [g] * pushes))
    walked = RATE * (np.arange(1, pushes + 1) ** -0.5).sum()
    assert gap(w, -np.sign(g) * walked) < 1e-5


def test_coordinates_with_zero_gradient_do_not_move() -> None:
    """Nothing: exactly 0, or so small that its square is 0 in float32."""
    start = np.linspace(-1, 1, 20).astype(np.float32)
    gradients = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)
    gradients[:, :5] = 0
    gradients[:, 5:9] = 1e-30
    w = values_of(fed(start, gradients))
    assert np.array_equal(w[:9], start[:9])
    assert np.isfinite(w).all()
    assert (w[9:] != start[9:]).all()
