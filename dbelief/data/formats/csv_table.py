"""Content of a file of delimited text: rows of numbers and texts, and the classes that a column names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dbelief.data.tables.dates import day_of
from dbelief.data.tables.missing_values import MissingValues, number_of
from dbelief.data.tables.table_encoder import Raw
from dbelief.errors import DataError

from .csv_columns import Columns

_WHOLE = re.compile(r"[-+]?[0-9]{1,40}")


@dataclass(frozen=True)
class Table:
    """Content of a file.

    Attributes
    ----------
    inputs : float32, or float64 where they are encoded, shape (n, numeric inputs)
    numbers : the like, shape (n, targets)
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

    def raw(self, missing: MissingValues, fills: bool) -> list[Raw]:
        """The inputs in their order, as a `TableEncoder` takes them.

        Parameters
        ----------
        missing
            What stands for a missing value.
        fills
            Whether values may be missing.

        Raises
        ------
        DataError
            A text is not UTF-8, or is missing.
        """
        numbers, texts = iter(self.inputs.T), iter(self.texts)
        raw = list[Raw]()
        for place, kind in zip(self.columns.inputs, self.columns.kinds, strict=True):
            if kind == "number":
                raw.append(next(numbers))
                continue
            column = next(texts)
            words = self._decoded(column, place, missing.has_date if kind == "date" else missing.has_text, fills)
            raw.append(self._days(words, column, place) if kind == "date" else words)
        return raw

    def _days(self, words: list[str], column: list[bytes], place: int) -> np.ndarray:
        days = {"": np.nan}
        for word, raw in zip(words, column, strict=True):
            if word not in days:
                try:
                    days[word] = day_of(word)
                except ValueError as error:
                    raise DataError(f"{self.at(raw, column, place)}: {error}") from None
        return np.fromiter(map(days.__getitem__, words), np.float64, len(words))

    def _decoded(self, column: list[bytes], place: int, missing: Callable[[str], bool], fills: bool) -> list[str]:
        words: dict[bytes, str] = {}
        for raw in dict.fromkeys(column):
            word = self.decoded(raw, column, place)
            words[raw] = "" if missing(word) else word
            if not fills and not words[raw]:
                raise DataError(
                    f"{self.at(raw, column, place)}: {gap(word)}; data.missing: mean or zero allows gaps, which are a "
                    "value of their own in categories"
                )
        return [words[raw] for raw in column]

    def decoded(self, raw: bytes, column: list[bytes], place: int) -> str:
        """A field of a column as text, without blanks around it."""
        try:
            return raw.decode().strip()
        except UnicodeDecodeError:
            raise DataError(f"{self.at(raw, column, place)}: is not UTF-8") from None

    def at(self, raw: bytes, column: list[bytes], place: int) -> str:
        """Location of the first occurrence of a field in its column, for messages."""
        return f"{self.where}, line {self.lines[column.index(raw)]}, {self.columns.called(place)}"


def gap(word: str) -> str:
    """A field that stands for a missing value, in messages."""
    return f"{word[:40]!r} stands for a missing value (data.missing_values, missing_words)" if word else "is empty"


@dataclass(frozen=True)
class Classes:
    """The names of classes in order; `whole` where all of them are whole numbers."""

    names: tuple[str, ...]
    whole: bool

    @classmethod
    def of(cls, table: Table, missing: MissingValues) -> Classes:
        """The classes of a training file.

        Raises
        ------
        DataError
            A field is missing, or all fields are numbers and one is not a whole number.
        """
        words = _words(table, missing)
        numbers = {raw: number_of(word) for raw, word in words.items()}
        if not all(number is not None and np.isfinite(number) for number in numbers.values()):
            return cls(tuple(sorted(set(words.values()))), False)
        for raw, number in numbers.items():
            if _whole(words[raw]) is None:
                wrong = f"class {words[raw]!r} is a number, but no whole one"
                if number is not None and number.is_integer():
                    wrong = f"class {words[raw][:40]!r} is a number of more digits than float64 has"
                raise DataError(f"{_at(table, raw)}: {wrong}; for targets that are numbers say kind: regression")
        return cls(tuple(map(str, sorted({n for word in words.values() if (n := _whole(word)) is not None}))), True)

    def place(self, table: Table, missing: MissingValues) -> np.ndarray:
        """Class of each row, int64.

        Raises
        ------
        DataError
            A row's class is missing, or not among the names.
        """
        known = {name: place for place, name in enumerate(self.names)}
        places: dict[bytes, int] = {}
        for raw, word in _words(table, missing).items():
            number = _whole(word) if self.whole else None
            name = word if number is None else str(number)
            if name not in known:
                raise DataError(f"{_at(table, raw)}: class {word[:40]!r} is not in the training file")
            places[raw] = known[name]
        return np.fromiter(map(places.__getitem__, table.words), np.int64, len(table.words))


def _words(table: Table, missing: MissingValues) -> dict[bytes, str]:
    """The distinct fields of the target column as text, in order of appearance."""
    (target,) = table.columns.targets
    words: dict[bytes, str] = {}
    for raw in dict.fromkeys(table.words):
        words[raw] = table.decoded(raw, table.words, target)
        if missing.has_text(words[raw]):
            raise DataError(f"{_at(table, raw)}: {gap(words[raw])}, must name a class")
    return words


def _at(table: Table, raw: bytes) -> str:
    """Location of the first occurrence of a target field."""
    return table.at(raw, table.words, table.columns.targets[0])


def _whole(word: str) -> int | None:
    """The whole number that a word is: 9007199254740993 is not 9007199254740992, as it would be in float64."""
    if _WHOLE.fullmatch(word):
        return int(word)
    number = number_of(word)
    return int(number) if number is not None and number.is_integer() and abs(number) <= 1 << 53 else None
