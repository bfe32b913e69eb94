"""Files of a job's bags as streams of mini-batches, whose labels are classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dbelief.data.files.data_file import DataFile
from dbelief.data.streams.formats.parquet_files import ParquetFiles
from dbelief.errors import DataError
from dbelief.job import BagsData

from .batch import ALL, SparseBatch
from .columns import IdColumns
from .csv import CsvLines
from .libsvm import LibsvmLines
from .line_stream import LineFormat, LineStream
from .parquet import RowGroupStream
from .vw import VwLines

SUFFIXES = {"libsvm": ".svm", "libffm": ".ffm", "vw": ".vw", "csv": ".csv", "parquet": ".parquet"}
"""By format, how the files of a folder end."""
_LARGEST_LABEL = 1 << 24
"""Labels are float32, which has all whole numbers up to here."""


def bag_columns(spec: BagsData) -> tuple[str, ...]:
    """Names of the bags in the order of the batches."""
    return spec.columns or (*spec.ids, *spec.texts) or (ALL,)


def bag_stream(
    spec: BagsData, files: Sequence[DataFile], size: int, labelled: bool = True
) -> LineStream | RowGroupStream:
    """A stream of the files in the job's format.

    Parameters
    ----------
    size
        Rows of a mini-batch, and of text of a unit.
    labelled
        Whether each row has a label that is a class; else labels may be missing, and are not checked.

    Raises
    ------
    DataError
        A file or a column is missing; and from the reading, where a row violates the format, its label is no whole
        number, or it has a weight other than 1: names the file and the line, or row group and row.
    """
    columns = IdColumns(spec.label if labelled else None, spec.ids, spec.texts, None)
    check = _check_classes if labelled else None
    if spec.format == "parquet":
        return RowGroupStream(ParquetFiles.open(files), columns, size, check)
    lines: LineFormat
    if spec.format == "csv":
        lines = CsvLines(columns, {}, ",", files[0])
    elif spec.format == "vw":
        lines = VwLines(spec.columns or None, labelled)
    else:
        fields = {name: int(name) for name in spec.columns}
        lines = LibsvmLines(spec.format == "libffm", fields or None, labelled)
    return LineStream(files, lines, size, check)


def class_places(labels: np.ndarray, names: np.ndarray, where: str) -> np.ndarray:
    """Labels as indices into `names`, the ascending labels of the training rows, float32: int64.

    Raises
    ------
    DataError
        One is not among them.
    """
    known = np.isin(labels, names)
    if not known.all():
        raise DataError(f"{where}: label {labels[~known][0]:.0f} is in no training row")
    return np.searchsorted(names, labels).astype(np.int64)


def _check_classes(batch: SparseBatch, place: Callable[[int], str]) -> None:
    whole = (batch.labels == np.rint(batch.labels)) & (abs(batch.labels) <= _LARGEST_LABEL)
    if not whole.all():
        row = int(np.argmin(whole))
        raise DataError(f"{place(row)}: label {batch.labels[row]:g} is no whole number up to 2^24: labels are classes")
    if (other := batch.weights != 1).any():
        row = int(np.argmax(other))
        raise DataError(f"{place(row)}: has weight {batch.weights[row]:g}, and the losses of layers have none")
