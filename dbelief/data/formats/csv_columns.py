"""Columns of delimited text: found by the names or numbers that a job gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dbelief.data.tables.missing_values import number_of
from dbelief.data.tables.pandas_index import leading_index, left_out
from dbelief.data.tables.table_encoder import Kind
from dbelief.errors import DataError
from dbelief.job import CsvData, nearest


@dataclass(frozen=True)
class Columns:
    """Column layout of a file.

    Attributes
    ----------
    header : tuple of str, or None
        Column names, if the file has a header.
    count : int
    inputs, targets : tuple of int
        Column indices from 0, in the order of the model's inputs and targets.
    kinds : tuple of kind
        Of each input.
    index : tuple of int
        Columns that pandas wrote for its index; they are no inputs.
    """

    header: tuple[str, ...] | None
    count: int
    inputs: tuple[int, ...]
    kinds: tuple[Kind, ...]
    targets: tuple[int, ...] = ()
    index: tuple[int, ...] = ()

    def called(self, place: int) -> str:
        """Name of a column in messages."""
        return f"column {place + 1}" + (f" ({self.header[place][:40]!r})" if self.header else "")

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the inputs, if the file has a header."""
        header = self.header
        return header and tuple(header[place] for place in self.inputs)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs; of columns without names their numbers from 1."""
        return [self.header[place] if self.header else f"column {place + 1}" for place in self.inputs]

    def notes(self, where: str) -> tuple[str, ...]:
        """What a user must know of the columns."""
        found = [left_out(where, [self.called(place) for place in self.index])] if self.index else []
        numbers = [name for name in self.names or () if "." in name and number_of(name) is not None]
        if numbers:
            found.append(
                f"{where}: the first row is taken as names of columns, and {numbers[0]!r} is a number; where it is a "
                "sample, set data.header: false"
            )
        return tuple(found)

    def roles(self, classes: bool, text: int, ignored: int) -> np.ndarray:
        """Role of each column in `read_cells`: numbers are inputs, then targets; texts are inputs, then the classes."""
        roles = np.full(self.count, ignored, np.int64)
        kinds = list(zip(self.inputs, self.kinds, strict=True))
        numbers = [place for place, kind in kinds if kind == "number"]
        texts = [place for place, kind in kinds if kind != "number"]
        (texts if classes else numbers).extend(self.targets)
        roles[numbers] = np.arange(len(numbers))
        roles[texts] = text - np.arange(len(texts))
        return roles

    def within(self, first: Sequence[str], where: str, file: str) -> Columns:
        """The same columns in another file, by their names, if this one has a header.

        Parameters
        ----------
        first
            The other file's first row.
        where, file
            Names of the other file, and of this one, in messages.

        Raises
        ------
        DataError
            The other file lacks one, or has another one.
        """
        if self.header is None:
            if len(first) != self.count:
                raise DataError(f"{where}: its first row has {len(first)} columns, and that of {file} {self.count}")
            return self
        header = header_of(first, where)
        inputs, targets = (
            tuple(place_of(self.header[place], header, len(header), where) for place in places)
            for places in (self.inputs, self.targets)
        )
        index = leading_index(header)
        more = [name for place, name in enumerate(header) if name not in self.header and place not in index]
        if more:
            raise DataError(f"{where}: has a column {more[0]!r}, which {file} has not")
        return replace(self, header=header, count=len(header), inputs=inputs, targets=targets, index=())


def find_columns(spec: CsvData, first: Sequence[str], where: str) -> Columns:
    """Find the columns that the job specifies in a file's first row.

    Raises
    ------
    DataError
        One does not exist, or is named twice; two have one name, or one has none; no input is left.
    """
    header = header_of(first, where) if spec.header else None
    targets = [place_of(column, header, len(first), where) for column in spec.target]
    ignored = [place_of(column, header, len(first), where) for column in spec.ignore]
    listed: dict[Kind, tuple[str | int, ...]] = {
        "category": spec.categories,
        "hashed": spec.hashed,
        "date": spec.dates,
    }
    kinds = {place_of(one, header, len(first), where): kind for kind, columns in listed.items() for one in columns}
    named = [
        place_of(one, header, len(first), where)
        for one in (*spec.target, *spec.ignore, *spec.categories, *spec.hashed, *spec.dates)
    ]
    for place, count in Counter(named).items():
        if count > 1:
            name = f" ({header[place]!r})" if header else ""
            fields = "target, ignore, categories, hashed and dates" if kinds else "target and ignore"
            raise DataError(f"{where}: column {place + 1}{name} is named twice by {fields}")
    index = tuple(place for place in leading_index(header or ()) if place not in named)
    others = {*targets, *ignored, *index}
    inputs = tuple(place for place in range(len(first)) if place not in others)
    if not inputs:
        raise DataError(f"{where}: no column is left for inputs, of {len(first)}; is the delimiter {spec.delimiter!r}?")
    if header is not None:
        _check_names(header, sorted((*inputs, *targets)), named, where)
    return Columns(
        header, len(first), inputs, tuple(kinds.get(place, "number") for place in inputs), tuple(targets), index
    )


def _check_names(header: Sequence[str], used: Sequence[int], named: Sequence[int], where: str) -> None:
    """Refuse columns with one name, of which files in another order could not be read, and columns without a name.

    `named`: columns that the job names by their numbers or names, which may have none.
    """
    for name, count in Counter(header[place] for place in used).items():
        if count > 1 and name:
            places = ", ".join(str(place + 1) for place in used if header[place] == name)
            raise DataError(
                f"{where}: {count} columns are called {name[:40]!r} ({places}): rename them, or list all but one by "
                "their numbers in data.ignore"
            )
    nameless = [place + 1 for place in used if not header[place] and place not in named]
    if nameless:
        raise DataError(
            f"{where}: column {nameless[0]} has no name in the header: give it one, or list its number in data.ignore "
            "(does each line end with a delimiter?)"
        )


def header_of(first: Sequence[str], where: str) -> tuple[str, ...]:
    """Names of the columns in a file's first row."""
    header = tuple(name.strip() for name in first)
    if all(number_of(name) is not None for name in header):
        raise DataError(f"{where}: its first row holds numbers only; for a file without a header say header: false")
    return header


def place_of(column: str | int, header: tuple[str, ...] | None, count: int, where: str) -> int:
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
