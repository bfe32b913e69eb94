"""Delimited text with one or more target columns: columns by name or number, classes as numbers or as text."""

import codecs
import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dbelief.core.sample_form import SampleForm
from dbelief.data.dataset import Dataset
from dbelief.data.files.contents import lines, read
from dbelief.data.files.data_file import DataFile, find_file
from dbelief.data.splits import cut, cut_sizes
from dbelief.data.table_encoder import Kind, Raw, TableEncoder
from dbelief.data.table_statistics import fit
from dbelief.errors import DataError
from dbelief.job import CsvData, nearest

from .npz import dataset


@dataclass(frozen=True)
class Columns:
    """Column layout of a file.

    Attributes
    ----------
    header : tuple of str, or None
        Column names, if the file has a header.
    count : int
    targets, ignored : tuple of int
        Column indices from 0.
    texts : mapping of int to kind
        Of the inputs that are read as text, by their index.
    """

    header: tuple[str, ...] | None
    count: int
    targets: tuple[int, ...]
    ignored: tuple[int, ...]
    texts: Mapping[int, Kind]

    def called(self, place: int) -> str:
        """Name of a column in messages."""
        return f"column {place + 1}" + (f" ({self.header[place][:40]!r})" if self.header else "")

    @property
    def inputs(self) -> tuple[int, ...]:
        """Indices of the columns that are neither targets nor ignored."""
        others = {*self.targets, *self.ignored}
        return tuple(place for place in range(self.count) if place not in others)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs, if the file has a header."""
        header = self.header
        return header and tuple(header[place] for place in self.inputs)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs; of columns without names their numbers from 1."""
        return [self.header[place] if self.header else f"column {place + 1}" for place in self.inputs]

    @property
    def kinds(self) -> list[Kind]:
        """Kind of each input."""
        return [self.texts.get(place, "number") for place in self.inputs]

    def roles(self, classes: bool, text: int, ignored: int) -> np.ndarray:
        """Role of each column in `read_cells`: numbers are inputs, then targets; texts are inputs, then the classes."""
        roles = np.full(self.count, ignored, np.int64)
        numbers = [place for place in self.inputs if place not in self.texts]
        texts = [place for place in self.inputs if place in self.texts]
        (texts if classes else numbers).extend(self.targets)
        roles[numbers] = np.arange(len(numbers))
        roles[texts] = text - np.arange(len(texts))
        return roles


@dataclass(frozen=True)
class Table:
    """Content of a file.

    Attributes
    ----------
    inputs : float32, shape (n, numeric inputs)
    numbers : float32, shape (n, targets)
        Numeric targets; width 0 where targets are classes.
    texts : list of lists of bytes
        The inputs that are read as text.
    words : list of bytes
        The target column where it names classes; otherwise empty.
    lines : int64, shape (n,)
    """

    where: str
    columns: Columns
    inputs: np.ndarray
    numbers: np.ndarray
    texts: list[list[bytes]]
    words: list[bytes]
    lines: np.ndarray

    def raw(self, markers: Collection[str]) -> list[Raw]:
        """The inputs in their order, as a `TableEncoder` takes them.

        Raises
        ------
        DataError
            A text is not UTF-8.
        """
        numbers, texts = iter(self.inputs.T), iter(self.texts)
        return [
            next(numbers) if kind == "number" else self._decoded(next(texts), place, markers)
            for place, kind in zip(self.columns.inputs, self.columns.kinds, strict=True)
        ]

    def _decoded(self, column: list[bytes], place: int, markers: Collection[str]) -> list[str]:
        words: dict[bytes, str] = {}
        for raw in dict.fromkeys(column):
            try:
                word = raw.decode().strip()
            except UnicodeDecodeError:
                line = self.lines[column.index(raw)]
                raise DataError(f"{self.where}, line {line}, {self.columns.called(place)}: is not UTF-8") from None
            words[raw] = "" if word in markers else word
        return [words[raw] for raw in column]


