"""Adagrad on the shards, fed by the client (DistBelief, section 4.1): facts of the whole vector."""

import numpy as np
import pytest

from dbelief.optim import make_rule
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
