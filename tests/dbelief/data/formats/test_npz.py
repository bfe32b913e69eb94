"""Arrays in .npz files."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.data import load
from dbelief.errors import DataError
from dbelief.job import NpzData

Arrays = dict[str, Any]
LABELS = np.arange(40) % 4


def save(folder: Path, **arrays: Any) -> NpzData:
    np.savez_compressed(folder / "a.npz", **arrays)
    return NpzData(source="npz", file="a.npz")


def rows(n: int = 40, features: int = 3, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(n * features).reshape(n, features).astype(dtype)


def test_one_pair_of_arrays_is_cut_by_shares_and_classes(tmp_path: Path) -> None:
    data = load(save(tmp_path, inputs=rows(), targets=LABELS), tmp_path)
    assert data.train is not None
    assert data.validation is not None
    assert data.test is not None
    assert (data.classes, data.features) == (4, (3,))
    assert np.bincount(data.test.targets).tolist() == [1, 1, 1, 1]
    assert np.bincount(data.train.targets).tolist() == [8, 8, 8, 8]
    together = np.concatenate([data.train.inputs, data.validation.inputs, data.test.inputs])
    assert np.array_equal(np.sort(together[:, 0]), rows()[:, 0])
    assert np.array_equal(LABELS[(data.train.inputs[:, 0] // 3).astype(int)], data.train.targets)


def test_sets_of_the_file_are_used_as_they_are(tmp_path: Path) -> None:
    spec = save(
        tmp_path,
        train_inputs=rows(20, dtype=np.uint8),
        train_targets=LABELS[:20],
        test_inputs=rows(5, dtype=np.uint8),
        test_targets=LABELS[:5],
    )
    data = load(spec, tmp_path)
    assert data.test is not None
    assert data.train is not None
    assert data.validation is not None
    assert np.array_equal(data.test.inputs, rows(5))
    assert (len(data.train), len(data.validation)) == (18, 2)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.scale == 1.0


def test_regression_keeps_numbers(tmp_path: Path) -> None:
    data = load(save(tmp_path, inputs=rows(), targets=np.linspace(0, 1, 40)), tmp_path)
    assert data.train is not None
    assert data.classes is None
    assert data.outputs == 1
    assert data.train.targets.shape == (32, 1)
    assert data.train.targets.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ">f4"])
def test_other_floats_become_float32(tmp_path: Path, dtype: Any) -> None:
    data = load(save(tmp_path, inputs=rows(dtype=dtype), targets=LABELS.astype(np.uint8)), tmp_path)
    assert data.train is not None
    assert data.train.inputs.dtype == np.float32
    assert data.train.inputs.dtype.isnative
    assert data.train.targets.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.int64, np.int16, np.uint32, ">i8"])
def test_whole_numbers_become_int64_and_keep_all_their_digits(tmp_path: Path, dtype: Any) -> None:
    """2^24 + 1 and 2^24 would be one float32."""
    inputs = rows(dtype=dtype)
    inputs[:, 0] = 2**15 - 1 if dtype == np.int16 else 2**24 + 1
    data = load(save(tmp_path, train_inputs=inputs, train_targets=LABELS), tmp_path)
    assert data.train is not None
    assert data.form is not None
    assert data.form.whole
    buffer = data.train.buffer(5)
    batch = data.train.gather(np.arange(5), buffer)
    assert np.shares_memory(batch.inputs, buffer.inputs)
    assert batch.inputs.dtype == np.int64
    assert np.array_equal(batch.inputs, data.train.inputs[:5])
    assert set(data.train.inputs[:, 0].tolist()) == set(inputs[:, 0].tolist())


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_in_the_order_of_fortran_are_turned(tmp_path: Path, dtype: Any) -> None:
    inputs = np.asfortranarray(rows(dtype=dtype))
    sets = {f"{name}_{what}": a for name in ("train", "test") for what, a in (("inputs", inputs), ("targets", LABELS))}
    data = load(save(tmp_path, **sets), tmp_path)
    assert data.test is not None
    assert np.array_equal(data.test.inputs, rows(dtype=dtype))


def test_images_keep_shape_and_foreign_members_are_ignored(tmp_path: Path) -> None:
    spec = save(tmp_path, inputs=np.zeros((40, 5, 5), np.uint8), targets=LABELS, note=np.array("hello"))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert load(spec, tmp_path).features == (5, 5)


def test_groups_are_cut_whole_and_class_by_class(tmp_path: Path) -> None:
    groups = np.repeat(np.arange(20) * 7, 10)  # 20 groups of ten samples, five of each class
    labels = groups // 7 % 4
    order = np.random.default_rng(0).permutation(200)
    spec = save(tmp_path, inputs=rows(200)[order], targets=labels[order], groups=groups[order])
    data = load(spec.model_copy(update={"validation": 0.2, "test": 4}), tmp_path)
    for split, count in ((data.train, 12), (data.validation, 4), (data.test, 4)):
        assert split is not None
        assert split.groups is not None
        of_groups = np.unique(split.groups)
        assert (len(of_groups), len(split)) == (count, 10 * count)
        assert np.bincount(of_groups // 7 % 4).tolist() == [count // 4] * 4
        assert np.array_equal(groups[(split.inputs[:, 0] // 3).astype(int)], split.groups)
        assert np.array_equal(split.groups // 7 % 4, split.targets)


def test_groups_without_training_samples_are_refused(tmp_path: Path) -> None:
    spec = save(tmp_path, inputs=rows(), targets=LABELS, groups=LABELS).model_copy(update={"test": 1})
    with pytest.raises(
        DataError, match=r"a\.npz: groups: of 4 samples, 0 for validation and 1 for test leave no sample"
    ):
        load(spec, tmp_path)


def test_groups_of_the_sets_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    arrays: Arrays = {"train_inputs": rows(), "train_targets": LABELS, "train_groups": (LABELS + 4).astype(np.uint8)}
    arrays |= {"test_inputs": rows(8), "test_targets": LABELS[:8], "test_groups": np.arange(8)}
    data = load(save(tmp_path, **arrays).model_copy(update={"validation": 0}), tmp_path)
    assert data.train is not None
    assert data.test is not None
    assert data.validation is None
    for split, expected in ((data.train, LABELS + 4), (data.test, np.arange(8))):
        assert split.groups is not None
        assert np.array_equal(split.groups, expected)


BAD = rows().copy()
BAD[7, 1] = np.nan
HUGE = rows(dtype=np.float64)
HUGE[0, 0] = 1e300
OBJECTS = np.array([None] * 40, dtype=object)
WRONG: list[tuple[Arrays, str]] = [
    ({"inputs": rows()}, "must hold inputs and targets, or train_inputs and train_targets; it holds inputs"),
    ({"x": rows(), "y": LABELS}, "it holds x, y"),
    ({"inputs": rows(), "targets": LABELS, "test_inputs": rows()}, "must hold inputs and targets, or"),
    (
        {"train_inputs": rows(), "train_targets": LABELS, "test_inputs": rows()},
        "holds test_inputs, but no test_targets",
    ),
    ({"inputs": rows(), "targets": LABELS[:39]}, "inputs are 40, targets have shape (39,)"),
    ({"inputs": rows(), "targets": np.int64(3)}, "inputs are 40, targets have shape ()"),
    ({"inputs": rows()[:, 0], "targets": LABELS}, "inputs have shape (40,), must be (n, features...)"),
    ({"inputs": rows(features=0), "targets": LABELS}, "inputs have shape (40, 0)"),
    ({"inputs": rows(dtype=np.bool_), "targets": LABELS}, "inputs are bool, must be numbers; cast with .astype"),
    ({"inputs": rows().astype(str), "targets": LABELS}, "must be numbers"),
    ({"inputs": rows(dtype=np.uint64) + np.uint64(2**63), "targets": LABELS}, "which is out of range"),
    ({"inputs": BAD, "targets": LABELS}, "inputs: row 7 (from 0) holds NaN or infinity"),
    ({"inputs": HUGE, "targets": LABELS}, "inputs: row 0 (from 0) holds NaN or infinity, or a number too large"),
    ({"inputs": rows(), "targets": np.full(40, np.inf)}, "targets: row 0 (from 0) holds NaN or infinity"),
    ({"inputs": rows(), "targets": LABELS - 1}, "label -1 of the training set is negative"),
    ({"inputs": rows(), "targets": LABELS + 1}, "class 0 has no sample in the training set"),
    ({"inputs": rows(), "targets": LABELS * 10**12}, "class 1 has no sample"),
    ({"inputs": rows(), "targets": LABELS.astype(np.uint64) + np.uint64(2**63)}, "is out of range"),
    ({"inputs": rows(), "targets": LABELS * 0}, "all training samples have the same label, 0"),
    ({"inputs": rows(), "targets": LABELS[:, None]}, "targets are int64 of shape (40, 1), must be labels"),
    ({"inputs": rows(), "targets": LABELS > 1}, "targets are bool of shape (40,), must be labels"),
    ({"inputs": rows(0), "targets": LABELS[:0]}, "there are no samples"),
    ({"inputs": rows(4), "targets": LABELS[:4], "x": OBJECTS[:0]}, "cannot be read (x holds Python objects: save it"),
    ({"inputs": rows(), "targets": LABELS, "groups": LABELS[:39]}, "groups are int64 of shape (39,), must be integers"),
    (
        {"inputs": rows(), "targets": LABELS, "groups": LABELS / 2},
        "groups are float64 of shape (40,), must be integers",
    ),
    ({"inputs": rows(), "targets": LABELS / 2, "groups": LABELS}, "groups need targets that are class labels"),
    (
        {"inputs": rows(), "targets": LABELS, "groups": LABELS.astype(np.uint64) + np.uint64(2**63)},
        "groups hold number 9223372036854775811, which is out of range",
    ),
    (
        {"inputs": rows(), "targets": LABELS, "groups": np.arange(40) // 2},
        "groups: group 0 has label 0 at row 0 (from 0) and 1 at row 1",
    ),
    (
        {
            "train_inputs": rows(),
            "train_targets": LABELS,
            "test_inputs": rows(4),
            "test_targets": LABELS[:4],
            "test_groups": LABELS[:4],
        },
        "holds test_groups, but no train_groups",
    ),
    (
        {"train_inputs": rows(), "train_targets": LABELS, "test_inputs": rows(4, 2), "test_targets": LABELS[:4]},
        "test inputs are float32 of shape (4, 2), in training float32 of shape (",
    ),
    (
        {"train_inputs": rows(), "train_targets": LABELS, "test_inputs": rows(4), "test_targets": LABELS[:4] + 1},
        "label 4 of the test set is out of range, 0 to 3 in training",
    ),
]


@pytest.mark.parametrize(("arrays", "words"), WRONG, ids=[f"{i}-{words[:40]}" for i, (_, words) in enumerate(WRONG)])
def test_wrong_arrays_are_refused_on_one_line(tmp_path: Path, arrays: Arrays, words: str) -> None:
    spec = save(tmp_path, **arrays)
    with pytest.raises(DataError) as caught:
        load(spec, tmp_path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a.npz"))
    assert len(str(caught.value).splitlines()) == 1


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, rows())
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an .npz file"),
        (b"hello, world", "not an .npz file"),
        (npy(), "not an .npz file"),
        (b"PK\x03\x04 and no more", "cut short or damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=words):
        load(NpzData(source="npz", file="a.npz"), tmp_path)


def test_a_torn_or_missing_file_is_refused(tmp_path: Path) -> None:
    spec = save(tmp_path, inputs=rows(), targets=LABELS)
    content = (tmp_path / "a.npz").read_bytes()
    for end in range(4, len(content), 37):
        (tmp_path / "a.npz").write_bytes(content[:end])
        with pytest.raises(DataError, match=r"a\.npz: "):
            load(spec, tmp_path)
    (tmp_path / "a.npz").unlink()
    with pytest.raises(DataError, match=r"a\.npz: no such file$"):
        load(spec, tmp_path)


def test_no_flipped_bit_gets_past_as_another_kind_of_error(tmp_path: Path) -> None:
    spec = save(tmp_path, inputs=rows(), targets=LABELS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    refused = 0
    for place in range(0, len(content), 3):
        content[place] ^= 0x55
        (tmp_path / "a.npz").write_bytes(content)
        content[place] ^= 0x55
        try:  # what a flip leaves readable is right, or refused as data
            load(spec, tmp_path)
        except DataError:
            refused += 1
    assert refused > len(range(0, len(content), 3)) // 2
