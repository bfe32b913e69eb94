"""A stream as a map-style dataset of its units, which are leased and may be read again by another replica."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from torch.utils.data import default_collate

from dbelief.data.bags.batch import SparseBatch
from dbelief.errors import DataError


class ReadsUnits(Protocol):
    """A stream in named units, such as files or ranges of records.

    Attributes
    ----------
    units
        Names of the units, the same in all replicas.
    """

    @property
    def units(self) -> Sequence[str]:
        """See the class."""
        ...

    def read(self, unit: str) -> Iterable[Any]:
        """The samples of a unit: the same in each call, on each machine.

        Parameters
        ----------
        unit : str
            One of the names.

        Returns
        -------
        iterable
            Each sample as an `IterableDataset` would give it.
        """
        ...


class UnitDataset:
    """The units of a stream: item i is the list of all samples of unit i.

    The job counts units: `data.train`, `batch_size` and `samples` of `sync.step` are numbers of units.

    Parameters
    ----------
    stream : ReadsUnits
        An `IterableDataset`, say, that has `units` and `read` too.

    Raises
    ------
    DataError
        The stream has no such units, or two of one name.
    """

    def __init__(self, stream: ReadsUnits) -> None:
        units = getattr(stream, "units", None)
        listed = isinstance(units, Sequence) and not isinstance(units, str) and all(isinstance(u, str) for u in units)
        if not listed or not callable(getattr(stream, "read", None)):
            raise DataError(
                f"{type(stream).__name__} has no units that can be read again: it needs `units`, a list of names, "
                "and `read(unit)`, which gives the samples of one; without them no other replica can repeat what a "
                "failed one has not trained"
            )
        self.stream, self.units = stream, tuple(stream.units)
        if len(set(self.units)) < len(self.units):
            twice = next(unit for number, unit in enumerate(self.units) if unit in self.units[:number])
            raise DataError(f"{type(stream).__name__} has two units of the name {twice!r}")

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, index: int) -> list[Any]:
        samples = list(self.stream.read(self.units[index]))
        if not samples:
            raise DataError(f"unit {self.units[index]!r} of {type(self.stream).__name__} has no samples")
        return samples

    @staticmethod
    def collate(units: Iterable[list[Any]]) -> Any:
        """The samples of several units as one batch, for `DataLoader(..., collate_fn=UnitDataset.collate)`.

        Those of a stream of `dbelief.data.bags` are one SparseBatch, of tensors.
        """
        samples = list(chain.from_iterable(units))
        if isinstance(samples[0], SparseBatch):
            return SparseBatch.joined(samples).mapped(torch.from_numpy)
        return default_collate(samples)
