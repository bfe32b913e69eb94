"""Text in LIBSVM format, as dense rows: `label index:value index:value ...`, indices from 1 and ascending."""

from array import array
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dbelief.data.dataset import Dataset
from dbelief.data.files import lines, read
from dbelief.data.splits import cut, cut_sizes
from dbelief.errors import DataError
from dbelief.job import LibsvmData, resolve

from .npz import Pair, dataset

LARGEST_DENSE_BYTES = 1 << 34
"""16 GiB. A file that needs more as dense rows is rejected before memory is allocated."""


@dataclass(frozen=True)
class Rows:
    """Rows of a file.

    Attributes
    ----------
    where : str
        Name of the file.
    labels : int64, shape (n,)
        As in the file.
    rows, columns : int64, shape (values,)
        Position of each value, from 0.
    values : float32, shape (values,)
    """

    where: str
    labels: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def width(self) -> int:
        """Greatest index, from 1; 0 where all rows are empty."""
        return int(self.columns.max()) + 1 if len(self.columns) else 0


def load_libsvm(spec: LibsvmData, folder: Path, need: Collection[str]) -> Dataset:
    """Load the training file, a part of it for validation, and the test file.

    Labels become 0 .. k - 1 in numeric order: -1 is class 0 and +1 is class 1. `Dataset.names` holds the labels.

    Raises
    ------
    DataError
    """
    train = read_rows(resolve(spec.train, folder))
    # Read even if not needed, unless features are given: the width must not depend on `need`.
    wants_test = spec.test is not None and ("test" in need or spec.features is None)
    test = read_rows(resolve(spec.test, folder)) if spec.test is not None and wants_test else None
    names = np.unique(train.labels)
    files = [train] if test is None else [train, test]
    features = spec.features or max(rows.width for rows in files)
    inputs, labels = _dense(train, names, features)
    parts = cut(len(labels), labels, spec.validation, 0, train.where)
    sets = {
        "train": (inputs[parts.train], labels[parts.train]),
        "validation": (inputs[parts.validation], labels[parts.validation]),
    }
    if test is not None and "test" in need:
        sets["test"] = _dense(test, names, features)
    return dataset(sets, train.where, need, names=tuple(map(str, names.tolist())))


def libsvm_sizes(spec: LibsvmData, folder: Path) -> tuple[int, int, int]:
    """Samples of the three sets: the files' lines are counted, and not kept.

    Raises
    ------
    DataError
    """
    train = resolve(spec.train, folder)
    cut_up = cut_sizes(_count(train), None, spec.validation, 0, str(train))
    return cut_up[0], cut_up[1], 0 if spec.test is None else _count(resolve(spec.test, folder))


def _count(path: Path) -> int:
    return sum(bool(line.partition(b"#")[0].strip()) for line in lines(path))


def read_rows(path: Path, labelled: bool = True) -> Rows:
    """Read a file, plain or .gz; without `labelled`, rows may have any label, or none, and get label 0.

    Raises
    ------
    DataError
        A line violates the format; the message names it.
    """
    labels, lengths, columns, values = array("q"), array("q"), array("q"), array("d")
    line_of_row = array("q")
    for number, line in enumerate(read(path).split(b"\n"), start=1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        if not labelled:
            words = [b"0", *(words if b":" in words[0] else words[1:])]
        if b"_" in line:
            _refuse_separators(words, path, number)
        line_of_row.append(number)
        labels.append(_label(words[0], path, number))
        lengths.append(len(words) - 1)
        last = 0
        for word in words[1:]:
            index, _, value = word.partition(b":")
            try:
                column, parsed = int(index), float(value)
            except ValueError:
                raise DataError(f"{path}, line {number}: {_text(word)} is not index:value") from None
            if not last < column < 1 << 31:
                raise DataError(
                    f"{path}, line {number}: index {_text(index)} must be above {last}; indices ascend from 1"
                )
            columns.append(column - 1)
            values.append(parsed)
            last = column
    if not labels:
        raise DataError(f"{path}: has no rows")
    rows = np.repeat(np.arange(len(labels)), np.asarray(lengths))
    with np.errstate(over="ignore", under="ignore"):  # infinite values are detected right after
        floats = np.asarray(values).astype(np.float32)
    if not np.isfinite(floats).all():
        wrong = int(np.argmin(np.isfinite(floats)))
        raise DataError(f"{path}, line {line_of_row[rows[wrong]]}: {values[wrong]} is not a finite float32")
    return Rows(str(path), np.asarray(labels), rows, np.asarray(columns), floats)


def _refuse_separators(words: list[bytes], path: Path, number: int) -> None:
    """Raise DataError for a token with an underscore: Python parses `1_0` as 10, the format does not allow it."""
    for column, word in enumerate(words, start=1):
        if b"_" in word:
            wanted = "index:value" if column > 1 else "a label"
            raise DataError(f"{path}, line {number}, column {column}: {_text(word)} is not {wanted}")


def _label(word: bytes, path: Path, number: int) -> int:
    try:
        label = float(word)
        whole = int(label)
    except (ValueError, OverflowError):
        raise DataError(f"{path}, line {number}: {_text(word)} is not a label") from None
    if whole != label or abs(whole) > 1 << 53:
        raise DataError(f"{path}, line {number}: label {_text(word)} is not an integer")
    return whole


def _text(word: bytes) -> str:
    return repr(word[:40].decode("latin-1"))


def read_dense(path: Path, features: int) -> np.ndarray:
    """Read the inputs of a file as float32 (n, features); its labels, if it has any, are not read.

    Raises
    ------
    DataError
    """
    return _inputs(read_rows(path, labelled=False), features)


def _dense(rows: Rows, names: np.ndarray, features: int) -> Pair:
    """Return inputs float32 (n, features), and labels as indices into `names`."""
    known = np.isin(rows.labels, names)
    if not known.all():
        raise DataError(f"{rows.where}: label {rows.labels[np.argmin(known)]} is not in the training file")
    return _inputs(rows, features), np.searchsorted(names, rows.labels).astype(np.int64)


def _inputs(rows: Rows, features: int) -> np.ndarray:
    if rows.width > features:
        raise DataError(f"{rows.where}: has index {rows.width}, but there are {features} features")
    if not features:
        raise DataError(f"{rows.where}: has no features: all rows are empty")
    size = 4 * len(rows.labels) * features
    if size > LARGEST_DENSE_BYTES:
        raise DataError(
            f"{rows.where}: {len(rows.labels)} rows of {features} features are {size >> 30} GiB as dense rows"
        )
    inputs = np.zeros((len(rows.labels), features), np.float32)
    inputs[rows.rows, rows.columns] = rows.values
    return inputs
