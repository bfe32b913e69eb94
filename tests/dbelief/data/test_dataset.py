"""Gathering mini-batches: the right numbers, in place, with nothing allocated that grows with the batch."""

from collections.abc import Callable

import numpy as np
import pytest

from dbelief.data import BatchBuffer, Dataset, Split
from tests.traced import traced


def pixels(n: int = 50, features: int = 12) -> Split:
    rng = np.random.default_rng(0)
    return Split(rng.integers(0, 256, (n, features), np.uint8), rng.integers(0, 3, n), 1 / 255)


def numbers(n: int = 50, features: int = 12, scale: float = 1.0) -> Split:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((n, features), np.float32)
    return Split(inputs, rng.standard_normal((n, 2), np.float32), scale)


def test_the_split_itself_is_never_scaled() -> None:
    split = numbers(scale=0.5)
    before = split.inputs.copy()
    split.gather(np.arange(50), BatchBuffer(split, 50))
    assert np.array_equal(split.inputs, before)


def peak_bytes(split: Split, size: int) -> int:
    """Most memory held during one gather in the steady state, above what was held before it."""
    buffer, indices = BatchBuffer(split, size), np.arange(size)
    return traced(lambda: split.gather(indices, buffer), steady=True).peak


@pytest.mark.parametrize("kind", [pixels, numbers])
def test_no_allocation_grows_with_the_batch(kind: Callable[[int, int], Split]) -> None:
    split = kind(4096, 256)
    small, large = peak_bytes(split, 256), peak_bytes(split, 4096)
    # NumPy converts in pieces of 8,192 numbers; a batch of 4,096 holds 4 MB.
    assert large < 100_000
    assert large < small + 4096


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        (np.array([0, 50]), "index 50 is out of range for 50 samples"),
        (np.array([0, -1]), "index -1 is out of range for 50 samples"),
        (np.array([0], np.int32), "int32"),
        (np.array([[0]]), r"shape \(1, 1\)"),
        (np.array([], np.int64), r"shape \(0,\)"),
        (np.zeros(9, np.int64), "m from 1 to 8"),
    ],
)
def test_wrong_indices_are_refused(indices: np.ndarray, words: str) -> None:
    split = pixels()
    with pytest.raises(ValueError, match=words):
        split.gather(indices, BatchBuffer(split, 8))


def test_a_buffer_for_other_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="the buffer holds inputs like float32"):
        pixels().gather(np.array([0]), BatchBuffer(numbers(), 8))
    with pytest.raises(ValueError, match=r"the buffer holds inputs like uint8 of shape \(8, 4\)"):
        pixels().gather(np.array([0]), BatchBuffer(pixels(features=4), 8))
    with pytest.raises(ValueError, match="size is 0"):
        BatchBuffer(pixels(), 0)


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (np.zeros((3, 2)), np.zeros(3, np.int64), "inputs are float64"),
        (np.zeros(3, np.uint8), np.zeros(3, np.int64), "of 2 axes or more"),
        (np.zeros((3, 2), np.uint8), np.zeros(3, np.int32), "targets are int32"),
        (np.zeros((3, 2), np.uint8), np.zeros(3, np.float32), "targets are float32"),
        (np.zeros((3, 2), np.uint8), np.zeros(2, np.int64), "3 inputs, but 2 targets"),
        (np.zeros((3, 4), np.uint8)[:, ::2], np.zeros(3, np.int64), "C-contiguous"),
    ],
)
def test_a_split_of_wrong_arrays_is_refused(inputs: np.ndarray, targets: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Split(inputs, targets)


@pytest.mark.parametrize("groups", [np.zeros(2, np.int64), np.zeros(3, np.int32), np.zeros((3, 1), np.int64)])
def test_groups_are_as_many_as_the_labels(groups: np.ndarray) -> None:
    inputs, labels = np.zeros((3, 2), np.uint8), np.zeros(3, np.int64)
    assert Split(inputs, labels, groups=np.arange(3)).groups is not None
    with pytest.raises(ValueError, match=r"groups are int(32|64) of shape"):
        Split(inputs, labels, groups=groups)
    with pytest.raises(ValueError, match="as many as the targets, which are labels"):
        Split(inputs, np.zeros((3, 1), np.float32), groups=np.arange(3))


def test_dataset_gives_its_output_sizes() -> None:
    assert Dataset(pixels(), None, None, 3, (4, 3)).outputs == 3
    assert Dataset(None, None, numbers(), None, (12,)).outputs == 2
    assert Dataset(None, None, None, None, ()).outputs is None
