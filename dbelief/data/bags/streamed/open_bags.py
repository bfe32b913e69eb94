"""Files of a job's bags as sets that are read unit by unit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np

from dbelief.data.bags.job_files import SUFFIXES, bag_columns
from dbelief.data.files.data_file import objects_digest
from dbelief.data.files.locations import find_files, find_other_files
from dbelief.data.samples import SETS
from dbelief.data.streams.stream_sets import StreamSets, cut_units, other_files
from dbelief.data.validation import classes
from dbelief.errors import DataError
from dbelief.job import BagsData

from .split import StreamedBags
from .units import BagUnits, FoundUnit, find_units


def open_bags(spec: BagsData, folder: Path, prepared: bool = True) -> StreamSets:
    """Find the units of the files: see `find_units`. Classes are the labels of the training rows, in numeric order.

    Raises
    ------
    DataError
        See `find_units`; or all training rows have one label, or another row has a label that none of them has.
    """
    suffix = SUFFIXES[spec.format]
    files = find_files(spec.files, folder, suffix)
    found, where = find_units(spec, files, prepared), files[0].where
    what = f"units of {max(unit.rows for unit in found.units)} rows (data.unit)"
    if spec.format == "parquet":
        what = "row groups (row_group_size of their writer)"
    cut = cut_units(len(found.units), spec, what, where)
    labels = sorted({label for place in cut[0] for label in found.units[place].labels})
    names = tuple(map(str, labels))
    if prepared:
        classes(np.arange(len(labels)), {}, where, names)
    _check_held((found.units[place] for part in cut[1:] for place in part), labels)
    made = {name: BagUnits(found, part, labels, spec) if part else None for name, part in zip(SETS, cut, strict=True)}
    for name, texts in other_files(spec).items():
        others = find_units(spec, find_other_files(texts, folder, suffix, files), prepared)
        _check_held(others.units, labels)
        made[name] = BagUnits(others, range(len(others.units)), labels, spec)
    return StreamSets(made, names, columns=bag_columns(spec), objects=objects_digest(files), split=StreamedBags)


def _check_held(units: Iterable[FoundUnit], labels: Collection[int]) -> None:
    """Check that other sets have no label that no training row has."""
    for unit in units:
        if unknown := {*unit.labels} - {*labels}:
            raise DataError(f"{unit.name}: label {min(unknown)} is in no training row")
