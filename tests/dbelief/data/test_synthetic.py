"""Samples drawn from a seed, and no data at all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.data import Dataset, Samples, load
from dbelief.job import NoData, SyntheticData


def drawn(**options: Any) -> Dataset:
    defaults = {"kind": "classes", "samples": 1000, "features": 5, "noise": 0.1, "classes": 4}
    return load(SyntheticData(source="synthetic", **{**defaults, **options}), Path())


def splits(data: Dataset) -> list[Samples]:
    assert data.train is not None
    assert data.validation is not None
    assert data.test is not None
    return [data.train, data.validation, data.test]


def test_classes_are_even_and_lie_around_their_centres() -> None:
    data = drawn()
    train, _, test = splits(data)
    assert (data.classes, data.features, data.outputs) == (4, (5,), 4)
    assert np.bincount(train.targets).tolist() == [200, 200, 200, 200]
    centres = np.array([train.inputs[train.targets == c].mean(axis=0) for c in range(4)])
    nearest = ((test.inputs[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert np.array_equal(nearest, test.targets)
    deviation = np.concatenate([train.inputs[train.targets == c] - centres[c] for c in range(4)]).std()
    assert deviation == pytest.approx(0.1, rel=0.05)


def test_regression_is_linear_up_to_its_noise() -> None:
    data = drawn(kind="regression", samples=5000, noise=0.25)
    train, _, test = splits(data)
    assert (data.classes, data.outputs) == (None, 1)
    weight = np.linalg.lstsq(train.inputs, train.targets, rcond=None)[0]
    assert float((test.targets - test.inputs @ weight).std()) == pytest.approx(0.25, rel=0.1)
    exact = splits(drawn(kind="regression", noise=0))[0]
    residual = exact.targets - exact.inputs @ np.linalg.lstsq(exact.inputs, exact.targets, rcond=None)[0]
    assert float(np.abs(residual).max()) < 1e-5


def test_no_data_is_an_empty_dataset() -> None:
    data = load(NoData(source="none"), Path())
    assert (data.train, data.validation, data.test, data.classes, data.features) == (None, None, None, None, ())
