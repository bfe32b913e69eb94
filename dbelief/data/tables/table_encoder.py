"""From the columns of a table to numbers: gaps filled, categories as indicator columns, dates as days, standardised.

What is needed is computed from the training rows alone (`table_statistics.py`), and kept with the model, which applies
it to new rows.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from dbelief.errors import DataError

from .dates import day_of
from .frames import columns_of, is_frame
from .missing_values import MissingValues, number_of


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of texts, each stored once.

    Attributes
    ----------
    values
        The texts, "" for a missing one.
    codes : integers, shape (n,)
        Of each row, its place in `values`.
    """

    values: Sequence[str]
    codes: np.ndarray

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)


Raw = np.ndarray | Sequence[str] | Coded
"""A column as it was read: float64 numbers, or days since 1970, NaN if missing; or texts, "" if missing."""
Kind = Literal["number", "category", "hashed", "date"]
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class EncodedColumn:
    """How one column becomes numbers.

    Attributes
    ----------
    name
        In messages, and of the columns that it becomes.
    kind
        "number" and "date" become one column, "category" one for each value, "hashed" one for each bucket.
    fill, centre, factor
        Of numbers and dates: what stands for a missing one; then (x - centre) * factor, in float64. Without unit.
    remainder
        What rounding took from the centre: numbers of 10^15 may lie closer together than that.
    values
        Of a category: the values of the training rows, in the order of their characters. Others have no column: all 0.
    buckets
        Of a hashed one: a value has the bucket of its CRC-32 modulo this number.
    """

    name: str
    kind: Kind
    fill: float | None = None
    centre: float = 0.0
    factor: float = 1.0
    values: tuple[str, ...] = ()
    buckets: int = 0
    remainder: float = 0.0

    @property
    def width(self) -> int:
        """Number of columns that it becomes."""
        return {"category": len(self.values), "hashed": self.buckets}.get(self.kind, 1)

    @property
    def names(self) -> list[str]:
        """Their names."""
        if self.kind == "category":
            return [f"{self.name}={value}" for value in self.values]
        return [f"{self.name}#{bucket}" for bucket in range(self.buckets)] if self.kind == "hashed" else [self.name]

    @cached_property
    def _known(self) -> dict[str, int]:
        """Places of a category's values, and of other forms of those that are whole numbers, unless two share one.

        pandas writes 3 for a column of whole numbers without gaps, and 3.0 for one with gaps.
        """
        exact = {value: place for place, value in enumerate(self.values)}
        forms = Counter(_number_form(value) for value in self.values)
        return {_number_form(value): place for value, place in exact.items() if forms[_number_form(value)] == 1} | exact

    def encode(self, raw: Raw, out: np.ndarray, where: str) -> None:
        """Write the rows to (n, width) float32 `out`.

        Raises
        ------
        DataError
            A number is missing and none stands for it, or a text is no date; names the column and the row.
        """
        if self.kind in ("category", "hashed"):
            out.fill(0)
            places = self._places(raw)
            rows = np.flatnonzero(places >= 0)
            out[rows, places[rows]] = 1.0
            return
        numbers = days_of(raw, self.name, where) if self.kind == "date" else np.asarray(raw, np.float64)
        gaps = np.isnan(numbers)
        if gaps.any():
            if self.fill is None:
                row = int(np.argmax(gaps)) + 1
                raise DataError(
                    f"{where}: {self.name!r} is missing in row {row} ({int(gaps.sum())} of {len(gaps)}), and was in no "
                    "training row; data.missing: mean or zero fills gaps"
                )
            numbers = np.where(gaps, self.fill, numbers)
        centred = numbers - self.centre
        if self.remainder:
            centred[~gaps] -= self.remainder  # what fills a gap was rounded as the centre was
        out[:, 0] = centred * self.factor

    def _places(self, raw: Any) -> np.ndarray:
        """Of each row the indicator column that is 1, or -1: int64, shape (n,)."""
        texts = raw.values if isinstance(raw, Coded) else raw
        if self.kind == "hashed":
            known = {text: zlib.crc32(_whole(text).encode()) % self.buckets for text in {*texts}}
        else:
            known = self._known
            known = known | {text: known.get(_number_form(text), -1) for text in {*texts} - known.keys()}
        places = np.fromiter((known[text] for text in texts), np.int64, len(texts))
        return places[raw.codes] if isinstance(raw, Coded) else places


