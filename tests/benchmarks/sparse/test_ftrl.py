"""FTRL in NumPy, against dense gradients stepped by the shards' rule, and against the minimum that it is."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sparse.ftrl import FtrlModel, FtrlSetting
from dbelief.data.bags import Bag, SparseBatch
from dbelief.optim.rules.ftrl import Ftrl

KEYS = 12


def batch_of(rng: np.random.Generator, n: int) -> SparseBatch:
    """Samples of 0 to 4 keys, of which a sample may have one twice."""
    counts = rng.integers(0, 5, n)
    keys = rng.integers(0, KEYS, counts.sum())
    bag = Bag(keys, np.cumsum(counts) - counts, rng.standard_normal(keys.size).astype(np.float32))
    return SparseBatch(rng.choice([-1, 1], n).astype(np.float32), np.ones(n, np.float32), {"features": bag})


def dense(batch: SparseBatch) -> np.ndarray:
    """(n, KEYS) the same samples."""
    bag, rows = batch.bags["features"], np.zeros((len(batch), KEYS))
    stops = [*bag.offsets[1:], bag.keys.size]
    for row, start, stop in zip(rows, bag.offsets, stops, strict=True):
        for key, value in zip(bag.keys[start:stop], bag.values[start:stop], strict=True):
            row[key] += value
    return rows


@pytest.mark.parametrize(
    "setting", [FtrlSetting(0.3), FtrlSetting(0.1, 0.5, 0.2, 0.3), FtrlSetting(1.0, 2.0, 3.0)], ids=str
)
def test_the_steps_are_those_of_the_shards_rule_on_dense_gradients(setting: FtrlSetting) -> None:
    rng, model, rule = np.random.default_rng(0), FtrlModel(KEYS, setting), Ftrl(*setting[1:])
    w, z, n = np.zeros((3, KEYS))
    bias = squares = 0.0
    for step in range(30):
        batch = batch_of(rng, 7)
        rows = dense(batch)
        logits = rows @ w + bias
        np.testing.assert_allclose(model.logits(batch), logits, atol=1e-9)
        model.step(batch)
        errors = 1 / (1 + np.exp(-logits)) - (batch.labels == 1)
        rule.apply_reference(np, w, rows.T @ errors, (z, n), np.float64(setting.rate), step)
        squares += errors.sum() ** 2
        bias -= setting.rate * errors.sum() / np.sqrt(squares)
        np.testing.assert_allclose(model.weights(np.arange(KEYS)), w, atol=1e-9)
    assert model.bias == pytest.approx(bias)
    assert (np.abs(w) > 0).any()
    assert (w == 0).any() == (setting.l1 > 1)


def test_the_weight_is_where_the_regularised_sum_is_least() -> None:
    """One key in all samples: the slope at w of sum g w + sum s (w - w_i)^2 / 2 + l1 |w| + l2 w^2 / 2 is 0."""
    setting, labels = FtrlSetting(0.5, 1.0, 0.2, 0.1), np.random.default_rng(1).random(40) < 0.8
    model, slope, roots, squares = FtrlModel(1, setting), 0.0, 0.0, 0.0
    shifts = []
    for label in labels:
        (w,) = model.weights(np.zeros(1, int))
        bag = Bag(np.zeros(1, int), np.zeros(1, int), np.ones(1, np.float32))
        batch = SparseBatch(np.array([label], np.float32), np.ones(1, np.float32), {"features": bag})
        g = 1 / (1 + np.exp(-model.logits(batch)[0])) - label
        slope, squares = slope + g, squares + g * g
        shifts.append(((np.sqrt(squares) - roots) / setting.rate, w))
        roots = np.sqrt(squares)
        model.step(batch)
    (w,) = model.weights(np.zeros(1, int))
    slope += sum(pull * (w - before) for pull, before in shifts) + (setting.beta / setting.rate + setting.l2) * w
    assert w > 0
    assert slope + setting.l1 == pytest.approx(0, abs=1e-9)
