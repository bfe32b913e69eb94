"""A file of a table's rows, in the safetensors format: TABLE.starts, TABLE.keys and TABLE.rows.

    TABLE.starts  (buckets + 1,) int64      bucket b has the rows from starts[b] to starts[b + 1]
    TABLE.keys    (n,) int64                in each bucket strictly rising
    TABLE.rows    (n, width) float32

The bucket of a key follows from its hash (`row_hash`), for which the file's metadata have the table's salt. So a key is
found in the mapped file by a binary search in one bucket: no index is made, and nothing is read before.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast, get_args

import numpy as np
from safetensors import SafetensorError

from dbelief.checkpoint.model_tensors import map_tensors
from dbelief.checkpoint.safetensors_io import Tensor, write_tensors
from dbelief.errors import DataError
from dbelief.sparse.given_keys import KeyKind
from dbelief.sparse.table import SparseTable

from .set_rows import SavedRows

Part = tuple[np.ndarray, np.ndarray]
"""(n,) int64 keys, strictly rising, and (n, width) float32 rows of a bucket."""


class TableParts(NamedTuple):
    """A table, what its keys are, and the rows of each of its buckets."""

    table: SparseTable
    kind: KeyKind
    parts: list[Part]


def write_row_file(path: Path, saved: SavedRows, table: SparseTable) -> int:
    """Write a table's rows; returns their number. Memory: a bucket. Cost: reads the table's buckets twice.

    Raises
    ------
    SnapshotError, WriteFailed
        The set is damaged, or the file cannot be written; an existing file of that name is unchanged then.
    """
    starts = np.zeros(table.count + 1, np.int64)
    for one in saved.buckets(table):
        starts[one.number + 1] = one.keys.size
    np.cumsum(starts, out=starts)
    count = int(starts[-1])
    of_starts, of_keys, of_rows = _names(table.name)
    tensors: dict[str, Tensor] = {
        of_starts: (starts.dtype, starts.shape),
        of_keys: (np.dtype(np.int64), (count,)),
        of_rows: (np.dtype(np.float32), (count, table.width)),
    }
    with write_tensors(path, tensors, saved.about(table)) as file:
        file.write(of_starts, starts)
        for one in saved.buckets(table):
            first = int(starts[one.number])
            file.write(of_keys, one.keys, first)
            file.write(of_rows, one.rows.reshape(-1), first * table.width)
    return count


def map_row_file(path: Path) -> TableParts:
    """A table whose rows a file has, as views of the mapped file.

    Raises
    ------
    DataError
        It is no such file, or is damaged.
    """
    try:
        about, tensors = map_tensors(path)
        table = SparseTable(
            name=about["table"],
            width=int(about["width"]),
            salt=int(about["salt"]),
            limit=float(about["limit"]),
            rate=0.0,
            first=0,
            count=int(about["buckets"]),
        )
        if (kind := about["keys"]) not in get_args(KeyKind):
            raise ValueError(f"keys are {kind!r}")
        starts, keys, rows = (tensors[name] for name in _names(table.name))
        if starts.shape != (table.count + 1,) or (np.diff(starts, prepend=0) < 0).any() or starts[0]:
            raise ValueError(f"buckets start at {starts.tolist()[:9]}")
        if keys.shape != (starts[-1],) or rows.shape != (starts[-1], table.width):
            raise ValueError(f"{keys.shape} keys and {rows.shape} rows")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path}: is no file of a table's rows, or a damaged one ({error!r})") from error
    parts = [(keys[first:stop], rows[first:stop]) for first, stop in pairwise(starts.tolist())]
    return TableParts(table, cast("KeyKind", kind), parts)


def _names(table: str) -> tuple[str, str, str]:
    return f"{table}.starts", f"{table}.keys", f"{table}.rows"
