"""Columns of Parquet files as numbers: which are inputs, of what kind, and their values in one row group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dbelief.data.table_encoder import Coded, Kind, Raw
from dbelief.errors import DataError
from dbelief.job import ParquetData

from .parquet_files import ParquetFiles

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
        A named column does not exist, or is named twice; a column is of a type that cannot be an input.
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
    if not left:
        raise DataError(f"{files.files[0].where}: no column is left for inputs")
    return [_input(files, name, kinds.get(name)) for name in left]


def _input(files: ParquetFiles, name: str, listed: Kind | None) -> InputColumn:
    import pyarrow

    own = files.schema.field(files.place(name, "ignore")).type
    where, kind = f"{files.files[0].where}: column {name!r}", listed or _own_kind(own)
    if kind is None and _is_text(own):
        raise DataError(
            f"{where} holds texts: list it in data.categories, hashed, dates or ignore (missing_values are texts)"
        )
    if kind is None:
        only = ": of lists only those of a fixed size can" if pyarrow.types.is_list(own) else ""
        raise DataError(f"{where} is {own}, which cannot be an input{only}; list it in data.ignore")
    column = InputColumn(name, kind, own.list_size if pyarrow.types.is_fixed_size_list(own) else 1)
    check_input(files, column)
    return column


def check_input(files: ParquetFiles, column: InputColumn) -> None:
    """Check that a column exists, and is of a type that its kind takes.

    Raises
    ------
    DataError
        It is not.
    """
    own = files.schema.field(files.place(column.name)).type
    takes = {
        "category": (_is_text(own) or _is_whole(own), "a text or a whole number, as a category is"),
        "hashed": (_is_text(own) or _is_whole(own), "a text or a whole number, as a category is"),
        "date": (_is_text(own) or _own_kind(own) == "date", "a date, or a text that is one"),
        "number": (_own_kind(own) == "number", "a number"),
        "vector": (_own_kind(own) == "vector" and own.list_size == column.width, f"a list of {column.width} numbers"),
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
        fits = _own_kind(own) == "number" or (spec.kind == "classes" and _is_text(own))
        if not fits:
            wanted = "texts or whole numbers" if spec.kind == "classes" else "numbers"
            raise DataError(f"{files.files[0].where}: target {name!r} is {own}, must hold {wanted}")


def _own_kind(own: Any) -> Kind | Literal["vector"] | None:
    """The kind of a column of a pyarrow type; None: its type does not say, or it cannot be an input."""
    import pyarrow

    types = pyarrow.types
    if types.is_temporal(own) and not (types.is_time(own) or types.is_duration(own)):
        return "date"
    if _is_whole(own) or types.is_floating(own) or types.is_decimal(own):
        return "number"
    if types.is_fixed_size_list(own) and (types.is_integer(own.value_type) or types.is_floating(own.value_type)):
        return "vector"
    return None


def _is_text(own: Any) -> bool:
    import pyarrow

    types = pyarrow.types
    return bool(types.is_string(own) or types.is_large_string(own) or types.is_dictionary(own))


def _is_whole(own: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(own) or pyarrow.types.is_boolean(own))


def raw_columns(table: Any, columns: Sequence[InputColumn], markers: Sequence[str], where: str) -> list[Raw]:
    """Columns of a pyarrow Table as a `TableEncoder` takes them: of a vector each place.

    Raises
    ------
    DataError
        A number is infinite, or a list is missing.
    """
    found = list[Raw]()
    for column in columns:
        own, called = table.column(column.name), f"{where}, column {column.name!r}"
        if column.kind == "vector":
            found += [place.astype(np.float32) for place in _vectors(own, column, called).T]
        else:
            found.append(_raw_column(own, column.kind, markers, called))
    return found


def _raw_column(column: Any, kind: Kind, markers: Sequence[str], where: str) -> Raw:
    import pyarrow

    if kind in ("category", "hashed") or (kind == "date" and not pyarrow.types.is_temporal(column.type)):
        return _coded(column, markers)
    if kind == "date":
        days = column.cast(pyarrow.timestamp("us"), safe=False).to_numpy()
        numbers: np.ndarray = days.astype("datetime64[us]").astype(np.float64) / 86_400e6
        numbers[np.isnat(days)] = np.nan
        return numbers
    return numbers_of(column, where)


def numbers_of(column: Any, where: str) -> np.ndarray:
    """A column of numbers as float32, NaN for a missing one; raises DataError for what is infinite in float32."""
    numbers = _numbers(column)
    _refuse_infinity(numbers, where)
    return numbers


def _numbers(column: Any) -> np.ndarray:
    """A column of numbers as float32: NaN for a missing one, and infinity for what is too large."""
    import pyarrow

    if pyarrow.types.is_decimal(column.type) or pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.float64() if pyarrow.types.is_decimal(column.type) else pyarrow.uint8())
    with np.errstate(over="ignore"):
        numbers: np.ndarray = column.to_numpy().astype(np.float32, copy=False)
    return numbers


def _refuse_infinity(numbers: np.ndarray, where: str) -> None:
    infinite = np.isinf(numbers)
    if infinite.any():
        raise DataError(f"{where}, row {int(np.argmax(infinite))} (from 0): is infinite, or too large for float32")


def _coded(column: Any, markers: Sequence[str]) -> Coded:
    """A column of texts, or of whole numbers as texts; "" where one is missing."""
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    words = [str(value).strip() for value in encoded.dictionary.to_pylist()]
    values = ["" if word in markers else word for word in words]
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
        return _vectors(table.column(columns[0].name), columns[0], f"{where}, column {columns[0].name!r}")
    out = np.empty((table.num_rows, sum(column.width for column in columns)), np.float32)
    parts, first = list[tuple[Any, np.ndarray]](), 0
    for column in columns:
        place, first = first, first + column.width
        found = table.column(column.name)
        if column.kind == "vector":
            parts.append((slice(place, first), _vectors(found, column, f"{where}, column {column.name!r}")))
        else:
            parts.append((place, _numbers(found)))
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
    array = column.combine_chunks()
    if array.null_count or array.flatten().null_count:
        raise DataError(f"{where}: a list, or a number in one, is missing")
    values = array.flatten().to_numpy().reshape(-1, about.width)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers).all(axis=1)))
        raise DataError(f"{where}, row {row} (from 0): holds NaN or infinity")
    return numbers


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
