"""Loading of a job's samples with bags of keys: all files are read into memory, and labels become classes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.data.dataset import Dataset
from dbelief.data.files.data_file import DataFile, objects_digest
from dbelief.data.files.locations import find_files, find_other_files
from dbelief.data.samples import SETS, Samples
from dbelief.data.splits import cut
from dbelief.data.streams.stream_sets import other_files
from dbelief.data.validation import classes
from dbelief.job import BagsData
from dbelief.nn import NO_NUMBERS

from .batch import SparseBatch
from .job_files import SUFFIXES, bag_stream, class_places
from .split import BagSplit, stored

_ROWS = 65_536
"""Rows that are read at a time."""


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
    suffix = SUFFIXES[spec.format]
    files = find_files(spec.files, folder, suffix)
    where, batch = files[0].where, _read(spec, files)
    names = np.unique(batch.labels)
    labels = class_places(batch.labels, names, where)
    shares = [0 if spec.validation_files else spec.validation, 0 if spec.test_files else spec.test]
    parts, kept = cut(len(labels), labels, shares[0], shares[1], where), stored(batch)
    sets: dict[str, Samples] = {name: BagSplit(kept, rows, labels[rows]) for name, rows in vars(parts).items()}
    for name, texts in other_files(spec).items():
        if name not in need:
            continue
        others = find_other_files(texts, folder, suffix, files)
        there = _read(spec, others)
        targets = class_places(there.labels, names, others[0].where)
        sets[name] = BagSplit(stored(there), np.arange(len(targets)), targets)
    held = {name: sets[name].targets for name in SETS[1:]}
    labelled = tuple(map(str, names.astype(np.int64).tolist()))
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
    return SparseBatch.joined(list(bag_stream(spec, files, _ROWS, labelled)))