def load_csv(spec: CsvData, folder: Path, need: Collection[str]) -> Dataset:
    """Load the file, split off validation and test sets without a file of their own, and load the files of the others.

    Whole numbers become classes 0 .. k - 1 in numeric order, other values in the order of their characters;
    `Dataset.names` holds the names.

    Raises
    ------
    DataError
    """
    table = _table(spec, find_file(spec.file, folder))
    classes = Classes.of(table) if spec.kind == "classes" else None
    targets = _targets(table, classes)
    own = {"validation": spec.validation_file, "test": spec.test_file}
    validation, test = (0 if own[name] else getattr(spec, name) for name in own)
    parts = cut(len(table.lines), targets if classes else None, validation, test, table.where)
    encoder = _encoder(spec, table, parts.train) if spec.encoded else None
    inputs = _encoded(table, encoder)
    sets = {name: (inputs[rows], targets[rows]) for name, rows in vars(parts).items()}
    for name, file in own.items():
        if file is not None and name in need:
            other = _table(spec, find_file(file, folder), table.columns)
            # numbers are parts of one array
            sets[name] = np.ascontiguousarray(_encoded(other, encoder)), np.ascontiguousarray(_targets(other, classes))
    made = dataset(sets, table.where, need, spec.scale, classes.names if classes else None)
    if encoder is None:
        return replace(made, columns=table.columns.names)
    return replace(made, columns=encoder.names, encoder=encoder.state())


def _encoder(spec: CsvData, table: Table, train: np.ndarray) -> TableEncoder:
    """The encoder of a table, computed from its training rows."""
    columns = table.columns
    raw = table.raw(spec.missing_values)
    return fit(spec, columns.input_names, columns.kinds, raw, train, table.where)


def _encoded(table: Table, encoder: TableEncoder | None) -> np.ndarray:
    return table.inputs if encoder is None else encoder.encode(table.raw(encoder.markers), table.where)


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

    Columns are found by their names where the file of the training had a header. Where that had none, or names repeat,
    they are the inputs alone, or all columns of that file, in its order.

    Raises
    ------
    DataError
    """
    from .csv_tokenizer import IGNORED, TEXT, read_cells  # imports numba

    content, where = read(path), str(path)
    start, below, first, line = _begin(content, spec, where)
    encoder = None if form.encoder is None else TableEncoder.restore(form.encoder)
    inputs = _inputs(spec, first, form if encoder is None else _raw_form(form, encoder), where)
    kinds: list[Kind] = ["number"] * len(inputs) if encoder is None else [column.kind for column in encoder.columns]
    texts = {place: kind for place, kind in sorted(zip(inputs, kinds, strict=True)) if kind != "number"}
    numbers = list(inputs) if encoder is None else sorted({*inputs} - texts.keys())
    roles = np.full(len(first), IGNORED, np.int64)
    roles[numbers], roles[list(texts)] = np.arange(len(numbers)), TEXT - np.arange(len(texts))
    called = [f" ({name[:40]!r})" if spec.header else "" for name in first]
    names = [f"column {place}{name}" for place, name in enumerate(called, start=1)]
    gaps = None if encoder is None else encoder.markers
    cells = read_cells(content, below if spec.header else start, line, spec.delimiter, roles, names, where, gaps)
    if not len(cells.lines):
        raise DataError(f"{where}: has no rows below its header")
    if encoder is None:
        return cells.numbers
    others = tuple(place for place in range(len(first)) if place not in inputs)
    columns = Columns(tuple(first) if spec.header else None, len(first), (), others, texts)
    table = Table(where, columns, cells.numbers, cells.numbers[:, :0], cells.texts, [], cells.lines)
    by_place = dict(zip(columns.inputs, table.raw(encoder.markers), strict=True))
    return encoder.encode([by_place[place] for place in inputs], where)


def _raw_form(form: SampleForm, encoder: TableEncoder) -> SampleForm:
    """The form of the samples before they are encoded."""
    names = tuple(column.name for column in encoder.columns)
    return replace(form, features=(len(names),), columns=names)


def _inputs(spec: CsvData, first: list[str], form: SampleForm, where: str) -> Sequence[int]:
    """Indices of the columns of a file of new samples that are the model's inputs, in their order."""
    if not spec.header:
        return range(len(first)) if len(first) == form.features[0] else _columns(spec, first, where).inputs
    header, wanted = _header(first, where), form.columns
    if wanted is not None and len({*wanted}) == len(wanted):
        return [_place(name, header, len(first), where) for name in wanted]
    if header == wanted:
        return range(len(first))
    columns = _columns(spec, first, where)  # where names repeat, or are not known, positions decide
    if wanted is not None and columns.names != wanted:
        raise DataError(f"{where}: its inputs are {', '.join(columns.names or ())}, not {', '.join(wanted)}")
    return columns.inputs


