"""Rows of LIBSVM and libffm text as numbers, in one pass of a compiled loop. Importing this module imports numba."""

from __future__ import annotations

from typing import Any

from dbelief.arrays.jit import jit
from dbelief.data.formats.decimal_number import decimal_number
from dbelief.data.formats.libsvm_rows import is_blank, is_query, word_end

_LF, _HASH, _COLON, _MINUS, _ZERO, _NINE = 10, 35, 58, 45, 48, 57
_DIGITS = 18  # fit into 63 bits


@jit
def scan_rows(
    content: Any, fielded: bool, labelled: bool, labels: Any, ends: Any, fields: Any, keys: Any, values: Any
) -> Any:
    """Read all rows; return (rows, features). Rows are -1 where a word is no plain number, and left to Python.

    Not `labelled`: a first word without a colon is left out, and labels are 0.
    """
    at, n, rows, count = 0, len(content), 0, 0
    while at < n:
        if is_blank(content[at]):
            at += 1
            continue
        if content[at] == _HASH:
            while at < n and content[at] != _LF:
                at += 1
            continue
        stop = word_end(content, at)
        first, begins = labelled, not fielded
        if labelled:
            plain, label = decimal_number(content, at, stop)
            if not plain:
                return -1, 0
            labels[rows] = label
        else:
            labels[rows], first = 0, True
            for place in range(at, stop):
                first &= content[place] != _COLON
        if first:
            at = stop
        while True:
            while at < n and content[at] != _LF and is_blank(content[at]):
                at += 1
            if begins and is_query(content, at):
                at, begins = word_end(content, at), False
                continue
            begins = False
            if at == n or content[at] == _LF or content[at] == _HASH:
                break
            if fielded:
                plain, fields[count], at = _number_before_colon(content, at)
                if not plain:
                    return -1, 0
            plain, keys[count], at = _number_before_colon(content, at)
            stop = word_end(content, at)
            sure, value = decimal_number(content, at, stop)
            if not (plain and sure):
                return -1, 0
            values[count] = value
            count += 1
            at = stop
        ends[rows] = count
        rows += 1
    return rows, count


@jit
def _number_before_colon(content: Any, at: Any) -> Any:
    """Return (whether a plain whole number and a colon begin here, the number, the place behind the colon)."""
    negative = at < len(content) and content[at] == _MINUS
    at += negative
    start, number = at, 0
    while at < len(content) and at - start < _DIGITS and _ZERO <= content[at] <= _NINE:
        number = 10 * number + content[at] - _ZERO
        at += 1
    plain = at > start and at < len(content) and content[at] == _COLON
    return plain, -number if negative else number, at + 1
