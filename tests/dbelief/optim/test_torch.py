"""Agreement with torch.optim, by trajectories that tests/reference/torch_trajectories.py wrote."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from dbelief.core.absent import Missed, joined
from dbelief.optim import Rule, apply_present, make_rule, missed_after
from tests.dbelief.optim.conftest import Run

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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("kind", "tolerance"), [("float32", 16 * 2.0**-23), ("float64", 1e-14)])
@pytest.mark.parametrize("cuts", [[], [5, 20, 33]], ids=["whole", "segments"])
def test_parameters_that_take_no_part_in_some_steps(
    case: str, kind: str, tolerance: float, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always, a random half of the steps, the first one alone, never: torch leaves one without a gradient as it is."""
    if kind == "float64":  # by the formula: the loop, which another test of this process may have compiled, has none
        monkeypatch.setattr("dbelief.optim.apply._compiled", set())
    with np.load(GOLDEN / "torch_inputs.npz") as inputs, np.load(GOLDEN / f"torch_{case}.npz") as golden:
        about = json.loads(str(golden["about"]))
        w0, gradients = inputs["w0"].astype(kind), inputs["gradients"].astype(kind)
    with np.load(GOLDEN / "torch_absent.npz") as golden:
        expected, stops, took = golden[f"{case}/{kind}"], golden["stops"].tolist(), golden["took"]
    rule, bounds = make_rule(about["rule"], about["options"]), list(zip([0, *stops], stops, strict=False))
    absent = [[pair for pair, here in zip(bounds, row, strict=True) if not here] for row in took]
    ends = [0, *cuts, 50]
    parts = [
        _walked(rule, w0[a:b], gradients[:, a:b], about["rate"], [_clipped(row, a, b) for row in absent])
        for a, b in itertools.pairwise(ends)
    ]
    reach = np.maximum.accumulate(abs(np.vstack([w0, expected])), axis=0)[1:]
    assert np.all(abs(np.concatenate(parts, axis=1) - expected) <= tolerance * reach)


def _clipped(pairs: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    clipped = [(max(a, start) - start, min(b, stop) - start) for a, b in pairs]
    return [(a, b) for a, b in clipped if a < b]


def _walked(
    rule: Rule, w0: np.ndarray, gradients: np.ndarray, rate: float, absent: list[list[tuple[int, int]]]
) -> np.ndarray:
    w, steps = w0.copy(), []
    missed: Missed = ()
    states = tuple(np.full_like(w, value) for value in rule.state.values())
    for made, (gradient, pairs) in enumerate(zip(gradients, absent, strict=True)):
        ranges = joined(pairs)
        apply_present(rule, w, gradient, states, w.dtype.type(rate), made, ranges, missed)
        missed = missed_after(rule, missed, ranges)
        steps.append(w.copy())
    return np.stack(steps)