def _begin(content: bytes, spec: CsvData, where: str) -> tuple[int, int, list[str], int]:
    """Positions of the first row and of what is below it, its fields, and the line of the first row of samples."""
    start = len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0
    first, below, line = _first_row(content, start, spec.delimiter, where)
    return start, below, first, line + 1 if spec.header else 1


def _count(path: DataFile, spec: CsvData) -> int:
    """Rows below the header; as in `read_cells`, empty lines do not count, and a quoted field may hold line ends."""
    reader = csv.reader((line.decode("latin-1") for line in lines(path)), delimiter=spec.delimiter)
    try:
        return sum(map(bool, reader)) - spec.header
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: is no row of fields ({error})") from None


def _table(spec: CsvData, path: DataFile, like: Columns | None = None) -> Table:
    """Read a file, plain or .gz, whose columns must be those of `like`, if any."""
    from .csv_tokenizer import IGNORED, TEXT, read_cells  # imports numba

    content, where = read(path), str(path)
    start, below, first, line = _begin(content, spec, where)
    columns = _columns(spec, first, where)
    if like is not None and (columns.header, columns.count) != (like.header, like.count):
        raise DataError(f"{where}: its columns are not those of {spec.file}")
    classes = spec.kind == "classes"
    roles = columns.roles(classes, TEXT, IGNORED)
    names = [columns.called(place) for place in range(columns.count)]
    gaps = spec.missing_values if spec.missing != "refuse" else None
    cells = read_cells(content, below if spec.header else start, line, spec.delimiter, roles, names, where, gaps)
    if not len(cells.lines):
        raise DataError(f"{where}: has no rows below its header")
    width, texts = columns.kinds.count("number"), len(columns.texts)
    words = cells.texts[texts] if classes else []
    own = cells.numbers[:, :width], cells.numbers[:, width:], cells.texts[:texts], words
    return Table(where, columns, *own, cells.lines)


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
        raise DataError(f"{where}, line {reader.line_num + isinstance(error, UnicodeDecodeError)}: {cause}") from None
    if not fields:
        raise DataError(f"{where}: has no rows")
    return fields, at, reader.line_num


def _columns(spec: CsvData, first: list[str], where: str) -> Columns:
    """Find the columns that the job specifies."""
    header = _header(first, where) if spec.header else None
    targets = [_place(column, header, len(first), where) for column in spec.target]
    ignored = [_place(column, header, len(first), where) for column in spec.ignore]
    listed: dict[Kind, tuple[str | int, ...]] = {
        "category": spec.categories,
        "hashed": spec.hashed,
        "date": spec.dates,
    }
    kinds = [(_place(one, header, len(first), where), kind) for kind, columns in listed.items() for one in columns]
    chosen = [*targets, *ignored]
    named = [*chosen, *(place for place, _ in kinds)]
    for place in named:
        if named.count(place) > 1:
            name = f" ({header[place]!r})" if header else ""
            fields = "target, ignore, categories, hashed and dates" if kinds else "target and ignore"
            raise DataError(f"{where}: column {place + 1}{name} is named twice by {fields}")
    if len(chosen) == len(first):
        raise DataError(f"{where}: no column is left for inputs, of {len(first)}; is the delimiter {spec.delimiter!r}?")
    return Columns(header, len(first), tuple(targets), tuple(ignored), dict(kinds))


