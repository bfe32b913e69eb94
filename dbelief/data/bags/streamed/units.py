"""Units of a job's bags: parts of text files, or row groups, and what one pass over them finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dbelief.data.bags.batch import SparseBatch
from dbelief.data.bags.job_files import bag_columns, bag_stream, class_places
from dbelief.data.bags.line_stream import LineStream
from dbelief.data.bags.parquet import RowGroupStream
from dbelief.data.bags.split import stored
from dbelief.data.files.data_file import DataFile
from dbelief.data.files.scan_cache import scanned
from dbelief.data.streams.ranges import unit_size
from dbelief.data.streams.unit_source import UnitArrays, UnitSource
from dbelief.errors import DataError
from dbelief.job import BagsData
from dbelief.nn import NO_NUMBERS

UNIT = 4096
"""Most rows of a unit of text, where the job says nothing."""
_CONTENT = {"format", "columns", "label", "ids", "texts"}
"""Fields of the job that say what of the files is read."""


class FoundUnit(NamedTuple):
    """A unit.

    Attributes
    ----------
    name
        In its stream, and in messages.
    rows, keys
        Their number; keys in all columns.
    labels
        Those that rows have, ascending whole numbers.
    """

    name: str
    rows: int
    keys: int
    labels: tuple[int, ...]


class FoundUnits(NamedTuple):
    """The units of some files, in their order, and the stream that reads them."""

    stream: LineStream | RowGroupStream
    units: tuple[FoundUnit, ...]


def find_units(spec: BagsData, files: Sequence[DataFile], prepared: bool) -> FoundUnits:
    """Find the units of files.

    Cost: one pass over all rows, and of text one to find the rows, by one process of a machine; the result is kept (see
    `scanned`). Without `prepared` of row groups only the footers are read, and keys and labels are not counted.

    Raises
    ------
    DataError
        See `bag_stream`; or text is compressed.
    """
    found = _found(spec, files, spec.unit or UNIT, prepared)
    fitting = unit_size(spec.unit, UNIT, sum(unit.rows for unit in found.units))
    if spec.format == "parquet" or fitting == (spec.unit or UNIT):
        return found
    return _found(spec, files, fitting, prepared)


def _found(spec: BagsData, files: Sequence[DataFile], size: int, prepared: bool) -> FoundUnits:
    stream = bag_stream(spec, files, size)
    if isinstance(stream, RowGroupStream) and not prepared:
        pairs = zip(stream.units, stream.rows, strict=True)
        return FoundUnits(stream, tuple(FoundUnit(name, rows, 0, ()) for name, rows in pairs))
    asked = {"source": "bags", "unit": size, **spec.model_dump(include=_CONTENT)}
    counts = scanned(files, asked, lambda: {"units": [_counts(stream, name) for name in stream.units]})["units"]
    units = zip(stream.units, counts, strict=True)
    return FoundUnits(stream, tuple(FoundUnit(name, rows, keys, tuple(own)) for name, (rows, keys, own) in units))


def _counts(stream: LineStream | RowGroupStream, name: str) -> tuple[int, int, list[int]]:
    rows, keys, labels = 0, 0, set[int]()
    for batch in stream.read(name):
        rows += len(batch)
        keys += sum(len(bag.keys) for bag in batch.bags.values())
        labels.update(np.unique(batch.labels).astype(np.int64).tolist())
    return rows, keys, sorted(labels)


class BagUnits(UnitSource):
    """Units of one set as a `UnitSource`, whose inputs are BagRows.

    Parameters
    ----------
    found
        The units of some files.
    places
        Of those of the set among them.
    labels
        Of the classes, ascending.
    """

    features: tuple[int, ...] = NO_NUMBERS
    dtype = np.dtype(np.float32)
    width: int | None = None

    def __init__(self, found: FoundUnits, places: Sequence[int], labels: Sequence[int], spec: BagsData) -> None:
        self._stream, self._units = found.stream, [found.units[place] for place in places]
        self._names, self._columns = np.array(labels, np.float32), len(bag_columns(spec))
        self.sizes: Sequence[int] = [unit.rows for unit in self._units]

    def called(self, unit: int) -> str:
        """See `UnitSource`."""
        return self._units[unit].name

    def bytes_of(self, unit: int) -> int:
        """See `UnitSource`."""
        own = self._units[unit]
        return 12 * own.keys + 8 * self._columns * (own.rows + 1) + 8 * own.rows

    def read(self, unit: int) -> UnitArrays:
        """See `UnitSource`."""
        name, rows, *_ = self._units[unit]
        batch = SparseBatch.joined(list(self._stream.read(name)))
        if len(batch) != rows:
            raise DataError(f"{name}: has {len(batch)} rows, and had {rows}: the file was written again")
        return UnitArrays(stored(batch), class_places(batch.labels, self._names, name))
