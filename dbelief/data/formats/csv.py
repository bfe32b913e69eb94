"""Delimited text with one or more target columns: columns by name or number, classes as numbers or as text."""

import csv
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.data.dataset import Dataset
from dbelief.data.files.contents import lines, read
from dbelief.data.files.data_file import DataFile, find_file, objects_digest
from dbelief.data.splits import cut, cut_sizes
from dbelief.data.tables.missing_values import MissingValues
from dbelief.data.tables.table_encoder import Kind, TableEncoder
from dbelief.data.tables.table_statistics import fit
from dbelief.errors import DataError
from dbelief.job import CsvData

from .csv_columns import Columns, find_columns, header_of, place_of
from .csv_table import Classes, Table
from .npz import dataset
from .text_start import text_start

csv.field_size_limit((1 << 31) - 1)  # of the whole process; rows are counted that may hold a text of any length


def load_csv(spec: CsvData, folder: Path, need: Collection[str]) -> Dataset:
    """Load the file, split off validation and test sets without a file of their own, and load the files of the others.

    Whole numbers become classes 0 .. k - 1 in numeric order, other values in the order of their characters;
    `Dataset.names` holds the names.

    Raises
    ------
    DataError
    """
    missing = MissingValues.of(spec.markers)
    source = find_file(spec.file, folder)
    table = _table(spec, source, missing)
    columns, where = table.columns, table.where
    classes = Classes.of(table, missing) if spec.kind == "classes" else None
    targets = _targets(table, classes, missing)
    own = {"validation": spec.validation_file, "test": spec.test_file}
    validation, test = (0 if own[name] else getattr(spec, name) for name in own)
    parts = cut(len(table.lines), targets if classes else None, validation, test, where)
    encoder = _encoder(spec, table, missing, parts.train) if spec.encoded else None
    inputs = _encoded(table, encoder)
    del table  # its numbers are float64 where they are encoded, and texts
    sets = {name: (inputs[rows], targets[rows]) for name, rows in vars(parts).items()}
    for name, file in own.items():
        if file is not None and name in need:
            other = _table(spec, find_file(file, folder), missing, columns)
            # numbers are parts of one array
            pair = _encoded(other, encoder), _targets(other, classes, missing)
            sets[name] = np.ascontiguousarray(pair[0]), np.ascontiguousarray(pair[1])
    made = dataset(sets, where, need, spec.scale, classes.names if classes else None)
    shown, state = (columns.names, None) if encoder is None else (encoder.names, encoder.state())
    notes, objects = columns.notes(where), objects_digest([source])
    return replace(made, columns=shown, encoder=state, notes=notes, objects=objects)


def _encoder(spec: CsvData, table: Table, missing: MissingValues, train: np.ndarray) -> TableEncoder:
    """The encoder of a table, computed from its training rows."""
    columns = table.columns
    raw = table.raw(missing, spec.fills)
    return fit(spec, columns.input_names, columns.kinds, raw, train, table.where)


def _encoded(table: Table, encoder: TableEncoder | None) -> np.ndarray:
    if encoder is None:
        return table.inputs
    return encoder.encode(table.raw(encoder.missing, encoder.fills), table.where)


def _targets(table: Table, classes: Classes | None, missing: MissingValues) -> np.ndarray:
    return table.numbers.astype(np.float32) if classes is None else classes.place(table, missing)


def csv_sizes(spec: CsvData, folder: Path) -> tuple[int, int, int]:
    """Samples of the three sets: the files' rows are counted, and not kept.

    Raises
    ------
    DataError
    """
    own = {"validation": spec.validation_file, "test": spec.test_file}
    validation, test = (0 if own[name] else getattr(spec, name) for name in own)
    path = find_file(spec.file, folder)
    sizes = cut_sizes(_count(path, spec), None, validation, test, str(path))
    counted = [
        cut if file is None else _count(find_file(file, folder), spec)
        for cut, file in zip(sizes[1:], own.values(), strict=True)
    ]
    return sizes[0], counted[0], counted[1]


def read_inputs(path: DataFile, spec: CsvData, form: SampleForm) -> np.ndarray:
    """Read the inputs of new samples, float32 (n, features); other columns, such as targets, may be there or not.

    Columns are found by their names where the file of the training had a header. Where that had none, they are the
    inputs alone, or all columns of that file, in its order.

    Raises
    ------
    DataError
    """
    content, where, first, at = _opened(path, spec)
    encoder = None if form.encoder is None else TableEncoder.restore(form.encoder)
    wanted, kinds = form.columns, tuple[Kind, ...](["number"] * form.features[0])
    if encoder is not None:
        wanted, kinds = tuple(one.name for one in encoder.columns), tuple(one.kind for one in encoder.columns)
    columns = Columns(header_of(first, where) if spec.header else None, len(first), (), ())
    columns = replace(columns, inputs=_inputs(spec, first, wanted, len(kinds), where), kinds=kinds)
    missing = MissingValues.of(()) if encoder is None else encoder.missing
    return _encoded(_read(spec, content, at, columns, missing, encoder is not None, where), encoder)


