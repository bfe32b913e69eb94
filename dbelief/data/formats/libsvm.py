"""Text in LIBSVM format, as sparse rows: `label index:value index:value ...`, indices from 1 or 0 and ascending.

A file is read in blocks, twice: once to count, so that memory is that of the sparse rows and of a few blocks. Arrays
that grow would leave holes of their earlier lengths in the heap.
"""

from __future__ import annotations

import codecs
import math
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dbelief.data.dataset import Dataset
from dbelief.data.files.contents import blocks, lines
from dbelief.data.files.data_file import DataFile, find_file, objects_digest
from dbelief.data.sparse import SparseSplit
from dbelief.data.splits import cut, cut_sizes
from dbelief.data.validation import classes
from dbelief.errors import DataError
from dbelief.job import LibsvmData
from dbelief.nn import SparseRows

from .text_start import text_start

if TYPE_CHECKING:
    from .libsvm_rows import BlockRows

_INDICES = 1 << 31
"""Indices are below."""

_TOO_LARGE = (2 - 2**-24) * 2.0**127
"""Numbers from here on are rounded to infinity in float32."""


@dataclass(frozen=True)
class Rows:
    """Rows of a file.

    Attributes
    ----------
    where : str
        Name of the file.
    labels : int64, shape (n,)
        As in the file.
    indptr : int64, shape (n + 1,)
        Row i has the values from indptr[i] to indptr[i + 1].
    columns : int32, shape (values,)
        Of each value, from 0; as `read_rows` gives them, the indices of the file.
    values : float32, shape (values,)
    queries : bool
        Whether rows name a query, `qid:`, which is not kept.
    """

    where: str
    labels: np.ndarray
    indptr: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    queries: bool

    @property
    def width(self) -> int:
        """Greatest column, from 1; 0 where all rows are empty."""
        return int(self.columns.max()) + 1 if len(self.columns) else 0

    def sparse(self, features: int, zero_based: bool) -> SparseRows:
        """The rows with so many features; `zero_based`: how the file counted them.

        Raises
        ------
        DataError
            They have a greater index, or none at all.
        """
        if self.width > features:
            raise DataError(f"{self.where}: has index {self.width - zero_based}, but there are {features} features")
        if not features:
            raise DataError(f"{self.where}: has no features: all rows are empty")
        return SparseRows(self.indptr, self.columns, self.values, features)


def load_libsvm(spec: LibsvmData, folder: Path, need: Collection[str]) -> Dataset:
    """Load the training file, a part of it for validation, and the test file.

    Labels become 0 .. k - 1 in numeric order: -1 is class 0 and +1 is class 1. `Dataset.names` holds the labels.

    Raises
    ------
    DataError
    """
    first = int(spec.zero_based is False)
    source = find_file(spec.train, folder)
    train = read_rows(source, first)
    # Read even if not needed, unless the job says it: the width and the first index must not depend on `need`.
    wants_test = "test" in need or spec.features is None or spec.zero_based == "auto"
    test = read_rows(find_file(spec.test, folder), first) if spec.test is not None and wants_test else None
    files = [rows for rows in (train, test) if rows is not None]
    zero_based = any(_has_zero(rows) for rows in files) if spec.zero_based == "auto" else spec.zero_based
    queries = [rows.where for rows in files if rows.queries]
    for rows in files if not zero_based else ():
        np.subtract(rows.columns, 1, out=rows.columns)
    names = np.unique(train.labels)
    features = spec.features or max(rows.width for rows in files)
    stored, labels = train.sparse(features, zero_based), _classes(train, names)
    parts = cut(len(labels), labels, spec.validation, 0, train.where)
    sets = {name: SparseSplit(stored, rows, labels[rows]) for name, rows in vars(parts).items()}
    if test is not None and "test" in need:
        sets["test"] = SparseSplit(
            test.sparse(features, zero_based), np.arange(len(test.labels)), _classes(test, names)
        )
    labelled = tuple(map(str, names.tolist()))
    k = classes(sets["train"].targets, {"validation": sets["validation"].targets}, train.where, labelled)
    wanted: dict[str, Any] = {name: sets[name] if name in need and len(sets[name]) else None for name in sets}
    return Dataset(
        **wanted,
        classes=k,
        features=(features,),
        names=None if labelled == tuple(map(str, range(k))) else labelled,
        zero_based=zero_based,
        objects=objects_digest([source]),
        notes=(f"{', '.join(queries)}: queries (qid:) are left out: samples are ranked by no query",)
        if queries
        else (),
    )


def _has_zero(rows: Rows) -> bool:
    return bool(len(rows.columns)) and not rows.columns.min()


def libsvm_sizes(spec: LibsvmData, folder: Path) -> tuple[int, int, int]:
    """Samples of the three sets: the files' lines are counted, and not kept.

    Raises
    ------
    DataError
    """
    train = find_file(spec.train, folder)
    cut_up = cut_sizes(_count(train), None, spec.validation, 0, str(train))
    return cut_up[0], cut_up[1], 0 if spec.test is None else _count(find_file(spec.test, folder))


def _count(path: DataFile) -> int:
    texts = (line.removeprefix(codecs.BOM_UTF8).partition(b"#")[0].strip() for line in lines(path))
    return sum(map(bool, texts))


