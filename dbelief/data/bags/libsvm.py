"""LIBSVM text, `label key:value key:value ...`, and libffm's, `label field:key:value ...`, as mini-batches."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dbelief.errors import DataError

from .batch import SparseBatch, split_bags
from .line_stream import Files, LineStream, named_files

TOO_LARGE = (2 - 2**-24) * 2.0**127
"""Numbers from here on are rounded to infinity in float32."""
_KEYS = 1 << 63


class KeyedRows(NamedTuple):
    """Rows of features with a field and a key each.

    Attributes
    ----------
    labels : float32, shape (n,)
    ends : int64, shape (n,)
        Features up to the end of each row.
    fields, keys : int64, shape (m,)
    values : float32, shape (m,)
    """

    labels: np.ndarray
    ends: np.ndarray
    fields: np.ndarray
    keys: np.ndarray
    values: np.ndarray


class LibsvmLines:
    """A `LineFormat`.

    Parameters
    ----------
    fielded
        Whether a feature has its field in front, as in libffm.
    wanted
        Number of each field by the name of its bag; None: all features are in one bag.
    labelled
        Whether each row has a label; else a first word without a colon is left out, and labels are 0.
    """

    comment = ord("#")
    header: bytes | None = None

    def __init__(self, fielded: bool, wanted: Mapping[str, int] | None, labelled: bool = True) -> None:
        self._fielded, self._wanted, self._labelled = fielded, wanted, labelled

    def parse(self, content: bytes, line: int, where: str) -> SparseBatch:
        """See `LineFormat`."""
        fielded, labelled = self._fielded, self._labelled
        rows = _scanned(content, fielded, labelled) or parse_rows(content, line, fielded, where, labelled)
        bags = split_bags(self._wanted, rows.fields, rows.ends, rows.keys, rows.values)
        return SparseBatch(rows.labels, np.ones(len(rows.labels), np.float32), bags)


def read_libsvm(files: Files, size: int = 256) -> LineStream:
    """A stream of LIBSVM text: each batch has one bag, "features".

    Parameters
    ----------
    files
        Paths, folders (of files *.svm), patterns, or URLs of objects.
    size
        Rows of a mini-batch.

    Returns
    -------
    LineStream
        Labels are as in the file, keys are whole numbers of 64 bits in any order. A query, `qid:`, is left out.

    Raises
    ------
    DataError
        A file is missing; and from the iteration, where a line violates the format.
    """
    return LineStream(named_files(files, ".svm"), LibsvmLines(False, None), size)


def read_libffm(files: Files, fields: Sequence[int] | None = None, size: int = 256) -> LineStream:
    """A stream of libffm's text: each batch has a bag for each of the fields, of the name "0" for field 0.

    Parameters
    ----------
    files
        Paths, folders (of files *.ffm), patterns, or URLs of objects.
    fields
        Those that are read; features of others are left out. None: all, in one bag, "features".
    size
        Rows of a mini-batch.

    Returns
    -------
    LineStream
        As `read_libsvm`.

    Raises
    ------
    ValueError
        No field is named.
    DataError
        A file is missing; and from the iteration, where a line violates the format.
    """
    if fields is not None and not len(fields):
        raise ValueError("read_libffm: fields is empty; None reads all")
    wanted = None if fields is None else {str(field): int(field) for field in fields}
    return LineStream(named_files(files, ".ffm"), LibsvmLines(True, wanted), size)


def _scanned(content: bytes, fielded: bool, labelled: bool = True) -> KeyedRows | None:
    from .libsvm_scan import scan_rows  # imports numba

    rows, most = content.count(b"\n") + 1, content.count(b":") // (1 + fielded) + 1
    labels, ends = np.empty(rows, np.float32), np.empty(rows, np.int64)
    fields, keys = np.zeros(most, np.int64), np.empty(most, np.int64)
    values = np.empty(most, np.float32)
    rows, count = scan_rows(np.frombuffer(content, np.uint8), fielded, labelled, labels, ends, fields, keys, values)
    if rows < 0:
        return None
    return KeyedRows(labels[:rows], ends[:rows], fields[:count], keys[:count], values[:count])


def parse_rows(content: bytes, line: int, fielded: bool, where: str, labelled: bool = True) -> KeyedRows:
    """Read rows by Python's own parsers of numbers, which know more forms of them, and say what is wrong.

    Raises
    ------
    DataError
    """
    labels, ends, fields, keys, values = array("d"), array("q"), array("q"), array("q"), array("d")
    form = "field:key:value" if fielded else "key:value"
    for number, text in enumerate(content.split(b"\n"), line):
        words = text.partition(b"#")[0].split()
        if not words:
            continue
        at = f"{where}, line {number}"
        labels.append(number_in(words[0], "label", at) if labelled else 0.0)
        if labelled or b":" not in words[0]:
            del words[0]
        queries = not fielded and bool(words) and words[0].startswith(b"qid:")
        for word in words[queries:]:
            parts = word.split(b":")
            if len(parts) != 2 + fielded:
                raise DataError(f"{at}: {shown(word)} is not {form}")
            fields.append(whole_number(parts[0], "field", at) if fielded else 0)
            keys.append(whole_number(parts[-2], "key", at))
            values.append(number_in(parts[-1], f"value of {shown(word)}", at))
        ends.append(len(keys))
    with np.errstate(under="ignore"):
        floats = [np.asarray(numbers, np.float64).astype(np.float32) for numbers in (labels, values)]
    wholes = [np.array(numbers, np.int64) for numbers in (ends, fields, keys)]
    return KeyedRows._make([floats[0], *wholes, floats[1]])


def number_in(word: bytes, what: str, at: str) -> float:
    """A number of text.

    Parameters
    ----------
    what, at
        What it is, and file and line, in messages.

    Raises
    ------
    DataError
        It is no number, NaN or infinite, or too large for float32.
    """
    try:
        number = float(word.replace(b"_", b"x"))  # Python parses 1_0 as 10
    except ValueError:
        raise DataError(f"{at}: {what}: {shown(word)} is not a number") from None
    if not math.isfinite(number) or abs(number) >= TOO_LARGE:
        raise DataError(f"{at}: {what}: {shown(word)} is not a finite float32")
    return number


def whole_number(word: bytes, what: str, at: str) -> int:
    """A whole number of text; parameters as of `number_in`.

    Raises
    ------
    DataError
        It is none, or has more than 64 bits.
    """
    if not word.removeprefix(b"-").isdigit():
        raise DataError(f"{at}: {what} {shown(word)} is not a whole number")
    if len(word) > 40 or not -_KEYS <= int(word) < _KEYS:
        raise DataError(f"{at}: {what} {shown(word)} has more than 64 bits")
    return int(word)


def shown(word: bytes) -> str:
    """A word for messages: quoted, shortened."""
    return repr(word[:40].decode("utf-8", "replace"))
