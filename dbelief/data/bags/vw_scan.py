"""Rows of Vowpal Wabbit's text as numbers, in one pass of a compiled loop. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

from dbelief.arrays.jit import jit
from dbelief.data.formats.decimal_number import LARGEST, decimal_number
from dbelief.data.formats.libsvm_rows import is_blank
from dbelief.sparse.text_hash import hash_text

_LF, _BAR, _COLON, _QUOTE, _CARET = 10, 124, 58, 39, 94


@jit
def scan_rows(
    content: Any, labelled: bool, labels: Any, weights: Any, ends: Any, fields: Any, keys: Any, values: Any, name: Any
) -> tuple[int, int]:
    """Read all rows; return (rows, features). Rows are -1 where a word is not plain, and left to Python.

    Not `labelled`: a row without a label has label 0. `name`: room for the text of a feature with its namespace.
    """
    at, n, rows, count = 0, len(content), 0, 0
    while at < n:
        if is_blank(content[at]):
            at += 1
            continue
        plain, at, labels[rows], weights[rows] = _head(content, at, labelled)
        if not plain:
            return -1, 0
        while at < n and content[at] == _BAR:
            plain, at, count = _namespace(content, at + 1, count, fields, keys, values, name)
            if not plain:
                return -1, 0
        ends[rows] = count
        rows += 1
    return rows, count


@jit
def _head(content: Any, at: Any, labelled: bool) -> tuple[bool, int, float, float]:
    """Return (whether they are plain, the place of the first bar, label, weight)."""
    n, words, tagged = len(content), 0, False
    label, weight = 0.0, 1.0
    while at < n and content[at] != _BAR and content[at] != _LF:
        if is_blank(content[at]):
            at += 1
            continue
        if tagged:
            return False, at, label, weight
        stop, _ = _word(content, at)
        if content[at] == _QUOTE or (stop < n and content[stop] == _BAR):
            tagged = True
        else:
            plain, number = decimal_number(content, at, stop)
            if not plain or words == 2 or (words == 1 and number < 0):
                return False, at, label, weight
            if words:
                weight = number
            else:
                label = number
            words += 1
        at = stop
    return at < n and content[at] == _BAR and (words > 0 or not labelled), at, label, weight


@jit
def _namespace(
    content: Any, at: Any, count: Any, fields: Any, keys: Any, values: Any, name: Any
) -> tuple[bool, int, int]:
    """Read a namespace behind its bar; return (whether it is plain, where the next one or the line ends, features)."""
    n, scale, size = len(content), 1.0, 0
    stop, colon = _word(content, at)
    field = hash_text(content, at, colon)
    if colon < stop:
        plain, scale = decimal_number(content, colon + 1, stop)
        if not plain or colon == at:
            return False, at, count
    if colon > at:
        for place in range(at, colon):
            name[size] = content[place]
            size += 1
        name[size] = _CARET
        size += 1
    at = stop
    while True:
        while at < n and content[at] != _LF and is_blank(content[at]):
            at += 1
        if at == n or content[at] == _LF or content[at] == _BAR:
            return True, at, count
        stop, colon = _word(content, at)
        value = 1.0
        if colon < stop:
            plain, value = decimal_number(content, colon + 1, stop)
            if not plain or colon == at:
                return False, at, count
        value *= scale
        if abs(value) >= LARGEST:
            return False, at, count
        for place in range(at, colon):
            name[size + place - at] = content[place]
        fields[count], keys[count], values[count] = field, hash_text(name, 0, size + colon - at), value
        count += 1
        at = stop


@jit
def _word(content: Any, at: Any) -> tuple[int, int]:
    """Where the word that begins at `at` ends, at a blank or a bar; and its first colon, or the same place."""
    colon = -1
    while at < len(content) and content[at] != _BAR and not is_blank(content[at]):
        if content[at] == _COLON and colon < 0:
            colon = at
        at += 1
    return at, colon if colon >= 0 else at
