"""Columns of Parquet files as numbers: which are inputs, of what kind, and their values in one row group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dbelief.data.tables.missing_values import MissingValues
from dbelief.data.tables.table_encoder import Coded, Kind, Raw
from dbelief.errors import DataError
from dbelief.job import ParquetData

from .parquet_files import ParquetFiles
from .parquet_types import is_text, is_whole, own_kind, per_day, plain_type

_LARGEST = float(np.finfo(np.float32).max)
ROWS = 4096
"""Rows that are written to a matrix at a time: they stay in the processor's cache from one column to the next."""


@dataclass(frozen=True)
class InputColumn:
    """An input column.

    Attributes
    ----------
    name
        In the files.
    kind
        As a `TableEncoder` has it; "vector": lists of numbers, all of one length.
    width
        Numbers of a row.
    """

    name: str
    kind: Kind | Literal["vector"]
    width: int = 1

    @property
    def raw_kind(self) -> Kind:
        """Kind of each of its numbers, as a `TableEncoder` has it."""
        return "number" if self.kind == "vector" else self.kind

    @property
    def names(self) -> list[str]:
        """Names of its numbers."""
        return [f"{self.name}[{place}]" for place in range(self.width)] if self.kind == "vector" else [self.name]


def input_columns(files: ParquetFiles, spec: ParquetData) -> list[InputColumn]:
    """The inputs in the order of the first file: all columns that are neither targets nor ignored.

    Raises
    ------
    DataError
        A named column does not exist, or is named twice; two columns have one name; a column is of a type that cannot
        be an input.
    """
    kinds: dict[str, Kind] = {}
    named: list[str] = []
    listed: dict[str, tuple[tuple[str, ...], Kind | None]] = {
        "target": (spec.target, None),
        "ignore": (spec.ignore, None),
        "categories": (spec.categories, "category"),
        "hashed": (spec.hashed, "hashed"),
        "dates": (spec.dates, "date"),
    }
    for field, (names, kind) in listed.items():
        for name in names:
            files.place(name, field)
            if name in named:
                raise DataError(f"{files.files[0].where}: column {name!r} is named twice by data.target, ignore, ...")
            named.append(name)
            if kind is not None:
                kinds[name] = kind
    left = [name for name in files.schema.names if name not in {*spec.target, *spec.ignore}]
    for name, count in Counter(name.strip() for name in (*left, *spec.target)).items():
        if count > 1:
            raise DataError(f"{files.files[0].where}: {count} columns are called {name!r}: rename them")
    if not left:
        raise DataError(f"{files.files[0].where}: no column is left for inputs")
    return [_input(files, name, kinds.get(name)) for name in left]


def _input(files: ParquetFiles, name: str, listed: Kind | None) -> InputColumn:
    import pyarrow

    own = files.schema.field(files.place(name, "ignore")).type
    where, kind = f"{files.files[0].where}: column {name!r}", listed or own_kind(own)
    if kind is None and is_text(own):
        raise DataError(
            f"{where} holds texts: list it in data.categories, hashed, dates or ignore (missing_values are texts)"
        )
    if kind is None:
        raise DataError(f"{where} is {own}, which cannot be an input; list it in data.ignore")
    column = InputColumn(name, kind)
    if kind == "vector":
        width = own.list_size if pyarrow.types.is_fixed_size_list(own) else len(files.first(name) or ())
        if not width:
            raise DataError(f"{where}: its first list is empty or missing; lists of one length are so many inputs")
        column = InputColumn(name, kind, width)
    check_input(files, column)
    return column


