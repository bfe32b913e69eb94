"""Parquet files as sets of samples: the unit of reading is a row group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.data.files.data_file import DataFile, file_at, objects_digest
from dbelief.data.files.locations import find_files, find_other_files
from dbelief.data.files.scan_cache import scanned
from dbelief.data.samples import SETS
from dbelief.data.streams.stream_sets import StreamSets, cut_units, other_files
from dbelief.data.streams.unit_source import UnitArrays, UnitSource
from dbelief.data.tables.missing_values import MissingValues
from dbelief.data.tables.table_encoder import Kind, TableEncoder
from dbelief.data.tables.table_statistics import ColumnStatistics, encoder_of
from dbelief.errors import DataError
from dbelief.job import ParquetData
from dbelief.process.temporary_folder import temporary_folder

from .parquet_columns import (
    InputColumn,
    check_input,
    check_targets,
    input_columns,
    matrix,
    numbers_of,
    raw_columns,
)
from .parquet_files import ParquetFiles
from .parquet_types import plain_type

_SUFFIX = ".parquet"


Part = tuple[ParquetFiles, tuple[int, ...]]
"""Files, and places of row groups of theirs."""


class RowGroups(UnitSource):
    """Row groups as a `UnitSource`.

    Parameters
    ----------
    files, groups
        The files, and the row groups of this set.
    columns
        The inputs.
    targets
        Names of the target columns.
    classes
        Names of the classes in order; None: targets are numbers.
    encoder
        Makes numbers of the inputs; None: they are numbers.
    missing
        What stands for a missing target, beside null and NaN.
    """

    def __init__(
        self,
        files: ParquetFiles,
        groups: Sequence[int],
        columns: Sequence[InputColumn],
        targets: Sequence[str],
        classes: Sequence[str] | None,
        encoder: TableEncoder | None,
        missing: MissingValues,
    ) -> None:
        self._files, self._groups, self._columns, self._targets = files, groups, columns, targets
        self._missing = missing
        self._classes = None if classes is None else {name: place for place, name in enumerate(classes)}
        self._encoder = encoder
        self.sizes: Sequence[int] = [files.groups[group].rows for group in groups]
        width = sum(column.width for column in columns) if encoder is None else encoder.width
        self.features: tuple[int, ...] = (width,)
        self.dtype = np.dtype(np.uint8 if encoder is None and _is_bytes(files, columns) else np.float32)
        self.width = len(targets) if classes is None else None

    def called(self, unit: int) -> str:
        """See `UnitSource`."""
        return self._files.called(self._groups[unit])

    def read(self, unit: int) -> UnitArrays:
        """See `UnitSource`."""
        where = self.called(unit)
        table = self._files.read(
            self._groups[unit], list(dict.fromkeys([*(one.name for one in self._columns), *self._targets]))
        )
        return UnitArrays(encoded(table, self._columns, self._encoder, where), self._target(table, where))

    def targets(self, unit: int) -> np.ndarray:
        """See `UnitSource`; other columns are not read."""
        return self._target(self._files.read(self._groups[unit], list(self._targets)), self.called(unit))

    def _target(self, table: Any, where: str) -> np.ndarray:
        if self._classes is None:
            return target_numbers(table, self._targets, self._missing, where)
        called = f"{where}, column {self._targets[0]!r}"
        names, codes = class_codes(table.column(self._targets[0]), self._missing, called)
        unknown = [name for name in names if name not in self._classes]
        if unknown:
            raise DataError(f"{where}: class {unknown[0][:40]!r} is in no training row")
        places: np.ndarray = np.array([self._classes[name] for name in names], np.int64)[codes]
        return places


def target_numbers(table: Any, names: Sequence[str], missing: MissingValues, where: str) -> np.ndarray:
    """Targets that are numbers, float32 (n, targets).

    Raises
    ------
    DataError
        One is missing or infinite; names the column and the row.
    """
    found = np.empty((table.num_rows, len(names)), np.float32)
    for place, name in enumerate(names):
        called = f"{where}, column {name!r}"
        numbers = numbers_of(table.column(name), missing, called)
        gaps = np.isnan(numbers)
        if gaps.any():
            raise DataError(f"{called}, row {int(np.argmax(gaps))} (from 0): a target is missing")
        found[:, place] = numbers
    return found


def encoded(table: Any, columns: Sequence[InputColumn], encoder: TableEncoder | None, where: str) -> np.ndarray:
    """The inputs of a table as numbers, shape (n, width)."""
    if encoder is None:
        return matrix(table, columns, where)
    return encoder.encode(raw_columns(table, columns, encoder.missing, encoder.fills, where), where)


def class_codes(column: Any, missing: MissingValues, where: str) -> tuple[list[str], np.ndarray]:
    """The distinct classes of a column, and the place of each row's among them.

    Raises
    ------
    DataError
        One is missing, or is a number that is not whole.
    """
    import pyarrow

    column = column.cast(plain_type(column.type))
    if column.null_count:
        row = int(np.argmax(column.combine_chunks().is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"{where}, row {row} (from 0): a class is missing")
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pyarrow.ChunkedArray) else encoded
    values, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    for place, value in enumerate(values):
        at = f"{where}, row {int(np.argmax(codes == place))} (from 0)"
        if missing.has(value):
            raise DataError(f"{at}: {value!r} stands for a missing value, must be a class")
        if isinstance(value, float | Decimal) and value != value // 1:
            raise DataError(f"{at}: class {value} is no whole number; for targets that are numbers say regression")
    return [str(int(value)) if isinstance(value, float | Decimal) else str(value) for value in values], codes


def open_parquet(spec: ParquetData, folder: Path, prepared: bool = True) -> StreamSets:
    """Open the files.

    Cost: the footers, and one pass over the targets, and over the training rows of columns that need statistics, whose
    result is kept (see `scanned`). Without `prepared` there is no such pass, and only sizes are right.

    Raises
    ------
    DataError
    """
    parts = _parts(spec, folder)
    files, _ = parts["train"]
    columns = input_columns(files, spec)
    check_targets(files, spec)
    classes, encoder = _scan(spec, parts, columns) if prepared else (None, None)

    missing = MissingValues.of(spec.markers)

    def source(name: str) -> RowGroups | None:
        own, chosen = parts[name]
        return RowGroups(own, chosen, columns, spec.target, classes, encoder, missing) if chosen else None

    shown = tuple(name for column in columns for name in column.names) if encoder is None else encoder.names
    state = None if encoder is None else encoder.state()
    names = None if classes is None else tuple(classes)
    objects = objects_digest(files.files)
    return StreamSets({name: source(name) for name in SETS}, names, spec.scale, shown, state, files.notes(), objects)


def check_table(table: Any, spec: ParquetData, called: str) -> None:
    """Check that the columns of a pyarrow Table, of which a row suffices, are those of a job: names and types.

    Raises
    ------
    DataError
        They are not; names the table as it is `called`.
    """
    from pyarrow.parquet import write_table

    with temporary_folder() as folder:
        write_table(table, file := folder / "table.parquet")
        try:
            files = ParquetFiles.open([file_at(file)], named=_named(spec))
            input_columns(files, spec)
            check_targets(files, spec)
        except DataError as error:
            raise DataError(str(error).replace(str(file), called)) from None


def read_parquet(file: DataFile, form: SampleForm) -> np.ndarray:
    """Read the inputs of new samples, (n, features): columns are found by their names, others are not read.

    Raises
    ------
    DataError
    """
    encoder = None if form.encoder is None else TableEncoder.restore(form.encoder)
    wanted: list[tuple[str, Kind]] = [(name, "number") for name in form.columns or ()]
    if encoder is not None:
        wanted = [(column.name, column.kind) for column in encoder.columns]
    elif form.columns is None:
        raise DataError("the names of the model's inputs were too long to be kept with it: give inputs as .npy")
    names = {part for name, _ in wanted for part in (name, name.rpartition("[")[0])}
    files = ParquetFiles.open([file], named=names)
    columns = _grouped(wanted, files.schema.names)
    for column in columns:
        check_input(files, column)
    parts = [
        encoded(files.read(group, [column.name for column in columns]), columns, encoder, files.called(group))
        for group in range(len(files.groups))
    ]
    return np.concatenate(parts)


def _grouped(named: Sequence[tuple[str, Kind]], names: Collection[str]) -> list[InputColumn]:
    """The columns behind names of numbers such as `length` and `pixels[0]`; `names`: of the columns that there are."""
    columns = dict[str, InputColumn]()
    for name, kind in named:
        base, bracket, _ = name.rpartition("[")
        if name not in names and bracket and base in names:
            before = columns.get(base)
            columns[base] = InputColumn(base, "vector", before.width + 1 if before else 1)
        else:
            columns[name] = InputColumn(name, kind)
    return list(columns.values())


def _parts(spec: ParquetData, folder: Path) -> dict[str, Part]:
    """The row groups of each set."""
    named = _named(spec)
    files = ParquetFiles.open(find_files(spec.files, folder, _SUFFIX), named=named)
    cut = cut_units(len(files.groups), spec, "row groups (row_group_size of their writer)", files.files[0].where)
    sets: dict[str, Part] = {name: (files, groups) for name, groups in zip(SETS, cut, strict=True)}
    for name, texts in other_files(spec).items():
        others = ParquetFiles.open(find_other_files(texts, folder, _SUFFIX, files.files), files, named)
        sets[name] = others, tuple(range(len(others.groups)))
    return sets


def _named(spec: ParquetData) -> set[str]:
    """Columns that the job names."""
    return {*spec.target, *spec.ignore, *spec.categories, *spec.hashed, *spec.dates}


def _scan(
    spec: ParquetData, parts: dict[str, Part], columns: Sequence[InputColumn]
) -> tuple[list[str] | None, TableEncoder | None]:
    """Classes of the training rows, and the encoder of the inputs, each None where the job needs none."""
    encodes = spec.encoded or any(column.kind not in ("number", "vector") for column in columns)
    files = list(dict.fromkeys(file for own, _ in parts.values() for file in own.files))
    asked = {"source": "parquet", "spec": spec.model_dump(mode="json", exclude={"memory", "window", "streamed"})}
    found = scanned(files, asked, lambda: _statistics(spec, parts, columns if encodes else ()))
    encoder = TableEncoder.restore(found["encoder"]) if found["encoder"] is not None else None
    return found["classes"], encoder


def _statistics(spec: ParquetData, parts: dict[str, Part], columns: Sequence[InputColumn]) -> dict[str, Any]:
    """One pass over the columns that need it: of the training rows, and of other sets' targets."""
    files, groups = parts["train"]
    where, missing = files.files[0].where, MissingValues.of(spec.markers)
    statistics = [ColumnStatistics(spec, name, column.raw_kind) for column in columns for name in column.names]
    for group in groups if columns else ():
        table, called = files.read(group, [column.name for column in columns]), files.called(group)
        raw = raw_columns(table, columns, missing, spec.fills, called)
        for own, statistic in zip(raw, statistics, strict=True):
            statistic.add(own, called)
    if spec.kind == "regression":
        for own_files, chosen in parts.values():
            for group in chosen:
                table = own_files.read(group, list(spec.target))
                target_numbers(table, spec.target, missing, own_files.called(group))
    return {
        "classes": _classes(spec.target[0], parts, missing, where) if spec.kind == "classes" else None,
        "encoder": encoder_of(spec, statistics, where).state() if statistics else None,
    }


