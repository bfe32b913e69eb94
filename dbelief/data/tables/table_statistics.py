"""Statistics of a table's training rows, and the encoder that follows from them.

Rows may be added in parts. Sums over a part are exact before they are rounded once (`math.fsum`), and parts are merged
in order, so that all machines compute the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from dbelief.core.sample_form import MOST_CHARACTERS
from dbelief.errors import DataError
from dbelief.job.table_fields import TableFields

from .table_encoder import Coded, EncodedColumn, Kind, Raw, TableEncoder, days_of, texts_of


class ColumnStatistics:
    """What is needed of the training rows of one column, which are added part by part.

    Means and squared deviations of parts are merged as in Chan, Golub and LeVeque (1983). All are of the differences
    from the first number: what numbers of 10^15 have in common takes no digits from what they have not.
    """

    def __init__(self, fields: TableFields, name: str, kind: Kind) -> None:
        self._fields, self._name, self._kind = fields, name, kind
        self._values: set[str] = set()
        self._present = self._gaps = 0
        self._first = self._mean = self._squares = 0.0

    def add(self, raw: Raw, where: str) -> None:
        """Add rows.

        Raises
        ------
        DataError
            The column has more values than the vocabulary, or a text is no date.
        """
        if self._kind == "category":
            self._values.update(raw.values if isinstance(raw, Coded) else raw)
            if len(self._values) > self._fields.vocabulary:
                raise DataError(
                    f"{where}: {self._name!r} has {len(self._values):,} values in the training rows, and "
                    f"data.vocabulary allows {self._fields.vocabulary:,}; raise it, or list the column in data.hashed"
                )
        elif self._kind != "hashed":
            days = self._kind == "date"
            numbers = days_of(raw, self._name, where) if days else np.asarray(raw, np.float64)
            present = numbers[~np.isnan(numbers)]
            self._gaps += len(numbers) - len(present)
            if len(present):
                if not self._present:
                    self._first = float(present[0])
                self._merge(present - self._first)

    def _merge(self, present: np.ndarray) -> None:
        n = len(present)
        mean = math.fsum(present.tolist()) / n
        squares = math.fsum(np.square(present - mean).tolist())
        together, apart = self._present + n, mean - self._mean
        if self._present:
            squares += self._squares + apart * apart * self._present * n / together
            mean = self._mean + apart * n / together
        self._present, self._mean, self._squares = together, mean, squares

    def encoded(self, where: str) -> EncodedColumn:
        """How the column becomes numbers.

        Raises
        ------
        DataError
            It has no value at all.
        """
        fields, name, kind = self._fields, self._name, self._kind
        if kind == "hashed":
            return EncodedColumn(name, kind, buckets=fields.buckets)
        if kind == "category":
            return EncodedColumn(name, kind, values=tuple(sorted(self._values)))
        gaps, rows = self._gaps, self._present + self._gaps
        if not self._present:
            raise DataError(f"{where}: {name!r} has no value in the training rows; list it in data.ignore")
        fill = {"mean": self._first + self._mean, "zero": 0.0, "refuse": None}[fields.missing]
        if not fields.standardize:
            return EncodedColumn(name, kind, fill)
        filled = -self._first if fields.missing == "zero" else self._mean  # like the mean, from the first number
        middle = self._mean + (filled - self._mean) * gaps / rows
        squares = self._squares + self._present * (self._mean - middle) ** 2 + gaps * (filled - middle) ** 2
        spread = math.sqrt(squares / rows)
        centre = self._first + middle
        remainder = math.fsum([self._first, middle, -centre])
        return EncodedColumn(name, kind, fill, centre, 1.0 / spread if spread > 0 else 1.0, remainder=remainder)


def fit(
    fields: TableFields,
    names: Sequence[str],
    kinds: Sequence[Kind],
    raw: Sequence[Raw],
    train: np.ndarray,
    where: str,
) -> TableEncoder:
    """The encoder of a table that is in memory.

    Parameters
    ----------
    fields
        What the job says.
    names, kinds, raw
        Of each input, in their order.
    train
        Rows that it is computed from.

    Raises
    ------
    DataError
        A column has more values than `fields.vocabulary`, or no value at all.
    """
    statistics = [ColumnStatistics(fields, name, kind) for name, kind in zip(names, kinds, strict=True)]
    for column, values in zip(statistics, raw, strict=True):
        if isinstance(values, np.ndarray):
            column.add(values[train], where)
        else:
            texts = texts_of(values)
            column.add([texts[row] for row in train.tolist()], where)
    return encoder_of(fields, statistics, where)


def encoder_of(fields: TableFields, statistics: Sequence[ColumnStatistics], where: str) -> TableEncoder:
    """The encoder from the statistics of all columns over the training rows.

    Raises
    ------
    DataError
        See `fit`; or the values of the categories are too long to be kept with the model.
    """
    fitted = [column.encoded(where) for column in statistics]
    longest = max(fitted, key=lambda column: sum(map(len, column.values)))
    made = TableEncoder(tuple(fitted), fields.markers, fields.fills)
    if len(json.dumps(made.state())) > MOST_CHARACTERS // 2:  # names of the inputs have as many again
        raise DataError(
            f"{where}: the values of its categories are too long to be kept with the model, most of all those of "
            f"{longest.name!r}; list it in data.hashed"
        )
    return made
