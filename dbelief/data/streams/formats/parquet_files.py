"""Parquet files with the same columns: their row groups, and checked reading of columns of one row group."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from dbelief.data.files.data_file import DataFile
from dbelief.data.files.scan_cache import scanned
from dbelief.data.tables.pandas_index import left_out, parquet_index
from dbelief.errors import DataError
from dbelief.job import nearest

_PARTITION = re.compile(r"/([^/=]+)=([^/]*)(?=/)")
"""In the path of a file: the name and the value of a column by which a folder of files was partitioned."""


class RowGroup(NamedTuple):
    """A row group.

    Attributes
    ----------
    file
        Place of its file.
    number
        In its file, from 0.
    rows
        Their number, 1 or more.
    """

    file: int
    number: int
    rows: int


@dataclass(frozen=True, eq=False)
class ParquetFiles:
    """Several files as one table.

    Attributes
    ----------
    files
        In order.
    footers
        pyarrow's metadata of each.
    schema
        pyarrow's schema of the columns, from the first file.
    groups
        Row groups of all files, in order; those without rows are left out.
    index
        Names of columns that pandas wrote for its index; they are not in the schema.
    """

    files: tuple[DataFile, ...]
    footers: tuple[Any, ...]
    schema: Any
    groups: tuple[RowGroup, ...]
    index: tuple[str, ...] = ()

    @classmethod
    def open(
        cls, files: Sequence[DataFile], like: ParquetFiles | None = None, named: Collection[str] = ()
    ) -> ParquetFiles:
        """Read the footers.

        Parameters
        ----------
        like
            Files whose columns these must have.
        named
            Columns that are kept even if they are an index of pandas.

        Raises
        ------
        DataError
            A file is none of Parquet, or damaged, or has other columns or types than the first; there are no rows;
            or pyarrow is not installed.
        """
        footers, groups = [], list[RowGroup]()
        schema, first, index = (None, None, ()) if like is None else (like.schema, like.files[0].where, like.index)
        for place, (file, kept) in enumerate(zip(files, _kept_footers(files), strict=True)):
            with parquet(file, kept) as opened:
                footer, own = opened.metadata, opened.schema_arrow
            written = [name for name in parquet_index(own.names, own.metadata) if name not in named]
            if schema is None:
                index = tuple(written)
                schema, first = _without(own, index), file.where
            own = _without(own, [*index, *(name for name in written if name not in schema.names)])
            _check_schema(own, schema, file.where, str(first))
            footers.append(footer)
            rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
            groups += [RowGroup(place, number, count) for number, count in enumerate(rows) if count]
        if not groups:
            raise DataError(f"{files[0].where}{' and others' if len(files) > 1 else ''}: there are no rows")
        return cls(tuple(files), tuple(footers), schema, tuple(groups), index)

    def notes(self) -> tuple[str, ...]:
        """What a user must know of the columns."""
        called = [f"column {name!r}" for name in self.index]
        found = [left_out(self.files[0].where, called)] if called else []
        folders = {name: f"{name}={value}" for file in self.files for name, value in _PARTITION.findall(file.where)}
        if more := [name for name in folders if name not in self.schema.names]:
            found.append(
                f"{self.files[0].where}: column {more[0]!r} is in the names of folders alone ({folders[more[0]]}), and "
                "is no input: write it into the files to use it"
            )
        return tuple(found)

    def called(self, group: int) -> str:
        """Name of a row group in messages."""
        one = self.groups[group]
        return f"{self.files[one.file].where}, row group {one.number}"

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Columns of a row group as a pyarrow Table; the file is opened for it.

        Raises
        ------
        DataError
            The row group is torn or damaged, or the file was written again.
        """
        one = self.groups[group]
        file, footer = self.files[one.file], self.footers[one.file]
        with parquet(file, footer) as opened, _named(self.called(group)):
            table = opened.read_row_group(one.number, columns=list(columns), use_threads=False)
        if table.num_rows != one.rows:
            raise DataError(f"{self.called(group)}: holds {table.num_rows} rows, and its file said {one.rows}")
        return table

    def first(self, name: str) -> Any:
        """The first value of a column; of its other values as few are read as can be."""
        one = self.groups[0]
        with parquet(self.files[one.file], self.footers[one.file]) as opened, _named(self.called(0)):
            batch = next(opened.iter_batches(1, [one.number], [name], use_threads=False))
            return batch.column(0)[0].as_py()

    def place(self, name: str, field: str = "") -> int:
        """Place of a column that is wanted; `field`: of the job's section of data, which names it.

        Raises
        ------
        DataError
            There is none, or there are several.
        """
        where, names = self.files[0].where, self.schema.names
        if names.count(name) > 1:
            raise DataError(f"{where}: {names.count(name)} columns are called {name!r}")
        if name not in names:
            near = nearest(name, names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise DataError(f"{where}: no column is called {name!r}{f' (data.{field})' if field else ''}{hint}")
        return int(names.index(name))


@contextmanager
def parquet(file: DataFile, footer: Any = None) -> Iterator[Any]:
    """A pyarrow ParquetFile, within the `with` block; raises DataError where the file is none, or without pyarrow."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{file.where}: needs pyarrow: pip install 'dbelief[parquet]'") from None
    with file.open() as opened:
        with _named(file.where):
            # Old files count nanoseconds in 96 bits; in 64 those end in the years 1677 and 2262, and wrap.
            reader = pyarrow.parquet.ParquetFile(
                opened, metadata=footer, pre_buffer=True, coerce_int96_timestamp_unit="us"
            )
        yield reader


def _kept_footers(files: Sequence[DataFile]) -> list[Any]:
    """Footers of objects, which one process of a machine fetches; of files None, for they are read when opened."""
    if all(file.path is not None for file in files):
        return [None] * len(files)

    def fetch() -> dict[str, Any]:
        return {"footers": [base64.b64encode(_footer(file)).decode() for file in files]}

    found = scanned(files, {"source": "parquet", "what": "footers"}, fetch)["footers"]
    from pyarrow.parquet import read_metadata

    return [read_metadata(io.BytesIO(base64.b64decode(text))) for text in found]


def _footer(file: DataFile) -> bytes:
    """The footer as a Parquet file without rows."""
    written = io.BytesIO()
    with parquet(file) as opened:
        opened.metadata.write_metadata_file(written)
    return written.getvalue()


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Turn pyarrow's errors into ours, in one line."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{where}: is no Parquet data, or damaged: {said[:200] or type(error).__name__}") from None


def _without(schema: Any, names: Collection[str]) -> Any:
    """A schema without metadata and without these columns."""
    import pyarrow

    return pyarrow.schema([field for field in schema if field.name not in names])


def _check_schema(own: Any, schema: Any, where: str, first: str) -> None:
    """Check that a file's columns are those of the first file, in any order."""
    lacking = [name for name in schema.names if name not in own.names]
    if lacking:
        raise DataError(f"{where}: has no column {lacking[0]!r}, which {first} has")
    more = [name for name in own.names if name not in schema.names]
    if more:
        raise DataError(f"{where}: has a column {more[0]!r}, which {first} has not")
    for name in schema.names:
        kinds = own.field(own.names.index(name)).type, schema.field(schema.names.index(name)).type
        if kinds[0] != kinds[1]:
            raise DataError(f"{where}: column {name!r} is {kinds[0]}, and in {first} it is {kinds[1]}")