def _inputs(spec: CsvData, first: list[str], wanted: Sequence[str] | None, count: int, where: str) -> tuple[int, ...]:
    """Indices of the columns of a file of new samples that are the model's inputs, in their order.

    Parameters
    ----------
    wanted
        Names of the inputs, where they are known.
    count
        Number of them.
    """
    if not spec.header:
        columns = tuple(range(len(first))) if len(first) == count else find_columns(spec, first, where).inputs
    elif wanted is None:
        columns = find_columns(spec, first, where).inputs
    else:
        header, known = header_of(first, where), len(first)
        ignored = {
            place_of(one, header, known, where) for one in spec.ignore if isinstance(one, int) and abs(one) <= known
        }
        left = tuple("" if place in ignored and name in wanted else name for place, name in enumerate(header))
        columns = tuple(place_of(name, left if name in left else header, known, where) for name in wanted)
    if len(columns) != count:
        raise DataError(f"{where}: has {len(columns)} inputs, the model takes {count}")
    return columns


def _opened(path: DataFile, spec: CsvData) -> tuple[bytes, str, list[str], tuple[int, int]]:
    """A file's content, with line feeds, its name, the first row's fields, and position and line of the samples."""
    content, where = read(path), str(path)
    start = text_start(content, where)
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")  # CR ended lines on old systems
    first, below, line = _first_row(content, start, spec.delimiter, where)
    return content, where, first, (below, line + 1) if spec.header else (start, 1)


def _count(path: DataFile, spec: CsvData) -> int:
    """Rows below the header; as in `read_cells`, empty lines do not count, and a quoted field may hold line ends."""

    def texts() -> Iterator[str]:
        for line in lines(path):
            parts = [line] if line.endswith(b"\n") else line.split(b"\r")  # only the last line has no line feed
            yield from (part.decode("latin-1") for part in parts)

    reader = csv.reader(texts(), delimiter=spec.delimiter)
    try:
        return sum(map(bool, reader)) - spec.header
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: is no row of fields ({error})") from None


def _table(spec: CsvData, path: DataFile, missing: MissingValues, like: Columns | None = None) -> Table:
    """Read a file, plain or .gz, whose columns must be those of `like`, if any."""
    content, where, first, at = _opened(path, spec)
    columns = find_columns(spec, first, where) if like is None else like.within(first, where, spec.file)
    return _read(spec, content, at, columns, missing, spec.encoded, where)


def _read(
    spec: CsvData,
    content: bytes,
    at: tuple[int, int],
    columns: Columns,
    missing: MissingValues,
    encoded: bool,
    where: str,
) -> Table:
    """Read all rows; `at`: the position and the line at which they begin."""
    from .csv_tokenizer import IGNORED, TEXT, read_cells  # imports numba

    words = spec.kind == "classes" and bool(columns.targets)
    roles = columns.roles(words, TEXT, IGNORED)
    names = [columns.called(place) for place in range(columns.count)]
    width = columns.kinds.count("number")
    filled = width if spec.fills else 0
    # What is encoded is rounded to float32 after that: the mean of Unix times is larger than their differences.
    dtype = np.float64 if encoded else np.float32
    cells = read_cells(content, *at, spec.delimiter, roles, names, where, missing, filled, dtype)
    if not len(cells.lines):
        raise DataError(f"{where}: has no rows below its header")
    texts = len(columns.kinds) - width
    return Table(
        where,
        columns,
        cells.numbers[:, :width],
        cells.numbers[:, width:],
        cells.texts[:texts],
        cells.texts[texts] if words else [],
        cells.lines,
    )


def _first_row(content: bytes, at: int, delimiter: str, where: str) -> tuple[list[str], int, int]:
    """Fields of the first row that is not empty, the position after it, and the line on which it ends."""

    def lines() -> Iterator[str]:
        nonlocal at
        while at < len(content):
            begin, at = at, content.find(b"\n", at) + 1 or len(content)
            yield content[begin:at].decode()

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        fields: list[str] = next((row for row in reader if row), [])
    except (csv.Error, UnicodeDecodeError) as error:
        cause = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"is no row of fields ({error})"
        if "new-line character" in str(error):
            cause = "lines end in CR here and in LF elsewhere: write the file with one of them"
        raise DataError(f"{where}, line {reader.line_num + isinstance(error, UnicodeDecodeError)}: {cause}") from None
    if not fields:
        raise DataError(f"{where}: has no rows")
    return fields, at, reader.line_num
