import numpy as np
import pytest

from dbelief.optim.rules.momentum import CaffeMomentum, Momentum
from dbelief.training.schedule import learning_rate
from tests.dbelief.optim.conftest import Run
from tests.jobs import small_job

STEP = {"kind": "step", "every": 400, "factor": 0.1, "warm_up": {"samples": 200, "start_factor": 0.25}}
POLY = {"kind": "poly", "power": 0.5, "warm_up": {"samples": 200}}


def rates(schedule: dict[str, object]) -> list[float]:
    """Of thirty pushes of 32 samples."""
    strategy = {"name": "downpour", "rule": {"name": "caffe-momentum", "rate": 0.05}}
    job = small_job(strategy=strategy, limits={"samples": 960}, schedule=schedule)
    return [learning_rate(job, 32 * push) for push in range(30)]


def caffe(w0: np.ndarray, gradients: np.ndarray, rates: list[float], mu: float, decay: float) -> list[list[float]]:
    """Number by number in Python's own floats, as Caffe's solver does: history = lr diff + momentum history."""
    w, history, walked = w0.tolist(), [0.0] * len(w0), []
    for gradient, rate in zip(gradients.tolist(), rates, strict=True):
        for i, g in enumerate(gradient):
            diff = g + decay * w[i]
            history[i] = rate * diff + mu * history[i]
            w[i] = w[i] - history[i]
        walked.append(list(w))
    return walked


def walk(rule: Momentum, w0: np.ndarray, gradients: np.ndarray, rates: list[float], fused: bool) -> np.ndarray:
    w, v, walked = w0.copy(), (np.zeros_like(w0),), []
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        if fused:
            rule.apply(w, gradient, v, np.float32(rate), step)
        else:
            rule.apply_reference(np, w, gradient, v, rate, step)
        walked.append(w.copy())
    return np.stack(walked)


def drawn(kind: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal(20).astype(kind), rng.standard_normal((30, 20)).astype(kind)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("schedule", [STEP, POLY], ids=["step", "poly"])
def test_under_a_rate_that_changes_it_is_caffe_s_solver(schedule: dict[str, object], decay: float) -> None:
    rule, over = CaffeMomentum(0.9, decay), rates(schedule)
    assert len(set(over)) > 3
    w0, gradients = drawn()
    expected = np.array(caffe(w0, gradients, over, 0.9, decay))
    np.testing.assert_allclose(walk(rule, w0, gradients, over, fused=False), expected, rtol=1e-13, atol=1e-13)
    narrow = walk(rule, w0.astype(np.float32), gradients.astype(np.float32), over, fused=True)
    np.testing.assert_allclose(narrow, expected, rtol=1e-5, atol=1e-5)
    assert abs(walk(Momentum(0.9, decay), w0, gradients, over, fused=False) - expected).max() > 0.01, "torch's sense"


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_at_a_constant_rate_both_senses_are_one(decay: float, run: Run) -> None:
    w0, gradients = drawn()
    velocities = (np.zeros(20),), (np.zeros(20),)
    ours = run(CaffeMomentum(0.9, decay), w0, gradients, 0.05, velocities[0], fused=False)
    theirs = run(Momentum(0.9, decay), w0, gradients, 0.05, velocities[1], fused=False)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(velocities[0][0], 0.05 * velocities[1][0], rtol=1e-12, atol=1e-14)


def test_momentum_continues_at_its_accumulated_rate() -> None:
    """With a rate of 0 from the second step on, torch's sense stands still, and Caffe's goes on."""
    for rule, rest in ((CaffeMomentum(0.5), -1.5), (Momentum(0.5), -1.0)):
        walked = walk(rule, np.zeros(1, np.float32), np.array([[1.0], [0.0]], np.float32), [1.0, 0.0], fused=True)
        assert walked[-1] == rest