def _header(first: list[str], where: str) -> tuple[str, ...]:
    """Names of the columns in a file's first row."""
    header = tuple(name.strip() for name in first)
    if all(_number(name) is not None for name in header):
        raise DataError(f"{where}: its first row holds numbers only; for a file without a header say header: false")
    return header


def _place(column: str | int, header: tuple[str, ...] | None, count: int, where: str) -> int:
    """Index from 0 of a column that is given by its name, by its number from 1, or from -1 backwards."""
    if isinstance(column, int):
        if abs(column) > count:
            raise DataError(f"{where}: there is no column {column}, its first row has {count}")
        return column - 1 if column > 0 else count + column
    if header is None:
        raise DataError(f"{where}: column {column!r} is a name, and header is false; give its number from 1")
    if header.count(column) != 1:
        near = nearest(column, header)
        hint = f"; did you mean {near!r}?" if near and near != column else ""
        how_many = "no column is" if column not in header else f"{header.count(column)} columns are"
        if count == 1:
            hint = f"; the header is one column, {header[0][:60]!r}: is the delimiter another one?"
        raise DataError(f"{where}: {how_many} called {column!r}{hint}")
    return header.index(column)


@dataclass(frozen=True)
class Classes:
    """The names of classes in order; `whole` where all of them are whole numbers."""

    names: tuple[str, ...]
    whole: bool

    @classmethod
    def of(cls, table: Table) -> "Classes":
        """The classes of a training file.

        Raises
        ------
        DataError
            A field is empty, or all fields are numbers and one is not a whole number.
        """
        words = _words(table)
        numbers = {raw: _number(word) for raw, word in words.items()}
        if None in numbers.values():
            return cls(tuple(sorted(set(words.values()))), False)
        for raw, number in numbers.items():
            if number is None or not number.is_integer() or abs(number) > 1 << 53:
                wrong = f"class {words[raw]!r} is a number, but no whole one"
                raise DataError(f"{_at(table, raw)}: {wrong}; for targets that are numbers say kind: regression")
        return cls(tuple(map(str, sorted({int(number) for number in numbers.values() if number is not None}))), True)

    def place(self, table: Table) -> np.ndarray:
        """Class of each row, int64.

        Raises
        ------
        DataError
            A row's class is not among the names.
        """
        known = {name: place for place, name in enumerate(self.names)}
        places: dict[bytes, int] = {}
        for raw, word in _words(table).items():
            number = _number(word)
            name = str(int(number)) if self.whole and number is not None and number.is_integer() else word
            if name not in known:
                raise DataError(f"{_at(table, raw)}: class {word[:40]!r} is not in the training file")
            places[raw] = known[name]
        return np.fromiter(map(places.__getitem__, table.words), np.int64, len(table.words))


def _words(table: Table) -> dict[bytes, str]:
    """The distinct fields of the target column as text, in order of appearance."""
    words: dict[bytes, str] = {}
    for raw in dict.fromkeys(table.words):
        try:
            words[raw] = raw.decode().strip()
        except UnicodeDecodeError:
            raise DataError(f"{_at(table, raw)}: is not UTF-8") from None
        if not words[raw]:
            raise DataError(f"{_at(table, raw)}: is empty, must name a class")
    return words


def _at(table: Table, raw: bytes) -> str:
    """Location of the first occurrence of a target field, for messages."""
    (target,) = table.columns.targets
    return f"{table.where}, line {table.lines[table.words.index(raw)]}, {table.columns.called(target)}"


def _number(word: str) -> float | None:
    """A finite number, or None."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in word else None


def _targets(table: Table, classes: Classes | None) -> np.ndarray:
    return table.numbers if classes is None else classes.place(table)
