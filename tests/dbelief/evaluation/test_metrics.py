"""Metrics against scikit-learn, and what is refused."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.core.sample_form import SampleForm
from dbelief.data import Split
from dbelief.errors import JobError, ModelError
from dbelief.evaluation import class_metrics, number_metrics
from dbelief.evaluation.evaluate import evaluate, measure
from dbelief.evaluation.metrics import JobMetrics, metrics_of
from dbelief.job import Job
from dbelief.nn.build import build_network
from tests.jobs import small_job

SEEDS = st.integers(0, 2**32 - 1)
CLASSES, NUMBERS = SampleForm((4,), 3, 3), SampleForm((4,), 2)


def classified(seed: int, samples: int, classes: int, ties: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outputs, labels of which each class has one at least, and the probabilities of the outputs."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(samples, classes)).astype(np.float32)
    if ties:
        outputs = np.round(outputs)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, samples - classes)])
    wide = np.exp(outputs.astype(np.float64))
    return outputs, labels, wide / wide.sum(axis=1, keepdims=True)


@given(SEEDS, st.integers(0, 200), st.booleans())
def test_area_of_two_classes(seed: int, more: int, ties: bool) -> None:
    outputs, labels, _ = classified(seed, 2 + more, 2, ties)
    scores = outputs[:, 1].astype(np.float64) - outputs[:, 0]
    assert class_metrics.auc(outputs, labels) == pytest.approx(oracle.roc_auc_score(labels, scores), abs=1e-12)


@given(SEEDS, st.integers(3, 6), st.integers(0, 200))
def test_metrics_of_classes_are_scikit_learns(seed: int, classes: int, more: int) -> None:
    outputs, labels, probabilities = classified(seed, classes + more, classes, ties=False)
    areas = [oracle.roc_auc_score(labels == label, probabilities[:, label]) for label in range(classes)]
    assert class_metrics.auc(outputs, labels) == pytest.approx(float(np.mean(areas)), abs=1e-12)
    loss = oracle.log_loss(labels, probabilities, labels=range(classes))
    assert class_metrics.log_loss(outputs, labels) == pytest.approx(loss, abs=1e-12)
    assert class_metrics.perplexity(outputs, labels) == pytest.approx(math.exp(loss), rel=1e-12)
    for count in range(1, classes):
        wanted = oracle.top_k_accuracy_score(labels, outputs, k=count, labels=range(classes))
        assert class_metrics.top(count, outputs, labels) == pytest.approx(wanted)
    assert class_metrics.top(classes, outputs, labels) == 1.0


def test_of_equal_outputs_the_first_is_chosen_as_by_argmax() -> None:
    outputs = np.array([[1.0, 1.0, 0.0]] * 3, np.float32)
    assert class_metrics.top(1, outputs, np.array([0, 1, 2])) == pytest.approx(1 / 3)
    assert class_metrics.top(2, outputs, np.array([0, 1, 2])) == pytest.approx(2 / 3)


@given(SEEDS, st.integers(2, 6), st.integers(0, 200))
def test_calibration_error_is_that_of_the_definition(seed: int, classes: int, more: int) -> None:
    outputs, labels, probabilities = classified(seed, classes + more, classes, ties=False)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    wanted = 0.0
    for number in range(15):
        held = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if held.any():
            wanted += held.mean() * abs(right[held].mean() - confidence[held].mean())
    assert class_metrics.calibration_error(outputs, labels) == pytest.approx(wanted, abs=1e-12)


@given(SEEDS, st.integers(1, 4), st.integers(2, 200))
def test_metrics_of_numbers_are_scikit_learns(seed: int, width: int, samples: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=(samples, width)).astype(np.float32)
    outputs = (targets + rng.normal(size=targets.shape)).astype(np.float32)
    assert number_metrics.mae(outputs, targets) == pytest.approx(oracle.mean_absolute_error(targets, outputs), rel=1e-5)
    squared = oracle.mean_squared_error(targets.astype(np.float64), outputs.astype(np.float64))
    assert number_metrics.rmse(outputs, targets) == pytest.approx(math.sqrt(squared), rel=1e-12)
    r2 = oracle.r2_score(targets.astype(np.float64), outputs.astype(np.float64))
    assert number_metrics.r2(outputs, targets) == pytest.approx(r2, rel=1e-9, abs=1e-12)


def test_what_is_not_defined_is_left_out() -> None:
    outputs, labels = np.zeros((3, 2), np.float32), np.ones(3, np.int64)
    assert math.isnan(class_metrics.auc(outputs, labels))
    assert class_metrics.auc(np.eye(3, dtype=np.float32)[:2], np.array([0, 1])) == 1.0, "of the classes that are there"
    metrics = JobMetrics({"auc": class_metrics.auc, "top_1": partial(class_metrics.top, 1)}, 2)
    assert metrics.values(outputs, labels) == {"top_1": 0.0}
    assert math.isnan(number_metrics.r2(np.zeros((3, 1), np.float32), np.ones((3, 1), np.float32)))
    assert class_metrics.perplexity(np.array([[0.0, 5e3]], np.float32), np.array([0])) == math.inf


def a_job(*metrics: Any, folder: Path = Path()) -> Job:
    return small_job(folder, evaluate={"metrics": list(metrics)})


@pytest.mark.parametrize(
    ("metric", "samples", "why"),
    [
        ("auc", NUMBERS, "evaluate.metrics: targets are numbers, so auc has no meaning; there is mae, rmse, r2"),
        ("top_3", NUMBERS, "evaluate.metrics: targets are numbers, so top_3 has no meaning; there is mae, rmse, r2"),
        (
            "mae",
            CLASSES,
            "evaluate.metrics: targets are classes, so mae has no meaning; there is auc, log_loss, perplexity, "
            "calibration_error, top_5",
        ),
    ],
)
def test_metrics_that_do_not_fit_are_refused(metric: str, samples: SampleForm, why: str) -> None:
    with pytest.raises(JobError) as refused:
        metrics_of(a_job(metric), samples)
    assert str(refused.value) == why


SCORES = """
import numpy as np


