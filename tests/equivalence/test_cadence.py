"""One replica against algorithm 7.1 by hand, and against sequential SGD (DistBelief, section 4.1 and appendix)."""

from collections.abc import Sequence

import numpy as np
import pytest

from dbelief.core.push import PARAMETERS, LedgerRow
from dbelief.optim import Rule, make_rule
from ps_server.store.shard import Shard
from tests.equivalence.by_hand import Range, gap, pseudocode, sequential
from tests.equivalence.harness import Problem, Replica, network, quadratic, replica, serve, settings, values_of
from worker.strategies.downpour import DownpourSettings

SGD, ADAGRAD = make_rule("sgd", {}), make_rule("adagrad", {})
RATE, BATCH, SAMPLES = 0.05, 3, 131
LEASES = [(0, 36), (36, 72), (72, 131)]
"""12, 12 and 20 mini-batches; the last of them holds 2 samples."""
ROUNDING = 2e-6
PROBLEMS = {"quadratic": quadratic(SAMPLES), "network": network(SAMPLES)}


def trained(
    problem: Problem, chosen: DownpourSettings, leases: Sequence[Range] = LEASES, rule: Rule = SGD
) -> tuple[np.ndarray, Replica]:
    parameters = serve(problem.start, rule)
    with replica(problem, parameters, chosen) as one:
        for lease in leases:
            one.train(*lease)
    return values_of(parameters), one


@pytest.mark.parametrize("rule", [SGD, ADAGRAD], ids=["sgd", "adagrad"])
def test_fetching_and_pushing_every_time_is_sequential(problem: Problem, rule: Rule) -> None:
    w, one = trained(problem, settings(RATE, BATCH), rule=rule)
    assert np.array_equal(w, sequential(problem, LEASES, BATCH, rule, RATE))
    assert gap(problem.start, w) > 0.1, "nothing was trained"
    assert [push.samples for push in one.pushes] == [3] * 43 + [2]
    assert all(push.staleness == 0 for push in one.pushes)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("n_fetch", "n_push", "literal"), [(1, 1, False), (2, 3, False), (1, 4, True), (1000, 7, False)]
)
def test_pushes_name_their_lease_and_the_samples_of_it_that_are_done(
    n_fetch: int, n_push: int, literal: bool, overlap: bool
) -> None:
    """So the ledgers of the shards alone tell the coordinator what is left of a lease, whatever the cadence."""
    problem, parameters = PROBLEMS["quadratic"], serve(PROBLEMS["quadratic"].start, SGD)
    chosen, rows, sequence = settings(RATE, BATCH, n_fetch, n_push, literal, overlap=overlap), [], 0
    with replica(problem, parameters, chosen) as one:
        for lease, (start, stop) in enumerate(LEASES, start=1):
            one.train(start, stop)
            steps = chosen.cadence.steps(stop - start)
            for step in range(steps):
                if chosen.cadence.pushes_after(step, steps):
                    sequence += 1
                    rows.append(LedgerRow(sequence, lease, min((step + 1) * BATCH, stop - start)))
            for shard in parameters.shards:
                assert isinstance(shard, Shard)
                assert shard.ledgers()[PARAMETERS, one.pusher] == (rows[-1], rows[-1])
            assert rows[-1].position == stop - start, "the last push of a lease completes it"
        assert [push.row for push in one.pushes] == rows


