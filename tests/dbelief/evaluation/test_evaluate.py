"""Samples of one group are evaluated together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.data import SparseSplit, Split
from dbelief.evaluation import evaluate as evaluation
from dbelief.evaluation.evaluate import evaluate_groups
from dbelief.nn import Batch, Dense, HasLogProbabilities, Network, SparseRows
from dbelief.nn.losses import SoftmaxCrossEntropy
from tests.dbelief.nn.kernels.test_sparse import rows_of

CPU = select_backend("cpu")


class Silent:
    """Tells no probabilities."""

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {}

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        return 0.0


class Given(Silent):
    """Tells the inputs as they are, as probabilities."""

    def log_probabilities(self, views: Mapping[str, Any], batch: Batch) -> np.ndarray:
        logs: np.ndarray = np.log(batch.inputs)
        return logs


# Group 7 is of class 0: two of three samples say 1, but the one that says 0 is surer. 0.9 0.4 0.4 > 0.1 0.6 0.6.
# Group 3 is of class 1: 0.5 0.2 < 0.5 0.8. Group 5 is of class 1, and told as 0.
PROBABILITIES = np.array([[0.9, 0.1], [0.5, 0.5], [0.4, 0.6], [0.7, 0.3], [0.4, 0.6], [0.2, 0.8]], np.float32)
GROUPS = np.array([7, 3, 7, 5, 7, 3])
LABELS = np.array([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize("at_once", [1, 2, 4, 1000])
def test_group_evaluation_takes_the_most_probable_class(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "BATCH", at_once)
    assert evaluate_groups(Given(), {}, Split(PROBABILITIES, LABELS, groups=GROUPS), CPU) == (3, 2 / 3)


def test_sparse_sets_are_evaluated_as_the_model_reads_them() -> None:
    x, labels = np.eye(7, 5, dtype=np.float32), np.arange(7) % 2
    network = Network([Dense(2)], SoftmaxCrossEntropy(), 5, 2, CPU)
    views = network.parameters(np.random.default_rng(0))
    layout = Layout.of(views)
    sparse, dense = SparseSplit.of(rows_of(x), labels), Split(x, labels)
    found, expected = (evaluation.evaluate(network, views, each, layout, CPU) for each in (sparse, dense))
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.accuracy == expected.accuracy

    class Reads(Silent):
        def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
            return float((batch.inputs * np.arange(5)).sum() / len(batch))

    assert evaluation.evaluate(Reads(), views, sparse, layout, CPU).loss == pytest.approx(10 / 7)
    (batch,) = evaluation.batches(network, sparse, CPU)
    assert isinstance(batch.inputs, SparseRows)


def test_many_small_probabilities_do_not_vanish() -> None:
    inputs = np.full((5_000, 3), 1e-30, np.float32)
    inputs[:, 2] = 2e-30
    split = Split(inputs, np.full(5_000, 2), groups=np.zeros(5_000, np.int64))
    assert evaluate_groups(Given(), {}, split, CPU) == (1, 1.0)


def test_no_group_result_without_groups_or_probabilities() -> None:
    assert evaluate_groups(Given(), {}, Split(PROBABILITIES, LABELS), CPU) is None
    assert evaluate_groups(Silent(), {}, Split(PROBABILITIES, LABELS, groups=GROUPS), CPU) == (3, None)


def test_network_gives_log_probabilities() -> None:
    network = Network([Dense(2)], SoftmaxCrossEntropy(), 2, 2, CPU)
    assert isinstance(network, HasLogProbabilities)
    views = {"dense1.weight": np.eye(2, dtype=np.float32), "dense1.bias": np.zeros(2, np.float32)}
    split = Split(np.log(PROBABILITIES), LABELS, groups=GROUPS)
    np.testing.assert_allclose(network.log_probabilities(views, Batch(split.inputs, LABELS)), split.inputs, rtol=1e-5)
    assert evaluate_groups(network, views, split, CPU) == (3, 2 / 3)