def right(outputs, targets):
    return np.mean(outputs.argmax(axis=1) == targets)


def wrong(outputs, targets):
    return outputs["a"]


number = 3
"""


def own(tmp_path: Path, name: str) -> Job:
    (tmp_path / "scores.py").write_text(SCORES)
    return a_job({"name": "own", "python": f"scores.py:{name}"}, folder=tmp_path)


def test_a_function_of_the_users_own(tmp_path: Path) -> None:
    """It gets the outputs of all batches, and the targets."""
    rng = np.random.default_rng(0)
    split = Split(rng.normal(size=(2_500, 4)).astype(np.float32), rng.integers(0, 3, 2_500))
    backend = select_backend("cpu")
    model = build_network(
        [("dense", {"units": 3})], "softmax_cross_entropy", features=(4,), outputs=3, backend=backend, seed=0, names=()
    )
    views = model.parameters(np.random.default_rng(1))
    layout = Layout.of(views)
    metrics = metrics_of(own(tmp_path, "right"), CLASSES)
    assert metrics is not None
    quality = evaluate(model, views, split, layout, backend)
    assert measure(metrics, model, views, split, backend) == {"own": quality.accuracy}
    with pytest.raises(ModelError, match=r"last_layer gives an array of shape \(1000, 3\), expected \(1000, 4\)$"):
        measure(JobMetrics(metrics.functions, 4), model, views, split, backend)
    with pytest.raises(ModelError, match="the model has no method last_layer, so it gives no outputs to measure"):
        metrics.check(object())


def test_errors_of_the_users_file_name_their_line(tmp_path: Path) -> None:
    wrong = metrics_of(own(tmp_path, "wrong"), CLASSES)
    assert wrong is not None
    metric = wrong.functions["own"]
    with pytest.raises(ModelError, match=r"scores\.py, line 10: wrong\(outputs, targets\) raised IndexError"):
        metric(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
    with pytest.raises(ModelError, match=r"scores\.py: 'number' is no function, so no metric"):
        metrics_of(own(tmp_path, "number"), CLASSES)
    with pytest.raises(ModelError, match=r"scores\.py: 'left' is not known"):
        metrics_of(own(tmp_path, "left"), CLASSES)
