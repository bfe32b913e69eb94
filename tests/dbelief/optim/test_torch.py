"""Agreement with torch.optim, by trajectories that tests/reference/torch_trajectories.py wrote."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dbelief.optim import make_rule

Run = Callable[..., np.ndarray]
GOLDEN = Path(__file__).parents[2] / "golden"
CASES = ["sgd", "momentum", "nesterov", "adagrad", "adagrad_eps", "adam", "adamw"]
CASES += ["sgd_decay", "momentum_decay", "nesterov_decay"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "fused", "tolerance"), [
    ("float32", True, 16 * 2.0**-23),
    ("float32", False, 16 * 2.0**-23),
    ("float64", False, 1e-14),
])  # fmt: skip
def test_thirty_steps(run: Run, case: str, kind: str, fused: bool, tolerance: float) -> None:
    """To a few units in the last place of the largest |w| so far: w may pass through 0, errors do not."""
    with np.load(GOLDEN / "torch_inputs.npz") as inputs, np.load(GOLDEN / f"torch_{case}.npz") as golden:
        about, expected = json.loads(str(golden["about"])), golden[kind]
        w0, gradients = inputs["w0"].astype(kind), inputs["gradients"].astype(kind)
    rule = make_rule(about["rule"], about["options"])
    walked = run(rule, w0, gradients, about["rate"], fused=fused)
    assert expected.shape == (30, 50)
    reach = np.maximum.accumulate(abs(np.vstack([w0, expected])), axis=0)[1:]
    assert np.all(abs(walked - expected) <= tolerance * reach)
