"""Vowpal Wabbit's text, `label weight 'tag |namespace:scale feature:value ...`, as a stream of mini-batches.

The format: "Input format", wiki of Vowpal Wabbit. Features are texts, and a feature's key is that of the text
`namespace^feature`, or `feature` where its namespace has no name (see `text_keys`): namespaces may share a table.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from dbelief.errors import DataError
from dbelief.sparse.text_keys import text_keys

from .batch import SparseBatch, split_bags
from .libsvm import TOO_LARGE, KeyedRows, number_in, shown
from .line_stream import Files, LineStream, named_files


class VwLines:
    """A `LineFormat`.

    Parameters
    ----------
    namespaces
        Those that are read; None: all, in one bag.
    labelled
        Whether each row has a label; else that of a row without one is 0.
    """

    comment = -1
    header: bytes | None = None

    def __init__(self, namespaces: Sequence[str] | None, labelled: bool = True) -> None:
        self._wanted, self._labelled = None, labelled
        if namespaces is not None:
            self._wanted = dict(zip(namespaces, text_keys(namespaces).tolist(), strict=True))

    def parse(self, content: bytes, line: int, where: str) -> SparseBatch:
        """See `LineFormat`."""
        rows, weights = _scanned(content, self._labelled) or parse_rows(content, line, where, self._labelled)
        bags = split_bags(self._wanted, rows.fields, rows.ends, rows.keys, rows.values)
        return SparseBatch(rows.labels, weights, bags)


def read_vw(files: Files, namespaces: Sequence[str] | None = None, size: int = 256) -> LineStream:
    """A stream of Vowpal Wabbit's text: each batch has a bag for each of the namespaces, of its name.

    Parameters
    ----------
    files
        Paths, folders (of files *.vw), patterns, or URLs of objects.
    namespaces
        Those that are read, "" for the one without a name; features of others are left out. None: all, in one bag,
        "features".
    size
        Rows of a mini-batch.

    Returns
    -------
    LineStream
        Labels (-1 and 1, or 0 and 1) and weights are as in the file; tags are left out.

    Raises
    ------
    ValueError
        No namespace is named.
    DataError
        A file is missing; and from the iteration, where a line violates the format, or has no label.
    """
    if namespaces is not None and not len(namespaces):
        raise ValueError("read_vw: namespaces is empty; None reads all")
    return LineStream(named_files(files, ".vw"), VwLines(namespaces), size)


def _scanned(content: bytes, labelled: bool = True) -> tuple[KeyedRows, np.ndarray] | None:
    from .vw_scan import scan_rows  # imports numba

    rows, most = content.count(b"\n") + 1, len(content) // 2 + 1  # a feature is one byte and a blank, or more
    labels, weights = np.empty((2, rows), np.float32)
    ends, fields, keys = np.empty(rows, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    values, name = np.empty(most, np.float32), np.empty(len(content) + 1, np.uint8)
    data = np.frombuffer(content, np.uint8)
    rows, count = scan_rows(data, labelled, labels, weights, ends, fields, keys, values, name)
    if rows < 0:
        return None
    held = (fields[:count].copy(), keys[:count].copy(), values[:count].copy())
    return KeyedRows(labels[:rows], ends[:rows], *held), weights[:rows]


def parse_rows(content: bytes, line: int, where: str, labelled: bool = True) -> tuple[KeyedRows, np.ndarray]:
    """Rows and their weights by Python's own parsers of numbers, which know more forms of them, and say what is wrong.

    Raises
    ------
    DataError
    """
    labels, weights, ends, values = array("d"), array("d"), array("q"), array("d")
    names, texts = list[bytes](), list[bytes]()
    for number, text in enumerate(content.split(b"\n"), line):
        if not text.strip():
            continue
        at = f"{where}, line {number}"
        head, *spaces = text.split(b"|")
        if not spaces:
            raise DataError(f"{at}: has no |, behind which features are")
        label, weight = _head(head, at, labelled)
        labels.append(label)
        weights.append(weight)
        for space in spaces:
            name, features = _namespace(space, at)
            for feature, value in features:
                names.append(name)
                texts.append(name + b"^" + feature if name else feature)
                values.append(value)
        ends.append(len(values))
    with np.errstate(under="ignore"):
        floats = [np.asarray(numbers, np.float64).astype(np.float32) for numbers in (labels, weights, values)]
    rows = KeyedRows(floats[0], np.array(ends, np.int64), text_keys(names), text_keys(texts), floats[2])
    return rows, floats[1]


def _head(head: bytes, at: str, labelled: bool) -> tuple[float, float]:
    """Label and weight of a row, 0 and 1 of one without a label."""
    words = head.split()
    touches = bool(words) and head.endswith(words[-1])
    if words and (touches or words[-1].startswith(b"'")):
        words.pop()
    if not words and not labelled:
        return 0.0, 1.0
    if not words:
        hint = f": {shown(head.split()[-1])} is a tag, as no blank is between it and |" if touches else ""
        raise DataError(f"{at}: has no label before |{hint}")
    if len(words) > 2:
        raise DataError(f"{at}: {shown(words[2])} is the third word before |, where label and weight are read")
    label, weight = number_in(words[0], "label", at), number_in(words[1], "weight", at) if len(words) > 1 else 1.0
    if weight < 0:
        raise DataError(f"{at}: weight: {shown(words[1])} is below 0")
    return label, weight


def _namespace(space: bytes, at: str) -> tuple[bytes, list[tuple[bytes, float]]]:
    """Name of a namespace, and its features with their values times its scale."""
    words, name, scale = space.split(), b"", 1.0
    if words and space.startswith(words[0]):
        name, colon, text = words[0].partition(b":")
        if not name:
            raise DataError(f"{at}: {shown(words[0])} behind | is a scale, and no namespace is named before it")
        scale = number_in(text, f"scale of namespace {shown(name)}", at) if colon else 1.0
        del words[0]
    features = []
    for word in words:
        feature, colon, text = word.partition(b":")
        if not feature:
            raise DataError(f"{at}: {shown(word)} has no feature before its colon")
        value = scale * (number_in(text, f"value of {shown(word)}", at) if colon else 1.0)
        if abs(value) >= TOO_LARGE:
            raise DataError(f"{at}: value of {shown(word)}: times the namespace's scale it is not a finite float32")
        features.append((feature, value))
    return name, features
