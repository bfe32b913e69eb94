"""Checks for data from any source."""

from collections.abc import Sequence

import numpy as np

from dbelief.errors import DataError


def classes(train: np.ndarray, others: dict[str, np.ndarray], where: str, names: Sequence[str] | None = None) -> int:
    """Count the classes of training labels, and check them and the labels of other sets.

    Parameters
    ----------
    train : int64, shape (n,)
    others : mapping of set name to int64, shape (m,)
    where : str
        Name of the data in messages.
    names : sequence of str, optional
        Of the labels in the source, where it has others.

    Returns
    -------
    int
        Classes k: labels are 0 .. k - 1.

    Raises
    ------
    DataError
        There are no training samples, only one class, or a class without samples; or a label is out of range.
    """
    if not len(train):
        raise DataError(f"{where}: there are no training samples")
    lowest, k = int(train.min()), int(train.max()) + 1
    if lowest < 0:
        raise DataError(f"{where}: label {lowest} of the training set is negative; labels are 0, 1, ...")
    # Avoids an array as long as a label is large: with more labels than samples, some label must be missing.
    present = np.bincount(train, minlength=k) if k <= len(train) else np.zeros(0)
    missing = np.flatnonzero(present == 0) if len(present) else np.setdiff1d(np.arange(len(train) + 1), train)
    if len(missing):
        raise DataError(
            f"{where}: class {missing[0]} has no sample in the training set, though labels go up to {k - 1}"
        )
    if k < 2:
        raise DataError(f"{where}: all training samples have the same label, {names[lowest] if names else lowest}")
    for name, labels in others.items():
        if len(labels) and (labels.min() < 0 or labels.max() >= k):
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise DataError(f"{where}: label {wrong} of the {name} set is out of range, 0 to {k - 1} in training")
    return k


def one_label_each(groups: np.ndarray, labels: np.ndarray, where: str) -> None:
    """Raise DataError where samples of one group have different labels, both int64 (n,); names the first such group."""
    _, firsts, number = np.unique(groups, return_index=True, return_inverse=True)
    other = np.flatnonzero(labels != labels[firsts[number]])
    if len(other):
        row, first = int(other[0]), int(firsts[number[other[0]]])
        raise DataError(
            f"{where}: group {groups[row]} has label {labels[first]} at row {first} (from 0) "
            f"and {labels[row]} at row {row}"
        )


def finite(array: np.ndarray, where: str) -> None:
    """Raise DataError where a float array holds NaN or infinity; the message names the first such row."""
    if array.dtype.kind != "f":
        return
    good = np.isfinite(array)
    if not good.all():
        row = int(np.argmin(good.reshape(len(array), -1).all(axis=1)))
        raise DataError(f"{where}: row {row} (from 0) holds NaN or infinity, or a number too large for float32")