def check_input(files: ParquetFiles, column: InputColumn) -> None:
    """Check that a column exists, and is of a type that its kind takes.

    Raises
    ------
    DataError
        It is not.
    """
    import pyarrow

    own = files.schema.field(files.place(column.name)).type
    found = own_kind(own)
    as_long = not pyarrow.types.is_fixed_size_list(own) or own.list_size == column.width
    takes = {
        "category": (is_text(own) or is_whole(own), "a text or a whole number, as a category is"),
        "hashed": (is_text(own) or is_whole(own), "a text or a whole number, as a category is"),
        "date": (is_text(own) or found == "date", "a date, or a text that is one"),
        "number": (found == "number", "a number"),
        "vector": (found == "vector" and as_long, f"a list of {column.width} numbers"),
    }
    fits, wanted = takes[column.kind]
    if not fits:
        raise DataError(f"{files.files[0].where}: column {column.name!r} is {own}, must be {wanted}")


def check_targets(files: ParquetFiles, spec: ParquetData) -> None:
    """Check that the target columns exist, and hold numbers, or classes.

    Raises
    ------
    DataError
        They do not.
    """
    for name in spec.target:
        own = files.schema.field(files.place(name, "target")).type
        fits = own_kind(own) == "number" or (spec.kind == "classes" and is_text(own))
        if not fits:
            wanted = "texts or whole numbers" if spec.kind == "classes" else "numbers"
            raise DataError(f"{files.files[0].where}: target {name!r} is {own}, must hold {wanted}")


def raw_columns(
    table: Any, columns: Sequence[InputColumn], missing: MissingValues, fills: bool, where: str
) -> list[Raw]:
    """Columns of a pyarrow Table as a `TableEncoder` takes them: of a vector each place.

    Parameters
    ----------
    missing
        What stands for a missing value, beside null and NaN.
    fills
        Whether values may be missing.

    Raises
    ------
    DataError
        A number is infinite, a value is missing that must not be, or a list is, or has another length.
    """
    found = list[Raw]()
    for column in columns:
        own, called = table.column(column.name), f"{where}, column {column.name!r}"
        if column.kind == "vector":
            found += list(_vectors(own, column, called).astype(np.float64).T)
            continue
        raw, gaps = _raw_column(own, column.kind, missing, called)
        if gaps.any() and not fills:
            raise DataError(f"{called}, row {int(np.argmax(gaps))} (from 0): is missing; {_ALLOWS}")
        found.append(raw)
    return found


_ALLOWS = "data.missing: mean or zero fills gaps, which are a value of their own in categories"


def _raw_column(column: Any, kind: Kind, missing: MissingValues, where: str) -> tuple[Raw, np.ndarray]:
    """A column, and where its values are missing."""
    if kind in ("category", "hashed") or (kind == "date" and is_text(column.type)):
        coded = _coded(column, missing.has_date if kind == "date" else missing.has_text)
        return coded, np.array([not value for value in coded.values], bool)[coded.codes]
    numbers = missing.present_days(_days(column)) if kind == "date" else numbers_of(column, missing, where)
    return numbers, np.isnan(numbers)


def _days(column: Any) -> np.ndarray:
    """A column of dates as days since 1970, float64, NaN for a missing one: of any year."""
    import pyarrow

    own = plain_type(column.type)
    whole = column.cast(own).cast(pyarrow.int32() if pyarrow.types.is_date32(own) else pyarrow.int64())
    return np.asarray(whole.to_numpy().astype(np.float64) / per_day(own))


def numbers_of(column: Any, missing: MissingValues, where: str) -> np.ndarray:
    """A column of numbers as float64, NaN for a missing one; raises DataError for what is infinite as float32."""
    native = _numbers(column)
    numbers = native.astype(np.float64)
    numbers[missing.among(native)] = np.nan
    _refuse_infinity(numbers, where)
    return numbers


def _numbers(column: Any) -> np.ndarray:
    """A column of numbers in its own type, as float64 where some are missing: these are NaN."""
    import pyarrow

    own = plain_type(column.type)
    if pyarrow.types.is_decimal(own):  # pyarrow's own cast makes -99.99000000000001 of -99.99
        column, own = column.cast(pyarrow.string()), pyarrow.float64()
    elif pyarrow.types.is_boolean(own):
        own = pyarrow.uint8()
    numbers: np.ndarray = (column if own == column.type else column.cast(own)).to_numpy()
    return numbers


