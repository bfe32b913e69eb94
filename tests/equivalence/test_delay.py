"""P replicas that push in turn and fetch right after: gradients delayed by exactly P - 1 pushes."""

import numpy as np
import pytest

from dbelief.core.push import Push, Pusher
from dbelief.optim import make_rule
from tests.equivalence.harness import serve, values_of

SGD = make_rule("sgd", {})
RATE = np.float32(0.25)
STEPS = {1: 338, 2: 1367, 3: 2300, 4: 3332, 5: 4250, 6: 5200, 7: 6200, 8: 7195}
"""By P: at 0.98 of the limit, pushes until an amplitude of 1 has fallen to about 1e-6."""


def limit(replicas: int) -> float:
    """Largest stable rate * h of w(t + 1) = w(t) - rate h w(t - P + 1)."""
    return float(2 * np.sin(np.pi / (2 * (2 * replicas - 1))))


def round_robin(
    h: np.ndarray, start: np.ndarray, replicas: int, pushes: int, shards: int, aware: bool = False
) -> tuple[np.ndarray, list[float]]:
    """All w(t) of f(w) = sum of h w^2 / 2, shape (pushes + 1, N), and the staleness of each push."""
    parameters = serve(start, SGD, shards, nominal=-(-len(start) // shards), staleness_aware=aware)
    segments = len(parameters.placement.spans)
    copies = [start.copy() for _ in range(replicas)]
    versions = [np.zeros(segments, np.int64) for _ in range(replicas)]
    history, staleness = [start.copy()], []
    for t in range(pushes):
        turn = t % replicas
        push = Push(Pusher(turn, turn + 1), t // replicas + 1, RATE)
        staleness.append(parameters.push(h * copies[turn], versions[turn], push).staleness)
        parameters.pull(copies[turn], versions[turn])
        history.append(copies[turn].copy())
    assert np.array_equal(history[-1], values_of(parameters))
    return np.stack(history), staleness


@pytest.mark.parametrize("replicas", range(1, 9))
def test_pushing_in_turn_is_gradient_descent_with_a_delay(replicas: int) -> None:
    h = (limit(replicas) * np.array([0.1, 0.3, 0.7, 0.98, 1.02, 1.5]) / RATE).astype(np.float32)
    start = np.linspace(1, 2, len(h)).astype(np.float32)
    found, staleness = round_robin(h, start, replicas, 60, shards=2)
    w = [start]
    for t in range(60):
        w.append(w[t] - RATE * (h * w[max(0, t - replicas + 1)]))
    assert np.array_equal(found, np.stack(w))
    assert staleness == [min(t, replicas - 1) for t in range(60)]


@pytest.mark.parametrize("replicas", range(1, 9))
def test_the_delay_is_borne_up_to_its_limit_and_no_further(replicas: int) -> None:
    """Below the limit w falls to 0, above it w grows; float32 neither overflows nor stalls on the way."""
    shares = np.array([0.2, 0.6, 0.9, 0.98, 1.02])
    h = (limit(replicas) * shares / RATE).astype(np.float32)
    w, _ = round_robin(h, np.ones(len(h), np.float32), replicas, STEPS[replicas], shards=1)
    began, ended = np.abs(w[: 8 * replicas]).max(axis=0), np.abs(w[-8 * replicas :]).max(axis=0)
    assert (ended[:4] < 2e-6 * began[:4]).all()
    assert 1e5 < ended[4] / began[4] < 1e9
