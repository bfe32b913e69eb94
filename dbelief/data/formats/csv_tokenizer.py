"""Parser of delimited text to numbers, in one pass over its bytes, by compiled loops.

A field that `decimal_number` does not parse is left to Python's `float`, so that every number has the bits of
`float(text)`, or, as float32, of `np.float32(float(text))`.

Cost: about two nanoseconds a byte on one core. Importing this module imports numba.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.jit import jit
from dbelief.data.tables.missing_values import MissingValues, number_of
from dbelief.errors import DataError

from .decimal_number import decimal_number

IGNORED, TEXT = -1, -2
"""Roles of columns that are not numbers: ignored, and text 0; text i has TEXT - i. A number's role is its index in its
row of `Cells.numbers`."""

HARD = 1 << 14
"""Number of fields that are left to Python at a time, at least one row of them."""

_FINE, _FEW, _MANY, _OPEN, _AFTER = range(5)
_WHY = {
    _OPEN: "begins with a quote that is never closed",
    _AFTER: "goes on after its closing quote",
}
_LF, _CR, _QUOTE = 10, 13, 34
NO_MARKERS = MissingValues.of(())
_GAPS = "data.missing: mean or zero fills gaps of inputs"


@dataclass(frozen=True)
class Cells:
    """All rows of a text.

    Attributes
    ----------
    numbers : float32 or float64, shape (n, k)
        The columns that have an index, at that index; NaN where one is missing.
    texts : list of lists of bytes, n long each
        The text columns in the order of their roles, without quotes.
    lines : int64, shape (n,)
        Line of the file on which each row begins, from 1.
    """

    numbers: np.ndarray
    texts: list[list[bytes]]
    lines: np.ndarray


@jit
def _scan(
    content: Any,
    at: Any,
    line: Any,
    delimiter: int,
    roles: Any,
    row: Any,
    numbers: Any,
    texts: Any,
    lines: Any,
    hard: Any,
    filled: Any,
    marks: Any,
) -> Any:
    """Read rows from `at` on, until the end, an invalid row, or too little room in `hard`.

    Returns (position, line, rows so far, hard fields, error, its line, its column).
    """
    n, width, held = len(content), len(roles), 0
    while at < n:
        if content[at] == _LF or (content[at] == _CR and (at + 1 == n or content[at + 1] == _LF)):
            line += content[at] == _LF
            at += 1
            continue
        if held + width > len(hard):
            break
        lines[row], column = line, 0
        while True:
            if column == width:
                return at, line, row, held, _MANY, lines[row], column
            start = at
            if at < n and content[at] == _QUOTE:
                start += 1
                at += 1
                while at < n and (content[at] != _QUOTE or (at + 1 < n and content[at + 1] == _QUOTE)):
                    line += content[at] == _LF
                    at += 1 + (content[at] == _QUOTE)
                if at >= n:
                    return at, line, row, held, _OPEN, lines[row], column
                stop = at
                at += 1
                at += at < n and content[at] == _CR
                if at < n and content[at] not in (delimiter, _LF):
                    return at, line, row, held, _AFTER, lines[row], column
            else:
                while at < n and content[at] != delimiter and content[at] != _LF:
                    at += 1
                stop = at - (at > start and content[at - 1] == _CR and (at == n or content[at] == _LF))
            role = roles[column]
            if role <= TEXT:
                texts[TEXT - role, row, 0], texts[TEXT - role, row, 1] = start, stop
            elif 0 <= role < filled and start == stop:
                numbers[row, role] = np.nan
            elif role >= 0:
                plain, value = decimal_number(content, start, stop)
                for mark in marks:
                    if value == mark:
                        value, plain = np.nan, plain and role < filled
                numbers[row, role] = value
                if not plain:
                    hard[held, 0], hard[held, 1], hard[held, 2], hard[held, 3] = row, column, start, stop
                    held += 1
            column += 1
            if at == n or content[at] == _LF:
                break
            at += 1
        if column < width:
            return at, line, row, held, _FEW, lines[row], column
        row += 1
    return at, line, row, held, _FINE, line, 0


def read_cells(
    content: bytes,
    at: int,
    line: int,
    delimiter: str,
    roles: np.ndarray,
    names: list[str],
    where: str,
    missing: MissingValues = NO_MARKERS,
    filled: int = 0,
    dtype: type[np.floating[Any]] = np.float32,
    gaps: str = _GAPS,
) -> Cells:
    """Read all rows of a text from a position on; empty lines are skipped.

    Parameters
    ----------
    content : bytes
    at, line : int
        Position where the rows begin, and its line in the file.
    delimiter : str
        One character of ASCII.
    roles : int64, shape (columns,)
        Index of each column among the numbers, or TEXT - its index among the texts, or IGNORED.
    names : list of str
        Names of the columns in messages.
    missing : MissingValues
        What stands for a missing number, beside an empty field.
    filled : int
        Numbers with a lower index may be missing; the others are targets, or the job fills no gaps.
    dtype : float32 or float64
        Of the numbers.
    gaps : str
        What a message says of a missing number where none may be missing.

    Raises
    ------
    DataError
        A row has too few or too many fields, or a field is not a finite float32; names line and column.
    """
    data = np.frombuffer(content, np.uint8)
    most = content.count(b"\n", at) + 1
    numbers = np.empty((most, max(0, int(roles.max()) + 1)), dtype)
    count = max(0, TEXT - int(roles.min()) + 1)
    texts = np.empty((count, most, 2), np.int64)
    lines = np.empty(most, np.int64)
    hard = np.empty((max(HARD, len(roles)), 4), np.int64)
    row = 0
    first, odd = "", 0  # the first field that is not a number, and the count of them
    while at < len(content):
        at, line, row, held, wrong, wrong_line, column = _scan(
            data, at, line, ord(delimiter), roles, row, numbers, texts, lines, hard, filled, missing.numbers
        )
        for of_row, of_column, start, stop in hard[:held].tolist():
            if wrong and of_row == row:  # an error of the complete row takes precedence
                break
            place = f"{where}, line {lines[of_row]}, {names[of_column]}"
            try:
                fills = bool(roles[of_column] < filled)
                hint = "a target is never filled" if filled else gaps
                numbers[of_row, roles[of_column]] = _number(content[start:stop], place, missing, fills, hint)
            except DataError as error:
                first, odd = first or str(error), odd + 1
        if odd and (wrong or at >= len(content)):
            raise DataError(first + (f" (and {odd - 1:,} more)" if odd > 1 else ""))
        if wrong == _FEW:
            raise DataError(f"{where}, line {wrong_line}: has {column} of {len(roles)} fields")
        if wrong == _MANY:
            raise DataError(f"{where}, line {wrong_line}: has more than {len(roles)} fields")
        if wrong:
            raise DataError(f"{where}, line {wrong_line}, {names[column]}: {_WHY[wrong]}")
    kept = [[_unquoted(content, start, stop) for start, stop in column[:row].tolist()] for column in texts]
    return Cells(numbers[:row], kept, lines[:row])


def _unquoted(content: bytes, start: int, stop: int) -> bytes:
    """The content of a text field; within quotes, a quote is doubled."""
    field = content[start:stop]
    return field.replace(b'""', b'"') if content[start - 1 : start] == b'"' else field


def _number(field: bytes, place: str, missing: MissingValues, fills: bool, hint: str) -> float:
    """Convert a field that is not a plain number, or stands for a missing one; NaN for that, where gaps are filled.

    Raises
    ------
    DataError
        It is not a number, not finite as float32, or missing and not filled.
    """
    text = field.decode("utf-8", "replace").strip()
    if missing.has_text(text):
        if fills:
            return math.nan
        what = f"{shown(field)} stands for a missing value" if text else "is empty"
        raise DataError(f"{place}: {what}, must be a number; {hint}")
    value = number_of(text)
    if value is None:
        raise DataError(f"{place}: {shown(field)} is not a number{_hint(text)}")
    with np.errstate(over="ignore", under="ignore"):
        if not np.isfinite(np.float32(value)):
            raise DataError(f"{place}: {shown(field)} is not a finite float32")
    return value


def _hint(text: str) -> str:
    """What to do with a field that is almost a number."""
    for marks in (",", "%", "_", " "):
        if number_of(text.replace(marks, "." if marks == "," and text.count(",") == 1 else "")) is not None:
            return f": write it without {marks!r}" if marks != "," else ": decimals have a point, thousands no mark"
    return ""


def shown(field: bytes) -> str:
    """A field for messages: quoted, shortened, on one line."""
    return repr(field[:40].decode("utf-8", "replace"))
