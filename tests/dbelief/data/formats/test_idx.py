"""IDX files, small ones made here and MNIST's own."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dbelief.data import load
from dbelief.errors import DataError, JobError
from dbelief.job import IdxData

TRAIN, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
ALL = (TRAIN, LABELS, TEST, TEST_LABELS)


def images(n: int, rows: int = 2, columns: int = 3, first: int = 0) -> bytes:
    data = (np.arange(n * rows * columns) + first).astype(np.uint8)
    return struct.pack(">4I", 0x803, n, rows, columns) + data.tobytes()


def labels(values: list[int]) -> bytes:
    return struct.pack(">2I", 0x801, len(values)) + bytes(values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / TRAIN).write_bytes(images(8))
    (tmp_path / LABELS).write_bytes(labels([0, 1, 2, 0, 1, 2, 1, 0]))
    (tmp_path / TEST).write_bytes(images(3, first=100))
    (tmp_path / TEST_LABELS).write_bytes(labels([2, 0, 0]))
    return tmp_path


def spec(validation: int = 2, folder: str = ".") -> IdxData:
    return IdxData(source="idx", folder=folder, validation=validation)


def test_the_last_images_are_for_validation(folder: Path) -> None:
    data = load(spec(), folder)
    assert data.train is not None
    assert data.validation is not None
    assert data.test is not None
    assert (data.classes, data.features) == (3, (6,))
    assert np.array_equal(data.train.inputs, np.arange(36).reshape(6, 6))
    assert np.array_equal(data.validation.inputs, np.arange(36, 48).reshape(2, 6))
    assert data.validation.targets.tolist() == [1, 0]
    assert np.array_equal(data.test.inputs, np.arange(100, 118).reshape(3, 6))
    assert data.test.targets.tolist() == [2, 0, 0]
    assert data.train.scale == 1 / 255
    assert data.train.inputs.dtype == np.uint8


def test_gz_files_hold_the_same(folder: Path) -> None:
    plain = load(spec(), folder)
    for name in ALL:
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    packed = load(spec(), folder)
    assert plain.train is not None
    assert packed.train is not None
    assert np.array_equal(plain.train.inputs, packed.train.inputs)


def test_only_needed_files_are_read(folder: Path) -> None:
    (folder / TEST).unlink()
    assert load(spec(), folder, need=("train",)).test is None
    assert load(spec(validation=0), folder, need=("train", "validation")).validation is None
    with pytest.raises(DataError, match=f"{TEST}: no such file, nor one that ends in .gz$"):
        load(spec(), folder, need=("test",))


def test_the_folder_may_name_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", str(folder))
    assert load(spec(folder="${WHERE}"), Path("/nowhere")).classes == 3
    monkeypatch.delenv("WHERE")
    with pytest.raises(JobError, match="WHERE is not set"):
        load(spec(folder="${WHERE}"), Path("/nowhere"))


def put(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def pack(name: str, end: int | None = None, flip: int | None = None) -> Callable[[Path], object]:
    """Replace a file by its .gz form, cut at `end` or with one byte flipped."""

    def change(folder: Path) -> None:
        packed = bytearray(gzip.compress((folder / name).read_bytes(), mtime=0))
        if flip is not None:
            packed[flip] ^= 0xFF
        (folder / name).unlink()
        (folder / f"{name}.gz").write_bytes(bytes(packed[:end]))

    return change


GOOD_LABELS = [0, 1, 2, 0, 1, 2, 1, 0]
WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / LABELS).unlink(), f"{LABELS}: no such file"),
    (put(TRAIN, b""), f"{TRAIN}: is empty"),
    (put(TRAIN, images(8)[:10]), f"{TRAIN}: ends within its header, after 10 of 16 bytes"),
    (put(TRAIN, images(8)[:-1]), f"{TRAIN}: holds 47 bytes of data, but its header says 48"),
    (put(TRAIN, images(8) + b"x"), f"{TRAIN}: holds 49 bytes of data, but its header says 48"),
    (put(TRAIN, labels(GOOD_LABELS) + b"12345678"), "its magic number is 0x00000801, not 0x00000803"),
    (put(LABELS, images(8)), "not an IDX file of labels: its magic number is 0x00000803, not 0x00000801"),
    (put(TRAIN, images(7)), f"{TRAIN}: has 7 images, but there are 8 labels"),
    (put(TRAIN, struct.pack(">4I", 0x803, 8, 2**31, 2**31)), "holds 0 bytes of data, but its header says"),
    (put(TRAIN, images(8, 0, 0)), "images of 0 x 0 pixels are empty"),
    (put(LABELS, labels([])), f"{LABELS}: has no labels"),
    (put(LABELS, labels([0, 1, 3, 0, 1, 3, 1, 0])), "class 2 has no sample in the training set"),
    (put(LABELS, labels([0, 1, 255, 0, 1, 2, 1, 0])), "class 3 has no sample in the training set"),
    (put(LABELS, labels([0, 1, 0, 0, 1, 0, 2, 0])), "label 2 of the validation set is out of range, 0 to 1"),
    (put(LABELS, labels([0] * 8)), "all training samples have the same label, 0"),
    (put(TEST_LABELS, labels([2, 3, 0])), "label 3 of the test set is out of range, 0 to 2 in training"),
    (put(TEST, images(3, 3, 3)), "training images have 6 pixels, test images 9"),
    (pack(TRAIN, end=30), f"{TRAIN}.gz: the gzip file is cut short"),
    (pack(TRAIN, end=5), f"{TRAIN}.gz: the gzip file is cut short"),
    (pack(TRAIN, flip=0), f"{TRAIN}.gz: not a gzip file, or a damaged one"),
    (pack(TRAIN, flip=-6), f"{TRAIN}.gz: not a gzip file, or a damaged one (CRC check failed"),
    (pack(TRAIN, flip=12), f"{TRAIN}.gz: "),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[f"{i}-{words[:40]}" for i, (_, words) in enumerate(WRONG)])
def test_a_wrong_file_is_named_with_its_cause_on_one_line(
    folder: Path, change: Callable[[Path], object], words: str
) -> None:
    change(folder)
    with pytest.raises(DataError) as caught:
        load(spec(), folder)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(folder))
    assert len(str(caught.value).splitlines()) == 1


def test_validation_must_leave_images(folder: Path) -> None:
    with pytest.raises(DataError, match=r": 8 of 8 training images for validation leave none$"):
        load(spec(validation=8), folder)


def test_an_unknown_set_is_no_need(folder: Path) -> None:
    with pytest.raises(ValueError, match="must be some of train, validation, test"):
        load(spec(), folder, need=("training",))
    with pytest.raises(ValueError, match="must be some of"):
        load(spec(), folder, need=())


MNIST = Path(os.environ.get("DBELIEF_DATA", "/nonexistent")) / "mnist"


@pytest.mark.mnist
@pytest.mark.skipif(not MNIST.is_dir(), reason="DBELIEF_DATA names no folder that holds mnist")
def test_mnist_itself() -> None:
    data = load(IdxData(source="idx", folder=str(MNIST)), Path())
    assert data.train is not None
    assert data.validation is not None
    assert data.test is not None
    assert [len(data.train), len(data.validation), len(data.test)] == [55_000, 5_000, 10_000]
    assert (data.classes, data.features) == (10, (784,))
    # Counts per class that are published for the 60,000 and the 10,000.
    both = np.bincount(data.train.targets) + np.bincount(data.validation.targets)
    assert both.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.test.targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The mean and deviation that everyone normalises MNIST by.
    counts = sum(np.bincount(split.inputs.ravel(), minlength=256) for split in (data.train, data.validation))
    mean, of_squares = (float(counts @ (np.arange(256) / 255) ** power / np.sum(counts)) for power in (1, 2))
    assert (round(mean, 4), round((of_squares - mean**2) ** 0.5, 4)) == (0.1307, 0.3081)
