"""Layers that read tables beside torch's `embedding_bag` and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from dbelief.nn import Batch  # noqa: E402  (after the check for torch)
from tests.dbelief.nn.layers.test_table_layers import KEYS, SAMPLES, bags_of, layer, network  # noqa: E402


def pooled(bags: Any, rows: Any, mode: str, power: int = 1) -> Any:
    """Of torch; in a mean all values are 1."""
    places, offsets = torch.from_numpy(np.searchsorted(KEYS, bags.keys)), torch.from_numpy(bags.indptr[:-1])
    weights = torch.from_numpy(bags.values) ** power if mode == "sum" else None
    return torch.nn.functional.embedding_bag(places, rows**power, offsets, mode=mode, per_sample_weights=weights)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@given(SAMPLES, st.integers(0, 99))
def test_loss_and_gradients_are_those_of_torch(mode: str, samples: list[Any], seed: int) -> None:
    if mode == "mean":
        samples = [tuple([(place, 4) for place, _ in bag] for bag in sample) for sample in samples]
    model, rows = network(
        [
            layer("embedding_bag", table="v", mode=mode),
            ("relu", {}),
            ("dense", {"units": 1}),
            layer("fm", factors="v", linear="w", join="add"),
        ]
    )
    bags, rng = bags_of(samples), np.random.default_rng(seed)
    targets = rng.integers(0, 2, len(samples))
    views = {key: value + rng.standard_normal(value.shape, np.float32) for key, value in model.parameters(rng).items()}
    out = {key: np.full_like(value, np.nan) for key, value in views.items()}
    loss = model.loss_and_gradient(views, Batch(bags, targets), out)

    held = {key: torch.from_numpy(value).clone().requires_grad_() for key, value in (views | rows).items()}
    columns = [bags.columns[name] for name in "ab"]
    deep = torch.cat([pooled(own, held["v"], mode) for own in columns], 1).relu()
    sums, squares, linear = (
        sum(pooled(own, held[table], "sum", power) for own in columns)
        for table, power in (("v", 1), ("v", 2), ("w", 1))
    )
    logits = deep @ held["dense1.weight"] + held["dense1.bias"]
    logits = logits + held["fm1.bias"] + linear + (sums**2 - squares).sum(1, keepdim=True) / 2
    own = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], torch.from_numpy(targets).float())
    own.backward()

    assert loss == pytest.approx(own.item(), rel=1e-4, abs=1e-5)
    found = dict(out)
    for table, (keys, gradients) in model.take_rows().items():
        found[table] = np.zeros_like(rows[table])
        found[table][np.searchsorted(KEYS, keys)] = gradients
    for key, gradient in found.items():
        expected = held[key].grad.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4 * (1 + abs(expected).max()))
