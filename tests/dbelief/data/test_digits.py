"""The digits that come with dbelief."""

from pathlib import Path

import numpy as np
import pytest

from dbelief.data import load
from dbelief.data.formats.npz import read_arrays
from dbelief.job import DigitsData

HERE = Path(__file__).parents[3] / "dbelief" / "data"


def test_they_are_those_of_scikit_learn() -> None:
    found = pytest.importorskip("sklearn.datasets").load_digits()
    with (HERE / "digits.npz").open("rb") as file:
        arrays = read_arrays(file, "digits.npz")
    assert arrays["images"].dtype == arrays["labels"].dtype == np.uint8
    assert np.array_equal(arrays["images"], found.data)
    assert np.array_equal(arrays["labels"], found.target)


def test_the_split_is_stratified_and_disjoint() -> None:
    data = load(DigitsData(source="digits"), Path())
    splits = [data.train, data.validation, data.test]
    assert [len(split) for split in splits if split] == [1257, 180, 360]
    assert (data.classes, data.features) == (10, (64,))
    with (HERE / "digits.npz").open("rb") as file:
        arrays = read_arrays(file, "digits.npz")
    whole = np.bincount(arrays["labels"])
    rows = []
    for split in splits:
        assert split is not None
        assert split.scale == 1 / 16
        assert split.inputs.dtype == np.uint8
        share = whole * len(split) / 1797
        # What both other sets are off by, to less than one sample each, the training set is off by in sum.
        assert np.all(np.abs(np.bincount(split.targets) - share) < (2 if split is data.train else 1))
        rows += [(*image, label) for image, label in zip(split.inputs.tolist(), split.targets.tolist(), strict=True)]
    # All images differ from each other, so that this is disjoint and complete.
    assert len(set(rows)) == 1797
    assert set(rows) == {(*i, n) for i, n in zip(arrays["images"].tolist(), arrays["labels"].tolist(), strict=True)}


def test_the_split_is_pinned() -> None:
    # Published accuracies are of this very test set.
    data = load(DigitsData(source="digits"), Path(), need=("test",))
    assert data.train is None
    assert data.test is not None
    weights = np.arange(1, 361)
    assert (int(data.test.inputs.sum()), int(data.test.targets @ weights)) == (112365, 288995)


def test_source_and_licence_stand_beside_them() -> None:
    text = (HERE / "DIGITS.md").read_text(encoding="utf-8")
    for word in ("UCI", "Optical Recognition of Handwritten Digits", "E. Alpaydin", "C. Kaynak", "CC BY 4.0"):
        assert word in text
