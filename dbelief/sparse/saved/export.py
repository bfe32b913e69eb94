"""Export of the rows of a run's tables, a file for each table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from dbelief.errors import UserError, WriteFailed
from dbelief.sparse.table import SparseTable

from .parquet_rows import write_parquet
from .row_file import write_row_file
from .set_rows import SavedRows

RowFormat = Literal["safetensors", "parquet"]

_WRITERS: Mapping[str, Callable[[Path, SavedRows, SparseTable], int]] = {
    "safetensors": write_row_file,
    "parquet": write_parquet,
}


def export_tables(run: Path, form: RowFormat, folder: Path) -> Iterator[str]:
    """Write the rows of a run's newest valid snapshot set into a folder, as TABLE.FORMAT; yields a line for each table.

    Raises
    ------
    UserError, RuntimeFailure
        It is no run, its job has no tables, it has no valid set, or a file cannot be written.

    Notes
    -----
    Memory: a bucket. The state of the rows' rules is left out.
    """
    if not folder.parent.is_dir():
        raise UserError(f"{folder}: there is no folder {folder.parent}")
    saved = SavedRows.newest(run)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteFailed(f"{folder}: cannot be made: {error.strerror or error}") from error
    for table in saved.tables:
        path = folder / f"{table.name}.{form}"
        count = _WRITERS[form](path, saved, table)
        source = f"snapshot set {saved.source.folder}, after {saved.source.samples:,} samples"
        yield f"{path}: {count:,} rows of {table.width} numbers, from {source}"
