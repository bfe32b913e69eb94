"""CSV with columns of ids as a stream of mini-batches; a row is one line."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

import numpy as np

from dbelief.data.files import contents
from dbelief.data.files.data_file import DataFile
from dbelief.data.formats.csv_columns import place_of
from dbelief.data.formats.text_start import text_start
from dbelief.errors import DataError
from dbelief.sparse.text_keys import text_keys

from .batch import Bag, SparseBatch
from .columns import IdColumns, bag_of
from .libsvm import whole_number
from .line_stream import Files, LineStream, named_files


class CsvLines:
    """A `LineFormat`.

    Parameters
    ----------
    columns
        Those that are read.
    separators
        Of a column's values, by its name.
    delimiter
        Of columns, one character of ASCII.
    file
        Whose first line has the names of the columns of all files.

    Raises
    ------
    DataError
        The file has no such line, or lacks a column.
    """

    comment = -1

    def __init__(self, columns: IdColumns, separators: Mapping[str, str], delimiter: str, file: DataFile) -> None:
        first = next(contents.lines(file), b"")
        names = first[text_start(first, str(file)) :].rstrip(b"\r\n")
        self.header: bytes | None = names
        try:
            fields = next(csv.reader([names.decode()], delimiter=delimiter, strict=True), [])
        except (csv.Error, UnicodeDecodeError):
            raise DataError(f"{file}, line 1: is no line of columns' names") from None
        self._names = tuple(name.strip() for name in fields)
        self._columns, self._separators, self._delimiter = columns, separators, delimiter
        self._places = [self._place(name, file) for name in (*columns.numbers, *columns.ids, *columns.texts)]

    def _place(self, name: str, file: DataFile) -> int:
        return place_of(name, self._names, len(self._names), str(file))

    def parse(self, content: bytes, line: int, where: str) -> SparseBatch:
        """See `LineFormat`."""
        from dbelief.data.formats.csv_tokenizer import IGNORED, TEXT, read_cells  # imports numba

        roles, numbers = np.full(len(self._names), IGNORED), len(self._columns.numbers)
        roles[self._places[:numbers]] = np.arange(numbers)
        roles[self._places[numbers:]] = TEXT - np.arange(len(self._places) - numbers)
        called = [f"column {name!r}" for name in self._names]
        gaps = "labels and weights are in every row"
        cells = read_cells(content, 0, line, self._delimiter, roles, called, where, gaps=gaps)
        if len(cells.lines) != sum(map(bool, map(bytes.strip, content.split(b"\n")))):
            last = line + content.count(b"\n") - content.endswith(b"\n")
            raise DataError(f"{where}, lines {line} to {last}: a quoted field holds the end of a line")
        labels, weights = self._columns.labels(cells.numbers), np.ones(len(cells.lines), np.float32)
        if self._columns.weight is not None:
            weights = cells.numbers[:, -1].copy()
            if (below := weights < 0).any():
                at = cells.lines[int(np.argmax(below))]
                raise DataError(f"{where}, line {at}, {called[self._places[numbers - 1]]}: a weight is below 0")
        names, bags = (*self._columns.ids, *self._columns.texts), dict[str, Bag]()
        for name, fields in zip(names, cells.texts, strict=True):
            bags[name] = self._bag(name, fields, cells.lines, where)
        return SparseBatch(labels, weights, bags)

    def _bag(self, name: str, fields: Sequence[bytes], lines: np.ndarray, where: str) -> Bag:
        """The values of a column; a field of blanks has none, nor has what is between two separators."""
        separator = self._separators.get(name, "").encode()
        words, rows = list[bytes](), list[int]()
        for row, text in enumerate(fields):
            for part in text.split(separator) if separator else (text,):
                if word := part.strip():
                    words.append(word)
                    rows.append(row)
        if name in self._columns.ids:
            at = [f"{where}, line {line}" for line in lines.tolist()]
            whole = (whole_number(word, f"column {name!r}:", at[row]) for word, row in zip(words, rows, strict=True))
            keys = np.fromiter(whole, np.int64, len(words))
        else:
            keys = text_keys(words)
        return bag_of(keys, np.array(rows, np.int64), len(fields))


def read_csv(
    files: Files,
    label: str,
    ids: Sequence[str] = (),
    texts: Sequence[str] = (),
    weight: str | None = None,
    split: Mapping[str, str] | None = None,
    delimiter: str = ",",
    size: int = 256,
) -> LineStream:
    """A stream of CSV: each batch has a bag for each column of ids or texts, of its name.

    Parameters
    ----------
    files
        Paths, folders (of files *.csv), patterns, or URLs of objects; each begins with a line of the columns' names.
    label
        Column of the labels, which are as in the file.
    ids
        Columns of whole numbers of 64 bits, which are keys as they are.
    texts
        Columns of texts, whose hashes are keys (see `text_keys`), without blanks around them.
    weight
        Column of the samples' weights; None: they are 1.
    split
        Separator of the values of a column, by its name: {"tags": "|"}. Others have one value, or none if empty.
    delimiter
        Of columns, one character of ASCII.
    size
        Rows of a mini-batch.

    Returns
    -------
    LineStream

    Raises
    ------
    ValueError
        No column is of ids or texts, or one is named twice; one is split that is not among them, or by nothing.
    DataError
        A file or a column is missing; and from the iteration, where a line violates the format, or a field has the end
        of a line in it.
    """
    columns, separators = IdColumns(label, ids, texts, weight), dict(split or {})
    columns.check()
    for name, separator in separators.items():
        if name not in (*ids, *texts) or not separator:
            raise ValueError(f"split is {separators!r}, must have columns of ids or texts, and separators")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ValueError(f"delimiter is {delimiter!r}, must be one character of ASCII")
    found = named_files(files, ".csv")
    return LineStream(found, CsvLines(columns, separators, delimiter, found[0]), size)
