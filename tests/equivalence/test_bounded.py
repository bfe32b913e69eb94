"""The staleness dial at N >= 1 with the worker's own threads: one replica is plain SGD, several keep within it."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from dbelief.core.push import AppliedPush
from dbelief.optim import make_rule
from tests.equivalence.by_hand import sequential
from tests.equivalence.harness import (
    Problem,
    Replica,
    in_threads,
    network,
    quadratic,
    replica,
    serve,
    settings,
    values_of,
)

SGD = make_rule("sgd", {})
RATE, BATCH, SAMPLES = 0.05, 3, 131
LEASES = [(0, 36), (36, 72), (72, 131)]
PROBLEMS = {"quadratic": quadratic(SAMPLES), "network": network(SAMPLES)}


@pytest.mark.parametrize("staleness", [1, 2, 9])
def test_one_replica_is_sequential_sgd(problem: Problem, staleness: int) -> None:
    parameters = serve(problem.start, SGD, shards=2, replicas=1, staleness=staleness)
    with replica(problem, parameters, settings(RATE, BATCH)) as one:
        for lease in LEASES:
            one.train(*lease)
    assert np.array_equal(values_of(parameters), sequential(problem, LEASES, BATCH, SGD, RATE))
    assert all(push.staleness == 0 for push in one.pushes)


@pytest.mark.parametrize(
    ("staleness", "n_fetch", "n_push", "overlap", "literal"),
    [
        (1, 1, 1, False, False),
        (1, 1, 1, True, False),
        (2, 1, 1, False, False),
        (2, 1, 2, False, False),
        (5, 3, 3, False, False),
        (7, 3, 3, True, False),
        (5, 3, 3, False, True),
        (4, 4, 1, False, False),
    ],
)
def test_minimal_staleness_bound_neither_blocks_nor_leads(
    staleness: int, n_fetch: int, n_push: int, overlap: bool, literal: bool, eager_threads: None
) -> None:
    """Leads are read from each segment's order of pushes; every replica makes the same 30 mini-batches."""
    problem, replicas = PROBLEMS["quadratic"], 3
    rows: list[tuple[int, int, int]] = []

    def note(row: AppliedPush) -> None:
        rows.append((row.segment, row.pusher.replica, row.sequence))

    parameters = serve(problem.start, SGD, shards=2, replicas=replicas, on_apply=note, staleness=staleness)
    cadence = settings(0.01, 1, n_fetch, n_push, literal=literal, overlap=overlap)
    ones = [Replica(problem, parameters, cadence, number) for number in range(replicas)]

    def work(one: Replica) -> None:
        for start in (0, 12):
            one.train(start, start + 12 if start == 0 else start + 18)

    in_threads(*(partial(work, one) for one in ones))
    for one in ones:
        one.close()
    after = np.cumsum([push.steps for push in ones[0].pushes])
    assert after[-1] == 30
    passed: dict[int, Counter[int]] = {}
    for segment, number, sequence in rows:
        clocks = passed.setdefault(segment, Counter(dict.fromkeys(range(replicas), 0)))
        clocks[number] = int(after[sequence - 1])
        assert max(clocks.values()) - min(clocks.values()) <= staleness + 1
    assert {tuple(sorted(clocks.values())) for clocks in passed.values()} == {(30,) * replicas}
