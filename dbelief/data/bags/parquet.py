"""Parquet with columns of ids as a stream of mini-batches, of one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dbelief.data.streams.formats.parquet import target_numbers
from dbelief.data.streams.formats.parquet_files import ParquetFiles
from dbelief.data.streams.formats.parquet_types import is_list, is_text, is_whole, own_kind, plain_type
from dbelief.data.tables.missing_values import MissingValues
from dbelief.errors import DataError
from dbelief.sparse.given_keys import LARGEST_KEY, beyond_int64
from dbelief.sparse.text_keys import text_keys

from .batch import Bag, Check, SparseBatch
from .columns import IdColumns, bag_of
from .line_stream import Files, named_files

_SUFFIX = ".parquet"


class RowGroupStream:
    """Mini-batches of sparse rows from Parquet files; each iteration begins anew. Memory: a row group.

    A mini-batch has `size` rows of one row group, the last one of a group the rest. For the replicas of a job the row
    groups are units that are leased: `dbelief.torch.UnitDataset(stream)`, whose `collate` makes one batch of each. So
    they are to have the rows of a mini-batch (`row_group_size` of pyarrow's `write_table`).

    Parameters
    ----------
    files
        With the columns.
    columns
        Those that are read.
    size
        Rows of a mini-batch.
    check
        Called with each mini-batch; None: there is none.

    Raises
    ------
    ValueError
        The size is below 1.
    DataError
        A column is missing, or of another type.
    """

    def __init__(self, files: ParquetFiles, columns: IdColumns, size: int, check: Check | None = None) -> None:
        if size < 1:
            raise ValueError(f"size is {size}, must be 1 or more")
        self._files, self._columns, self._size, self._check = files, columns, size, check
        self._units = {files.called(group): group for group in range(len(files.groups))}
        for name in columns.numbers:
            self._check_type(name, own_kind(self._type(name)) == "number", "numbers")
        for names, fits, wanted in ((columns.ids, is_whole, "whole numbers"), (columns.texts, is_text, "texts")):
            for name in names:
                own = self._type(name)
                self._check_type(name, fits(own.value_type if is_list(own) else own), f"{wanted}, or lists of them")

    def __iter__(self) -> Iterator[SparseBatch]:
        for unit in self._units:
            yield from self.read(unit)

    @property
    def units(self) -> Sequence[str]:
        """Names of the row groups, for `UnitDataset`."""
        return tuple(self._units)

    @property
    def rows(self) -> Sequence[int]:
        """Rows of each row group."""
        return tuple(group.rows for group in self._files.groups)

    def read(self, unit: str) -> Iterator[SparseBatch]:
        """Read a unit.

        Parameters
        ----------
        unit
            One of `units`.

        Returns
        -------
        iterator of SparseBatch
            The mini-batches of the row group.

        Raises
        ------
        DataError
            It is damaged, a label is missing, or a key is beyond int64; names the column and the row.
        """
        names = [*self._columns.numbers, *self._columns.ids, *self._columns.texts]
        table = self._files.read(self._units[unit], names)
        for first in range(0, table.num_rows, self._size):
            yield self._batch(table.slice(first, self._size), unit, first)

    def _batch(self, table: Any, unit: str, first: int) -> SparseBatch:
        where = f"{unit}, from row {first}"
        numbers = target_numbers(table, self._columns.numbers, MissingValues.of(()), where)
        labels, weights = self._columns.labels(numbers), np.ones(len(numbers), np.float32)
        if self._columns.weight is not None:
            weights = numbers[:, -1].copy()
            if (below := weights < 0).any():
                row = int(np.argmax(below))
                raise DataError(f"{where}, column {self._columns.weight!r}, row {row} (from 0): a weight is below 0")
        bags = dict[str, Bag]()
        for name in (*self._columns.ids, *self._columns.texts):
            bags[name] = _bag(table.column(name), name in self._columns.ids, f"{where}, column {name!r}")
        batch = SparseBatch(labels, weights, bags)
        if self._check is not None:
            self._check(batch, lambda row: f"{unit}, row {first + row} (from 0)")
        return batch

    def _type(self, name: str) -> Any:
        return self._files.schema.field(self._files.place(name)).type

    def _check_type(self, name: str, fits: bool, wanted: str) -> None:
        if not fits:
            raise DataError(f"{self._files.files[0]}: column {name!r} is {self._type(name)}, must be {wanted}")


def _bag(column: Any, whole: bool, where: str) -> Bag:
    """The values of a column, of which what is null has none."""
    import pyarrow
    import pyarrow.compute

    values = column.combine_chunks()
    rows, values = np.flatnonzero(values.is_valid()), values.drop_null()
    if is_list(values.type):
        rows = rows[pyarrow.compute.list_parent_indices(values).to_numpy()]
        values = pyarrow.compute.list_flatten(values)
        rows, values = rows[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()
    values = values.cast(plain_type(values.type))
    try:
        keys = np.array(values.cast(pyarrow.int64()).to_numpy()) if whole else text_keys(values.to_pylist())
    except pyarrow.ArrowInvalid:
        unsigned = values.to_numpy(zero_copy_only=False)
        at = int(np.argmax(unsigned > LARGEST_KEY))
        raise DataError(f"{where}, row {rows[at]} (from 0): {beyond_int64(int(unsigned[at]))}") from None
    return bag_of(keys, rows, len(column))


def read_parquet(
    files: Files,
    label: str,
    ids: Sequence[str] = (),
    texts: Sequence[str] = (),
    weight: str | None = None,
    size: int = 256,
) -> RowGroupStream:
    """A stream of Parquet: each batch has a bag for each column of ids or texts, of its name.

    Parameters
    ----------
    files
        Paths, folders (of files *.parquet), patterns, or URLs of objects.
    label
        Column of the labels, which are as in the file.
    ids
        Columns of whole numbers, or of lists of them, which are keys as they are.
    texts
        Columns of texts, or of lists of them, whose hashes are keys (see `text_keys`).
    weight
        Column of the samples' weights; None: they are 1.
    size
        Rows of a mini-batch.

    Returns
    -------
    RowGroupStream

    Raises
    ------
    ValueError
        No column is of ids or texts, or one is named twice.
    DataError
        A file or a column is missing, or of another type; or pyarrow is not installed.
    """
    columns = IdColumns(label, ids, texts, weight)
    columns.check()
    return RowGroupStream(ParquetFiles.open(named_files(files, _SUFFIX)), columns, size)
