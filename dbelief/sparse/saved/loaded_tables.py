"""Rows of a run's tables, or of files of them, read by key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from dbelief.errors import DataError
from dbelief.rundir.stored.copies import local_copy, parse_run
from dbelief.sparse.given_keys import given_keys

from .row_file import TableParts, map_row_file
from .set_rows import SavedRows

Unseen = Literal["init", "zero"]
"""What a key without a row reads as: its initial row, or zeros."""


class LoadedTable:
    """Rows of a table, only to be read; made by `load_tables`.

    Attributes
    ----------
    table : SparseTable
        Its name, width, and what initial rows follow from.
    keys : {"int64", "text"}
        What its keys are.
    """

    def __init__(self, saved: TableParts, unseen: Unseen) -> None:
        self.table, self.keys, self._parts = saved
        self._unseen = unseen

    def __len__(self) -> int:
        return sum(keys.size for keys, _ in self._parts)

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of table {self.table.name!r}, of {self.table.width} numbers>"

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.table.width

    def rows(self, keys: np.ndarray | Sequence[int] | Sequence[str]) -> np.ndarray:
        """Rows of keys.

        Parameters
        ----------
        keys : array or list of n whole numbers, or of n texts
            In any order, also repeated.

        Returns
        -------
        float32, shape (n, width)
            Of a key without a row what `load_tables` was asked for.

        Raises
        ------
        ValueError
            They are something else than the table's keys, or have another shape.

        Notes
        -----
        Cost: a binary search for each key, in its bucket.
        """
        wanted, bags = given_keys(keys, self.keys)
        if wanted.ndim != 1 or bags is not None:
            raise ValueError(f"keys are of shape {wanted.shape}, must be of shape (n,), and not lists of lists")
        return self.read(wanted)

    def read(self, wanted: np.ndarray) -> np.ndarray:
        """Rows of keys as they are on the shards.

        Parameters
        ----------
        wanted : int64, shape (n,)
            Keys; where these are texts, their hashes.

        Returns
        -------
        float32, shape (n, width)
            See `rows`.
        """
        found = np.zeros((wanted.size, self.width), np.float32)
        seen = np.zeros(wanted.size, np.bool_)
        order, parts = self.table.split(wanted)
        for index, own in parts:
            held, rows = self._parts[index - self.table.first]
            if not held.size:
                continue
            places = order[own]
            at = np.minimum(np.searchsorted(held, wanted[places]), held.size - 1)
            there = held[at] == wanted[places]
            found[places[there]] = rows[at[there]]
            seen[places[there]] = True
        if self._unseen == "init":
            found[~seen] = self.table.initial(wanted[~seen])
        return found


def load_tables(run: Path | str, unseen: Unseen = "init") -> dict[str, LoadedTable]:
    """Load the rows of a run's tables, to read them by key.

    Parameters
    ----------
    run : Path or str
        The folder of a run, `runs/NAME`, or its URL: the rows of its newest valid snapshot set, which of a run that has
        ended is the last. Or what `dbelief export RUN --tables FOLDER` has written: the folder, or a file of it.
    unseen : {"init", "zero"}
        What a key without a row reads as: its initial row, as a shard gives it, or zeros.

    Returns
    -------
    dict of table's name to LoadedTable

    Raises
    ------
    ValueError
        `unseen` is neither.
    DataError
        It is none of these, or a file is damaged.
    UserError, RuntimeFailure
        The run's job has no tables, or it has no valid set.

    Notes
    -----
    Memory: of a run all rows, without the state of their rules, and a bucket; of a file what is read of it, as it is
    mapped.
    """
    if unseen not in get_args(Unseen):
        raise ValueError(f"unseen is {unseen!r}, must be init or zero")
    where = parse_run(run)
    if isinstance(where, Path) and not (where / "job.yaml").is_file():
        tables = [map_row_file(path) for path in _row_files(where)]
        return {one.table.name: LoadedTable(one, unseen) for one in tables}
    with local_copy(where, sets=True) as folder:
        return tables_of_set(SavedRows.newest(folder), unseen)


def tables_of_set(saved: SavedRows, unseen: Unseen = "init") -> dict[str, LoadedTable]:
    """The tables of a snapshot set by name, read into memory; `unseen`: see `load_tables`.

    Raises
    ------
    SnapshotError
        The set is damaged, or has rows of another form than the job's tables.
    """
    return {one.table.name: LoadedTable(one, unseen) for one in _rows_of_set(saved)}


def _row_files(where: Path) -> list[Path]:
    files = [where] if where.is_file() else sorted(where.glob("*.safetensors"))
    if not files:
        raise DataError(
            f"{where}: is neither a run folder with a job.yaml, such as runs/NAME, nor a folder or file of "
            "dbelief export --tables"
        )
    return files


def _rows_of_set(saved: SavedRows) -> list[TableParts]:
    tables = []
    for table in saved.tables:
        parts = sorted(saved.buckets(table), key=lambda one: one.number)
        tables.append(TableParts(table, saved.job.tables[table.name].keys, [(one.keys, one.rows) for one in parts]))
    return tables
