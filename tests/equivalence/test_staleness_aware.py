"""A rate divided by each push's own staleness (Zhang, Gupta, Lian and Liu 2016), measured per segment by the shard."""

import numpy as np
import pytest

from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from tests.equivalence.harness import serve, values_of
from tests.equivalence.test_delay import round_robin

SGD = make_rule("sgd", {})
RATE = np.float32(0.25)
H = np.array([0.1, 0.3, 0.7, 1.1], np.float32)
START = np.linspace(1, 2, 4).astype(np.float32)


@pytest.mark.parametrize("replicas", range(1, 9))
def test_replicas_in_turn_match_delayed_descent(replicas: int) -> None:
    w = [START]
    for t in range(60):
        delay = min(t, replicas - 1)
        w.append(w[t] - RATE / np.float32(max(1, delay)) * (H * w[t - delay]))
    found, plain = (round_robin(H, START, replicas, 60, shards=2, aware=aware)[0] for aware in (True, False))
    assert np.array_equal(found, np.stack(w))
    assert np.array_equal(found, plain) == (replicas <= 2), "a staleness of one at most changes no bit"


def test_each_segment_divides_by_its_own_staleness() -> None:
    rates: dict[int, float] = {}
    parameters = serve(
        START,
        SGD,
        shards=1,
        nominal=2,
        on_apply=lambda row: rates.update({row.segment: row.rate}),
        staleness_aware=True,
    )
    first, other = Pusher(0, 1), Pusher(1, 2)
    for sequence in range(1, 5):
        parameters.push(START, np.zeros(2, np.int64), Push(other, sequence, RATE))
    before = values_of(parameters)
    parameters.push(START, np.array([0, 3], np.int64), Push(first, 1, RATE))
    assert rates == {0: 0.0625, 1: 0.25}
    expected = before - np.array([0.0625, 0.0625, 0.25, 0.25], np.float32) * START
    np.testing.assert_array_equal(values_of(parameters), expected)
