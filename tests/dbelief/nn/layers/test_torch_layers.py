"""Agreement with torch, by what tests/reference/torch_layers.py wrote; and that it would write the same again."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn.build import LAYERS, LOSSES
from dbelief.nn.workspace import Workspace

TESTS = Path(__file__).parents[3]
WORK = select_backend("cpu")

with np.load(TESTS / "golden" / "torch_layers.npz") as file:
    GOLDEN = dict(file)
CASES = [name.partition(".")[2] for name in GOLDEN if name.startswith("about.")]


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and bool(abs(found - expected).max() <= 1e-9 * abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_a_layer(case: str) -> None:
    about = json.loads(str(GOLDEN[f"about.{case}"]))
    layer, work = LAYERS[about["kind"]](**about["options"]), Workspace(WORK)
    x, expected, dy = (np.ascontiguousarray(GOLDEN[f"{name}.{case}"]) for name in ("x", "y", "dy"))
    parameters = [GOLDEN[f"p{i}.{case}"] for i in range(len(layer.tensors))]
    gradients = [np.full_like(p, np.nan) for p in parameters]
    y = np.full((len(x), *layer.outputs(x.shape[1:])), np.nan)
    dx = np.full_like(x, np.nan) if x.dtype.kind == "f" else None  # whole numbers have no gradient
    layer.forward(work, x, parameters, y)
    assert near(y, expected)
    layer.backward(work, x, y, dy, parameters, gradients, dx)
    if dx is not None:
        assert near(dx, GOLDEN[f"dx.{case}"])
    for i, gradient in enumerate(gradients):
        assert near(gradient, GOLDEN[f"d{i}.{case}"])


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "one_vs_all"])
def test_a_loss(name: str) -> None:
    loss, work = LOSSES[name](), Workspace(WORK)
    x, targets = GOLDEN[f"x.{name}"], GOLDEN[f"targets.{name}"]
    slope = np.empty_like(x)
    assert float(loss.forward(work, x, targets, slope)) == pytest.approx(float(GOLDEN[f"total.{name}"]), rel=1e-12)
    loss.backward(work, targets, slope)
    assert near(slope, GOLDEN[f"dx.{name}"])


def test_every_layer_and_loss_is_there() -> None:
    kinds = {json.loads(str(GOLDEN[f"about.{case}"]))["kind"] for case in CASES}
    assert kinds == LAYERS.keys() - {"image", "dropout", "cross"}  # which torch has not, or draws in its own way


@pytest.mark.torch
def test_installed_torch_gives_the_golden_values() -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    spec = importlib.util.spec_from_file_location("torch_layers", TESTS / "reference" / "torch_layers.py")
    assert spec is not None
    assert spec.loader is not None
    oracle: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    again = oracle.everything()
    assert again.keys() == GOLDEN.keys()
    for name, values in again.items():
        if not name.startswith("about."):
            np.testing.assert_allclose(values, GOLDEN[name], rtol=1e-9, atol=1e-12)
