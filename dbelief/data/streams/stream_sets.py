"""The sets of a source of units: as a dataset that is streamed or held in memory, with their sizes and units."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.data.dataset import Dataset
from dbelief.data.samples import SETS, Samples
from dbelief.errors import DataError
from dbelief.job.streamed_sources import FilesFields, StreamFields

from .streamed import StreamedSplit, read_all
from .unit_order import Units
from .unit_source import UnitSource

_MIB = 1 << 20


@dataclass(frozen=True, eq=False)
class StreamSets:
    """Sources of the three sets.

    Attributes
    ----------
    sources
        By the names of `SETS`; None where there is no such set. There is one for the training.
    classes
        Names of the classes in order, or their number; None: targets are numbers.
    scale
        As in `Samples`.
    columns, encoder, notes, objects
        As in `Dataset`.
    split
        Makes a set that is streamed: `UnitSamples` of inputs of this form.
    """

    sources: Mapping[str, UnitSource | None]
    classes: tuple[str, ...] | int | None
    scale: float = 1.0
    columns: tuple[str, ...] | None = None
    encoder: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    objects: str = ""
    split: Callable[[UnitSource, Units, int, float], Samples] = StreamedSplit

    @property
    def train(self) -> UnitSource:
        """Units of the training set."""
        train = self.sources["train"]
        assert train is not None, "there are samples to train on"
        return train

    def dataset(self, spec: StreamFields, need: Collection[str]) -> Dataset:
        """The sets that are needed, read into memory where the job says so.

        Raises
        ------
        DataError
            A unit cannot be read, or the units of a window take more memory than the job allows.
        """
        made: dict[str, Any] = {name: self._samples(name, spec) if name in need else None for name in SETS}
        names = self.classes if isinstance(self.classes, tuple) else None
        return Dataset(
            **made,
            classes=self.classes if isinstance(self.classes, int) else None if names is None else len(names),
            features=self.train.features,
            names=None if names is None or names == tuple(map(str, range(len(names)))) else names,
            columns=self.columns,
            encoder=self.encoder,
            notes=self.notes,
            objects=self.objects,
        )

    def _samples(self, name: str, spec: StreamFields) -> Samples | None:
        source = self.sources[name]
        if source is None:
            return None
        units = Units(tuple(source.sizes), spec.window)
        if not spec.streamed:
            return read_all(source, units, self.scale)
        return self.split(source, units, spec.memory * _MIB, self.scale)

    def sizes(self) -> tuple[int, int, int]:
        """Samples of the three sets."""
        train, validation, test = (sum(source.sizes) if (source := self.sources[name]) else 0 for name in SETS)
        return train, validation, test

    def units(self, spec: StreamFields) -> Units:
        """Units of the training set."""
        return Units(tuple(self.train.sizes), spec.window)


def cut_units(n: int, spec: FilesFields, what: str, where: str) -> tuple[tuple[int, ...], ...]:
    """Places of the units of the training, validation and test sets, chosen at random, each in order.

    Parameters
    ----------
    n
        Units of all sets.
    spec
        Its shares for sets without files of their own: of all (float; one unit at least, if not 0), or units (int).
    what, where
        The units, and the name of the data, in messages.

    Raises
    ------
    DataError
        None is left for the training.
    """
    shares = [0 if spec.validation_files else spec.validation, 0 if spec.test_files else spec.test]
    counts = [part if isinstance(part, int) else max(1, round(part * n)) if part else 0 for part in shares]
    if sum(counts) >= n:
        raise DataError(
            f"{where}: of {n} {what}, {counts[0]} for validation and {counts[1]} for the test leave none to train on: "
            "make them smaller, give data.validation_files and test_files, or set data.validation and test to 0"
        )
    mixed = np.random.Generator(np.random.PCG64([0, n])).permutation(n).tolist()
    test_from = n - counts[1]
    parts = mixed[: test_from - counts[0]], mixed[test_from - counts[0] : test_from], mixed[test_from:]
    return tuple(tuple(sorted(part)) for part in parts)


def other_files(spec: FilesFields) -> dict[str, tuple[str, ...]]:
    """The files of sets that have their own, as the job names them."""
    own = {"validation": spec.validation_files, "test": spec.test_files}
    return {name: texts for name, texts in own.items() if texts is not None}
