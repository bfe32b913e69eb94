"""A table's rows as a Parquet file: columns `key` and `row`, a row group for each bucket that has rows."""

from __future__ import annotations

from pathlib import Path

from dbelief.errors import UserError
from dbelief.process.atomic_file import atomic_write
from dbelief.sparse.table import SparseTable

from .set_rows import SavedRows


def write_parquet(path: Path, saved: SavedRows, table: SparseTable) -> int:
    """Write a table's rows; returns their number. Memory: a bucket, and as much that pyarrow encodes.

    Raises
    ------
    UserError
        pyarrow is not installed.
    SnapshotError, WriteFailed
        As `write_row_file` does.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: needs pyarrow: pip install 'dbelief[parquet]'") from None
    row = pyarrow.list_(pyarrow.float32(), table.width)
    schema = pyarrow.schema([("key", pyarrow.int64()), ("row", row)], metadata=saved.about(table))
    count = 0
    with atomic_write(path) as file, pyarrow.parquet.ParquetWriter(file, schema, use_dictionary=False) as writer:
        for one in saved.buckets(table):
            if one.keys.size:
                rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(one.rows.reshape(-1)), table.width)
                group = pyarrow.Table.from_arrays([pyarrow.array(one.keys), rows], schema=schema)
                writer.write_table(group, row_group_size=one.keys.size)
                count += one.keys.size
    return count
