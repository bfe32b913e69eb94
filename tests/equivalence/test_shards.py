"""One arrival order gives one result, in however many shards and segments the vector is cut (DistBelief, 4.1)."""

import numpy as np
import pytest

from dbelief.optim import RULES, make_rule
from tests.equivalence.harness import Problem, Replica, network, quadratic, serve, settings, values_of

SAMPLES = 120
OPTIONS = {
    "sgd": {"weight_decay": 0.01},
    "momentum": {"mu": 0.5},
    "caffe-momentum": {"mu": 0.5, "weight_decay": 0.01},
    "nesterov": {},
    "adagrad": {},
    "adam": {},
    "adamw": {},
    "ftrl": {"l1": 0.01},
}
CUTS = [(1, None), (2, None), (7, None), (10, None), (1, 1), (10, 1)]
"""Shards, and numbers per segment where not a few segments per shard."""
PROBLEMS = {"quadratic": quadratic(SAMPLES), "network": network(SAMPLES)}


def in_turn(problem: Problem, rule_name: str, shards: int, nominal: int | None) -> np.ndarray:
    """Three replicas, lease by lease in turn, that fetch, step on their own and push in cadences of their own."""
    parameters = serve(problem.start, make_rule(rule_name, OPTIONS[rule_name]), shards, nominal)
    cadences = [settings(0.02, 3, 1, 1), settings(0.02, 4, 4, 2), settings(0.02, 5, 2, 3, literal=True)]
    replicas = [Replica(problem, parameters, chosen, number) for number, chosen in enumerate(cadences)]
    try:
        for lease in range(6):
            replicas[lease % 3].train(lease * 20, lease * 20 + 20)
    finally:
        for one in replicas:
            one.close()
    assert all(min(version) == max(version) for version in (one.fetched[-1] for one in replicas))
    return values_of(parameters)


def test_every_rule_is_tried() -> None:
    assert set(OPTIONS) == set(RULES)


@pytest.mark.parametrize("rule_name", RULES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_number_of_shards_leaves_the_result_as_it_is(name: str, rule_name: str) -> None:
    problem = PROBLEMS[name]
    whole = in_turn(problem, rule_name, 1, len(problem.start))
    assert np.abs(whole - problem.start).max() > 0.05, "nothing was trained"
    for shards, nominal in CUTS:
        assert np.array_equal(in_turn(problem, rule_name, shards, nominal), whole), (shards, nominal)


def test_a_shard_may_be_empty() -> None:
    problem = PROBLEMS["quadratic"]
    parameters = serve(problem.start, make_rule("sgd", {}), shards=10, nominal=8)
    assert sum(place.count == 0 for place in parameters.placement.places) == 7
    assert np.array_equal(in_turn(problem, "sgd", 10, 8), in_turn(problem, "sgd", 1, 23))
