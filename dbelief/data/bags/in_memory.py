"""Loading of a job's samples with bags of keys: all files are read into memory, and labels become classes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.data.dataset import Dataset
from dbelief.data.files.data_file import DataFile, objects_digest
from dbelief.data.files.locations import find_files, find_other_files
from dbelief.data.samples import SETS, Samples
from dbelief.data.splits import cut
from dbelief.data.streams.formats.parquet_files import ParquetFiles
from dbelief.data.validation import classes
from dbelief.errors import DataError
from dbelief.job import BagsData
from dbelief.nn import NO_NUMBERS

from .batch import SparseBatch
from .columns import IdColumns
from .csv import CsvLines
from .libsvm import LibsvmLines
from .line_stream import LineFormat, LineStream
from .parquet import RowGroupStream
from .split import BagSplit, stored
from .vw import VwLines

_SUFFIXES = {"libsvm": ".svm", "libffm": ".ffm", "vw": ".vw", "csv": ".csv", "parquet": ".parquet"}
"""By format, how the files of a folder end."""
_ROWS = 65_536
"""Rows that are read at a time."""
_LARGEST_LABEL = 1 << 24
"""Labels are float32, which has all whole numbers up to here."""


def load_bags(spec: BagsData, folder: Path, need: Collection[str]) -> Dataset:
    """Load the files of a job, and cut them up where sets have none of their own.

    Labels become 0 .. k - 1 in numeric order: -1 is class 0 and 1 is class 1. `Dataset.names` holds the labels, and
    `Dataset.columns` the columns of the bags.

    Raises
    ------
    DataError
        A file is missing or violates its format, a label is no whole number or is in no training file, or a row has a
        weight other than 1.
    """
    suffix = _SUFFIXES[spec.format]
    files = find_files(spec.files, folder, suffix)
    where, batch = files[0].where, _read(spec, files)
    names = np.unique(_whole_labels(batch, where))
    labels = _classes(batch, names, where)
    own = {"validation": spec.validation_files, "test": spec.test_files}
    shares = [0 if own[name] else getattr(spec, name) for name in own]
    parts, kept = cut(len(labels), labels, shares[0], shares[1], where), stored(batch)
    sets: dict[str, Samples] = {name: BagSplit(kept, rows, labels[rows]) for name, rows in vars(parts).items()}
    for name, texts in own.items():
        if texts is None or name not in need:
            continue
        others = find_other_files(texts, folder, suffix, files)
        there = _read(spec, others)
        targets = _classes(there, names, others[0].where)
        sets[name] = BagSplit(stored(there), np.arange(len(targets)), targets)
    held = {name: sets[name].targets for name in SETS[1:]}
    labelled = tuple(map(str, names.tolist()))
    k = classes(sets["train"].targets, held, where, labelled)
    wanted: dict[str, Any] = {name: split if name in need and len(split) else None for name, split in sets.items()}
    return Dataset(
        **wanted,
        classes=k,
        features=NO_NUMBERS,
        names=None if labelled == tuple(map(str, range(k))) else labelled,
        columns=tuple(kept.columns),
        objects=objects_digest(files),
    )


def bags_sizes(spec: BagsData, folder: Path) -> tuple[int, int, int]:
    """Samples of the three sets: the files are read as of `load_bags`.

    Raises
    ------
    DataError
    """
    data = load_bags(spec, folder, SETS)
    train, validation, test = (len(own) if own is not None else 0 for own in (data.train, data.validation, data.test))
    return train, validation, test


def read_bags(file: DataFile, spec: BagsData) -> SparseBatch:
    """New samples in a file of the job's format: labels may be missing, and are not checked.

    Raises
    ------
    DataError
        The file has no samples, or violates its format.
    """
    return _read(spec, [file], labelled=False)


def _read(spec: BagsData, files: Sequence[DataFile], labelled: bool = True) -> SparseBatch:
    return SparseBatch.joined(list(_batches(spec, files, labelled)))


def _batches(spec: BagsData, files: Sequence[DataFile], labelled: bool) -> Iterable[SparseBatch]:
    columns = IdColumns(spec.label if labelled else None, spec.ids, spec.texts, None)
    if spec.format == "parquet":
        return RowGroupStream(ParquetFiles.open(files), columns, _ROWS)
    lines: LineFormat
    if spec.format == "csv":
        lines = CsvLines(columns, {}, ",", files[0])
    elif spec.format == "vw":
        lines = VwLines(spec.columns or None, labelled)
    else:
        fields = {name: int(name) for name in spec.columns}
        lines = LibsvmLines(spec.format == "libffm", fields or None, labelled)
    return LineStream(files, lines, _ROWS)


def _whole_labels(batch: SparseBatch, where: str) -> np.ndarray:
    """Labels as int64, where all are whole numbers and all weights are 1."""
    whole = (batch.labels == np.rint(batch.labels)) & (abs(batch.labels) <= _LARGEST_LABEL)
    if not whole.all():
        raise DataError(f"{where}: label {batch.labels[~whole][0]:g} is no whole number up to 2^24: labels are classes")
    if (other := batch.weights != 1).any():
        raise DataError(f"{where}: a row has weight {batch.weights[other][0]:g}, and the losses of layers have none")
    return batch.labels.astype(np.int64)


def _classes(batch: SparseBatch, names: np.ndarray, where: str) -> np.ndarray:
    """Labels as indices into `names`: int64."""
    labels = _whole_labels(batch, where)
    known = np.isin(labels, names)
    if not known.all():
        raise DataError(f"{where}: label {labels[~known][0]} is not in the training files")
    return np.searchsorted(names, labels).astype(np.int64)
