"""Fetches that run ahead of the push before them: how far behind they may be, and that they are never torn."""

import numpy as np

from dbelief.optim import make_rule
from tests.equivalence.by_hand import Server
from tests.equivalence.harness import quadratic, replica, serve, settings, values_of

PROBLEM = quadratic(120)
SGD = make_rule("sgd", {})
RATE, BATCH = 0.05, 3


def test_gradients_use_one_copy_at_most_three_pushes_old() -> None:
    """One replica, so the copy fetched for a step is that of a past w; two buffers bound how long past."""
    parameters = serve(PROBLEM.start, SGD, shards=1, nominal=len(PROBLEM.start))
    with replica(PROBLEM, parameters, settings(RATE, BATCH, overlap=True)) as one:
        one.train(0, 120)
    server, gradient = Server(PROBLEM.start, SGD), PROBLEM.gradients()
    past = [server.w.copy()]
    for step, (version,) in enumerate(one.fetched):
        assert max(0, step - 3) <= version <= step
        server.push(gradient(past[version], BATCH * step, BATCH * (step + 1)), RATE)
        past.append(server.w.copy())
    assert np.array_equal(values_of(parameters), server.w)


def test_lease_starts_with_the_newest_parameters() -> None:
    """Not with what was fetched ahead while the last lease ended, however long ago that was."""
    parameters = serve(PROBLEM.start, SGD, shards=1, nominal=len(PROBLEM.start))
    ahead = settings(RATE, BATCH, overlap=True)
    with replica(PROBLEM, parameters, ahead, 0) as one, replica(PROBLEM, parameters, ahead, 1) as other:
        one.train(0, 30)
        other.train(30, 90)
        one.train(90, 120)
    assert one.fetched[10] == (30,)
    assert other.fetched[0] == (10,)