def _refuse_infinity(numbers: np.ndarray, where: str) -> None:
    infinite = np.abs(numbers) > _LARGEST
    if infinite.any():
        raise DataError(f"{where}, row {int(np.argmax(infinite))} (from 0): is infinite, or too large for float32")


def _coded(column: Any, missing: Callable[[str], bool]) -> Coded:
    """A column of texts, or of whole numbers as texts; "" where one is missing."""
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    words = [str(value).strip() for value in encoded.dictionary.to_pylist()]
    values = ["" if missing(word) else word for word in words]
    codes = pyarrow.compute.fill_null(encoded.indices, len(values)).to_numpy(zero_copy_only=False)
    return Coded([*values, ""] if len(codes) and codes.max() == len(values) else values, codes)


def matrix(table: Any, columns: Sequence[InputColumn], where: str) -> np.ndarray:
    """Columns of numbers and vectors as one matrix, (n, width): float32; uint8 for one column of uint8 vectors.

    Raises
    ------
    DataError
        A value is missing or infinite, or too large for float32; names the column and the row.
    """
    if len(columns) == 1 and columns[0].kind == "vector":
        found = _vectors(table.column(columns[0].name), columns[0], f"{where}, column {columns[0].name!r}")
        return np.ascontiguousarray(found, np.uint8 if found.dtype == np.uint8 else np.float32)
    out = np.empty((table.num_rows, sum(column.width for column in columns)), np.float32)
    parts, first = list[tuple[Any, np.ndarray]](), 0
    for column in columns:
        place, first = first, first + column.width
        found = table.column(column.name)
        if column.kind == "vector":
            parts.append((slice(place, first), _vectors(found, column, f"{where}, column {column.name!r}")))
        else:
            parts.append((place, _numbers(found)))
    with np.errstate(over="ignore"):  # infinite values are detected right after
        for row in range(0, len(out), ROWS):
            block = out[row : row + ROWS]
            for places, values in parts:
                block[:, places] = values[row : row + ROWS]
    flat = out.reshape(-1)
    with np.errstate(over="ignore"):
        suspicious = not np.isfinite(flat.dot(flat))  # one pass; a sum of squares may overflow too
    if suspicious:
        _refuse_odd(out, columns, where)
    return out


def _vectors(column: Any, about: InputColumn, where: str) -> np.ndarray:
    """A column of lists as rows of numbers in their own type; names a row that is missing or of another length."""
    import pyarrow
    import pyarrow.compute

    array = column.combine_chunks()
    if isinstance(array, pyarrow.ChunkedArray):
        array = pyarrow.concat_arrays(array.chunks)
    lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(array), -1).to_numpy(zero_copy_only=False)
    odd = lengths != about.width
    if odd.any():
        row = int(np.argmax(odd))
        what = "is missing" if lengths[row] < 0 else f"has {lengths[row]} numbers, and the first row {about.width}"
        raise DataError(f"{where}, row {row} (from 0): {what}; lists must have one length")
    flat = array.flatten()
    if flat.null_count:
        row = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False))) // about.width
        raise DataError(f"{where}, row {row} (from 0): a number of the list is missing")
    values = flat.to_numpy(zero_copy_only=False).reshape(-1, about.width)
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            good = np.isfinite(values.astype(np.float32)).all(axis=1)
        if not good.all():
            raise DataError(f"{where}, row {int(np.argmin(good))} (from 0): holds NaN or infinity")
    return np.asarray(values)


def _refuse_odd(out: np.ndarray, columns: Sequence[InputColumn], where: str) -> None:
    """Raise DataError where a number is missing or infinite; names the first such column and row."""
    good = np.isfinite(out)
    if good.all():
        return
    place = int(np.argmin(good.all(axis=0)))
    name = [column.name for column in columns for _ in range(column.width)][place]
    _refuse_infinity(out[:, place], f"{where}, column {name!r}")
    row = int(np.argmin(good[:, place]))
    raise DataError(f"{where}, column {name!r}, row {row} (from 0): is missing; data.missing: mean or zero fills gaps")