def _classes(target: str, parts: dict[str, Part], missing: MissingValues, where: str) -> list[str]:
    """The classes of the training rows, which must be those of all sets."""

    def of(files: ParquetFiles, group: int) -> set[str]:
        column = files.read(group, [target]).column(target)
        return {*class_codes(column, missing, f"{files.called(group)}, column {target!r}")[0]}

    files, groups = parts["train"]
    known = set[str]().union(*(of(files, group) for group in groups))
    for name in SETS[1:]:
        files, groups = parts[name]
        for group in groups:
            if unknown := of(files, group) - known:
                raise DataError(f"{files.called(group)}: class {min(unknown)[:40]!r} is in no training row")
    return _sorted(known, where)


def _sorted(classes: set[str], where: str) -> list[str]:
    """Classes in order: whole numbers by their value, others by their characters."""
    if len(classes) < 2:
        raise DataError(f"{where}: all training rows have the same class, {next(iter(classes), '')!r}")
    numbers = all(name.removeprefix("-").isdecimal() for name in classes)
    return sorted(classes, key=lambda name: (int(name), name)) if numbers else sorted(classes)


def _is_bytes(files: ParquetFiles, columns: Sequence[InputColumn]) -> bool:
    """Whether the inputs are one column of lists of uint8."""
    if len(columns) != 1 or columns[0].kind != "vector":
        return False
    value_type = files.schema.field(files.place(columns[0].name, "ignore")).type.value_type
    return str(value_type) == "uint8"