def read_rows(path: DataFile, first: int, labelled: bool = True) -> Rows:
    """Read a file, plain or .gz.

    Parameters
    ----------
    first
        The lowest index that may be there, 0 or 1.
    labelled
        Whether rows have a label; else they may have any, or none, and get label 0.

    Raises
    ------
    DataError
        A line violates the format; the message names it.
    """
    from .libsvm_rows import BlockParser  # imports numba

    most_rows, most = _counted(path)
    labels, indptr = np.empty(most_rows, np.int64), np.zeros(most_rows + 1, np.int64)
    columns, values = np.empty(most, np.int32), np.empty(most, np.float32)
    parser, line, rows, count, queries = BlockParser(labelled, first), 1, 0, 0, False
    for block in blocks(path):
        if line == 1:
            block = block[text_start(block, str(path)) :]
        found = parser.parse(block) or _parse(block, line, first, labelled, path)
        row, end = rows + len(found.labels), count + len(found.values)
        if row > most_rows or end > most:
            raise DataError(f"{path}: has changed while it was read")
        labels[rows:row], columns[count:end], values[count:end] = found.labels, found.columns, found.values
        np.add(found.ends, count, out=indptr[rows + 1 : row + 1])
        rows, count, queries = row, end, queries or found.queries
        line += block.count(b"\n")
    if not rows:
        raise DataError(f"{path}: has no rows")
    return Rows(str(path), labels[:rows], indptr[: rows + 1], columns[:count], values[:count], queries)


def _counted(path: DataFile) -> tuple[int, int]:
    """The most rows and values that a file may have, from its lines and colons."""
    rows, values = 1, 0
    for block in blocks(path):
        rows += block.count(b"\n")
        values += block.count(b":")
    return rows, values


def _parse(block: bytes, first_line: int, first: int, labelled: bool, path: DataFile) -> BlockRows:
    """Parse a block by Python's own parsers of numbers, which know more forms of them, and say what is wrong."""
    from .libsvm_rows import BlockRows

    labels, ends, columns, values, queries = array("q"), array("q"), array("i"), array("d"), False
    for number, line in enumerate(block.split(b"\n"), start=first_line):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        if not labelled:
            words = [b"0", *(words if b":" in words[0] else words[1:])]
        if b"_" in line:
            _refuse_separators(words, path, number)
        labels.append(_label(words[0], path, number))
        named = [word for word in words[1:2] if word.startswith(b"qid:")]
        queries, words = queries or bool(named), words[len(named) :]
        last = first - 1
        for word in words[1:]:
            index, _, value = word.partition(b":")
            try:
                column, parsed = int(index), float(value)
            except ValueError:
                raise DataError(f"{path}, line {number}: {_text(word)} is not index:value") from None
            if column >= _INDICES:
                raise DataError(f"{path}, line {number}: index {_text(index)} is larger than {_INDICES - 1:,}")
            if column <= last:
                must = f"must be above {last}; indices ascend"
                if column == 0 and last == 0:
                    must = "must be 1 or more: indices of this job count from 1 (data.zero_based)"
                raise DataError(f"{path}, line {number}: index {_text(index)} {must}")
            if not math.isfinite(parsed) or abs(parsed) >= _TOO_LARGE:
                raise DataError(f"{path}, line {number}: {parsed} is not a finite float32")
            columns.append(column)
            values.append(parsed)
            last = column
        ends.append(len(values))
    with np.errstate(under="ignore"):
        floats = np.asarray(values).astype(np.float32)
    return BlockRows(np.asarray(labels), np.asarray(ends), np.asarray(columns), floats, queries)


def _refuse_separators(words: list[bytes], path: DataFile, number: int) -> None:
    """Raise DataError for a token with an underscore: Python parses `1_0` as 10, the format does not allow it."""
    for column, word in enumerate(words, start=1):
        if b"_" in word:
            wanted = "index:value" if column > 1 else "a label"
            raise DataError(f"{path}, line {number}, column {column}: {_text(word)} is not {wanted}")


def _label(word: bytes, path: DataFile, number: int) -> int:
    try:
        label = float(word)
        whole = int(word) if word.removeprefix(b"-").isdigit() else int(label)
    except (ValueError, OverflowError):
        raise DataError(f"{path}, line {number}: {_text(word)} is not a label") from None
    if label != int(label) or abs(whole) > 1 << 53:
        raise DataError(f"{path}, line {number}: label {_text(word)} is not an integer of up to 2^53")
    return whole


def _text(word: bytes) -> str:
    return repr(word[:40].decode("latin-1"))


def read_sparse(path: DataFile, features: int, zero_based: bool) -> SparseRows:
    """Read the inputs of a file; its labels, if it has any, are not read.

    `zero_based`: whether indices of the training count from 0.

    Raises
    ------
    DataError
    """
    rows = read_rows(path, 0 if zero_based else 1, labelled=False)
    if not zero_based:
        np.subtract(rows.columns, 1, out=rows.columns)
    return rows.sparse(features, zero_based)


def _classes(rows: Rows, names: np.ndarray) -> np.ndarray:
    """Labels as indices into `names`: int64."""
    known = np.isin(rows.labels, names)
    if not known.all():
        raise DataError(f"{rows.where}: label {rows.labels[np.argmin(known)]} is not in the training file")
    return np.searchsorted(names, rows.labels).astype(np.int64)
