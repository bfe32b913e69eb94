"""Columns that pandas writes for the index of a frame: row numbers, as a rule, that tell the class of sorted rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence

_IN_CSV = re.compile(r"(Unnamed: [0-9]+(\.[0-9]+)*(_level_[0-9]+)*)?")
_IN_PARQUET = re.compile(r"__index_level_[0-9]+__")


def leading_index(header: Sequence[str]) -> tuple[int, ...]:
    """Places of the first columns that have no name, or the one that pandas gave such a column when it read it."""
    for place, name in enumerate(header):
        if not _IN_CSV.fullmatch(name.strip()):
            return tuple(range(place))
    return tuple(range(len(header)))


def parquet_index(names: Sequence[str], metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """Names of the columns that are the index, as the metadata of a Parquet file says, or by their names.

    Parameters
    ----------
    names
        Of all columns.
    metadata
        Of the file's schema; where it says that the index is a range of numbers, that has no column.
    """
    leading = {names[place] for place in leading_index(names)}
    said = _said((metadata or {}).get(b"pandas", b""))
    return [name for name in names if name in said or name in leading or _IN_PARQUET.fullmatch(name)]


def _said(text: bytes) -> Collection[str]:
    try:
        columns = json.loads(text)["index_columns"]
        return {column for column in columns if isinstance(column, str)}
    except (ValueError, KeyError, TypeError):  # another program's, or none
        return ()


def left_out(where: str, columns: Sequence[str]) -> str:
    """The note that columns are no inputs."""
    are = "are no inputs: they were" if len(columns) > 1 else "is no input: it was"
    return f"{where}: {', '.join(columns)} {are} written as the index of a pandas frame (to use it, give it a name)"