def test_each_push_has_the_rate_of_the_samples_before_it(problem: Problem) -> None:
    def rate(samples: int) -> float:
        return 0.1 * 0.97**samples

    w, _ = trained(problem, settings(rate, BATCH))
    assert np.array_equal(w, sequential(problem, LEASES, BATCH, SGD, rate))


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("n_fetch", [2, 3, 4, 1000])
def test_pushing_every_step_is_sequential_sgd(problem: Problem, n_fetch: int, literal: bool) -> None:
    """The server runs SGD at the local rate, and each fetch sees all earlier pushes."""
    w, one = trained(problem, settings(RATE, BATCH, n_fetch, literal=literal))
    assert np.array_equal(w, sequential(problem, LEASES, BATCH, SGD, RATE))
    assert len(set(one.fetched)) == sum(-(-steps // n_fetch) for steps in (12, 12, 20))


@pytest.mark.parametrize(("n_fetch", "n_push"), [(2, 2), (4, 4), (4, 2), (6, 3), (1000, 5)])
def test_aligned_dividing_pushes_match_sgd_to_rounding(problem: Problem, n_fetch: int, n_push: int) -> None:
    w, _ = trained(problem, settings(RATE, BATCH, n_fetch, n_push))
    assert gap(w, sequential(problem, LEASES, BATCH, SGD, RATE)) < ROUNDING


@pytest.mark.parametrize(("n_fetch", "n_push"), [(1, 2), (1, 4), (2, 4), (3, 2)])
def test_aligned_non_dividing_pushes_are_stale(problem: Problem, n_fetch: int, n_push: int) -> None:
    w, _ = trained(problem, settings(RATE, BATCH, n_fetch, n_push))
    assert gap(w, sequential(problem, LEASES, BATCH, SGD, RATE)) > 100 * ROUNDING


@pytest.mark.parametrize("local_rate", [None, 0.02], ids=["server's rate", "its own rate"])
@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("n_push", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("n_fetch", [1, 2, 3, 4])
def test_every_cadence_is_the_pseudocode(n_fetch: int, n_push: int, literal: bool, local_rate: float | None) -> None:
    """Also where several fetches in a row find nothing new, and must undo the local steps all the same."""
    problem = PROBLEMS["quadratic"]
    w, _ = trained(problem, settings(RATE, BATCH, n_fetch, n_push, literal, local_rate))
    by_hand = pseudocode(problem, LEASES, BATCH, SGD, RATE, n_fetch, n_push, literal, local_rate)
    assert np.array_equal(w, by_hand)


@pytest.mark.parametrize("literal", [False, True])
def test_with_adagrad_an_accrued_push_counts_as_one_gradient(problem: Problem, literal: bool) -> None:
    """A grows by the square of the sum, not by the sum of the squares; local steps are plain SGD all the same."""
    w, _ = trained(problem, settings(RATE, BATCH, 3, 3, literal), rule=ADAGRAD)
    assert np.array_equal(w, pseudocode(problem, LEASES, BATCH, ADAGRAD, RATE, 3, 3, literal))
    assert gap(w, sequential(problem, LEASES, BATCH, ADAGRAD, RATE)) > 100 * ROUNDING


@pytest.mark.parametrize("k", [2, 4])
def test_literal_order_delays_gradients_by_k_minus_1_steps(k: int) -> None:
    """Fetch j (at step jk) sees j pushes, and those hold steps 0 to (j-1)k only: the k-1 steps after are lost to it."""
    steps = 5 * k + 1
    _, one = trained(PROBLEMS["quadratic"], settings(RATE, BATCH, k, k, literal=True), [(0, BATCH * (steps + 2))])
    assert [push.steps for push in one.pushes] == [1, *[k] * 5, 2]
    assert [set(versions) for versions in one.fetched[::k]] == [{j} for j in range(len(one.fetched[::k]))]
    pushed_by = np.cumsum([push.steps for push in one.pushes])  # by push: steps it and those before it hold
    for j in range(1, 6):
        assert j * k - pushed_by[j - 1] == k - 1


def test_clipping_shortens_each_gradient_before_it_is_used(problem: Problem) -> None:
    longest, gradient = 0.5, problem.gradients()
    w = problem.start.copy()
    clipped = 0
    for start in range(0, 30, BATCH):
        g = gradient(w, start, start + BATCH)
        norm = float(np.sqrt(np.dot(g, g)))
        clipped += norm > longest
        w = w - np.float32(RATE) * (g * np.float32(longest / norm) if norm > longest else g)
    assert clipped, "no gradient was long enough"
    found, _ = trained(problem, settings(RATE, BATCH, clip_norm=longest), [(0, 30)])
    assert gap(found, w) < ROUNDING