@dataclass(frozen=True)
class TableEncoder:
    """How the inputs of a table become numbers.

    Attributes
    ----------
    columns
        In the order of the table's inputs.
    markers
        Texts that stand for a missing value.
    fills
        Whether values may be missing.
    """

    columns: tuple[EncodedColumn, ...]
    markers: tuple[str, ...]
    fills: bool = True

    @cached_property
    def missing(self) -> MissingValues:
        """What stands for a missing value."""
        return MissingValues.of(self.markers)

    @property
    def width(self) -> int:
        """Number of numbers of a sample."""
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of these numbers."""
        return tuple(name for column in self.columns for name in column.names)

    def encode(self, raw: Sequence[Raw], where: str) -> np.ndarray:
        """The rows of a table as float32, shape (n, width)."""
        out = np.empty((len(raw[0]), self.width), np.float32)
        first = 0
        for column, values in zip(self.columns, raw, strict=True):
            column.encode(values, out[:, first : first + column.width], where)
            first += column.width
        return out

    def encode_rows(self, rows: Any, where: str) -> np.ndarray:
        """Rows of raw values, each a number or a text; None or NaN where one is missing.

        They are in the order of the columns, or a frame of pandas, in which columns are found by their names.

        Raises
        ------
        DataError
            A row has another length, or a value is not of its column's kind.
        """
        names = [column.name for column in self.columns]
        if is_frame(rows):
            found: list[Any] = columns_of(rows, names, where)
            return self.encode([self._column(*pair, where) for pair in zip(self.columns, found, strict=True)], where)
        listed = rows if isinstance(rows, np.ndarray) and rows.ndim == 2 else self._listed(rows, where)
        for number, row in enumerate(listed, start=1):
            if len(row) != len(self.columns):
                wanted = f"{len(names)}: {', '.join(names)}"
                raise DataError(f"{where}: row {number} has {len(row)} values, must have {wanted}")
        if not len(listed):
            found = [[] for _ in names]
        else:
            found = list(listed.T) if isinstance(listed, np.ndarray) else list(zip(*listed, strict=True))
        return self.encode([self._column(*pair, where) for pair in zip(self.columns, found, strict=True)], where)

    def _listed(self, rows: Any, where: str) -> list[list[Any]]:
        """Rows as lists; of one with names, such as a dict or a Series of pandas, the values of the columns."""
        names = [column.name for column in self.columns]
        try:
            return [[row[name] for name in names] if _has_names(row) else list(row) for row in rows]
        except KeyError as error:
            raise DataError(f"{where}: a row has no {error.args[0]!r}, must have {', '.join(names)}") from None
        except TypeError:
            raise DataError(f"{where}: rows must be lists of {len(names)} values: {', '.join(names)}") from None

    def _column(self, column: EncodedColumn, values: Sequence[Any] | np.ndarray, where: str) -> Raw:
        if column.kind == "number" and isinstance(values, np.ndarray) and values.dtype.kind in "buif":
            return np.where(self.missing.among(values), np.nan, values.astype(np.float64))
        if column.kind == "number":
            return np.array([self._number(column, value, row, where) for row, value in enumerate(values, start=1)])
        texts = ["" if self.missing.has(value) else _text(value, column) for value in values]
        if column.kind == "date":
            texts = ["" if self.missing.has_date(text) else text for text in texts]
        if not self.fills and "" in texts:
            raise DataError(
                f"{where}: {column.name!r} is missing in row {texts.index('') + 1}, and the job has no gaps"
            )
        return texts

    def _number(self, column: EncodedColumn, value: Any, row: int, where: str) -> float:
        if self.missing.has(value):
            return np.nan
        number = number_of(value.strip()) if isinstance(value, str) else _float(value)
        if number is None:
            raise DataError(f"{where}: {column.name!r} in row {row} is {str(value)[:40]!r}, no number")
        if not abs(number) <= _LARGEST:
            raise DataError(f"{where}: {column.name!r} in row {row} is {number}, which is not a finite float32")
        return number

    def state(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        columns = [asdict(column) | {"values": list(column.values)} for column in self.columns]
        return {"columns": columns, "markers": list(self.markers), "fills": self.fills}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The encoder with this state.

        Raises
        ------
        ValueError
            It is no such state.
        """
        try:
            columns = [EncodedColumn(**{**one, "values": tuple(one["values"])}) for one in state["columns"]]
            return cls(tuple(columns), tuple(map(str, state["markers"])), bool(state.get("fills", True)))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no encoder of a table: {error!r}") from None


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _has_names(row: Any) -> bool:
    return isinstance(row, Mapping) or (hasattr(row, "loc") and hasattr(row, "index"))


def _text(value: Any, column: EncodedColumn) -> str:
    """A value as the text that files have; a truth value is that of the category's values that has its letters."""
    text = (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()
    if isinstance(value, bool | np.bool_) and text not in column.values:
        return next((known for known in column.values if known.lower() == text.lower()), text)
    return text


def _whole(text: str) -> str:
    """A whole number that is written as 3.0 or 3e0 in the form 3; any other text as it is."""
    return _number_form(text) if "." in text or "e" in text.lower() else text


def _number_form(text: str) -> str:
    """A text that is a whole number in its shortest form; any other text as it is."""
    number = number_of(text)
    exact = number is not None and abs(number) <= 1 << 53 and number.is_integer()
    return str(int(number)) if exact and number is not None else text


def texts_of(raw: Any) -> Sequence[str]:
    """The texts of a column that is no array."""
    return [raw.values[code] for code in raw.codes.tolist()] if isinstance(raw, Coded) else raw


def days_of(raw: Raw, name: str, where: str) -> np.ndarray:
    """Dates of ISO 8601 as days since 1970-01-01, UTC where they name no zone; NaN for "". Days stay as they are."""
    if isinstance(raw, np.ndarray):
        return raw
    texts = raw.values if isinstance(raw, Coded) else raw
    days = np.full(len(texts), np.nan)
    for place, text in enumerate(texts):
        try:
            days[place] = day_of(text) if text else np.nan
        except ValueError as error:
            row = f"{int(np.argmax(raw.codes == place))} (from 0)" if isinstance(raw, Coded) else str(place + 1)
            raise DataError(f"{where}: {name!r} in row {row} {error}") from None
    return days[raw.codes] if isinstance(raw, Coded) else days
