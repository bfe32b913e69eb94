"""Random choices of a dataset, such as augmentation, that a run repeats whatever processes its data loader has."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from dbelief.errors import DataError


class SeededDataset:
    """A map-style dataset, with generators seeded before the samples of each batch are made.

    The seed depends on the job's seed, the replica, the lease and the position of the batch in it: not on how many
    processes a data loader has. The generators are those of `random`, `numpy.random` and torch on the CPU. In the
    script's own process they have their states back afterwards.

    Parameters
    ----------
    dataset
        With a length and items by index. Its method `__getitems__`, where it has one, gets a batch's indices together.
        This is the outermost dataset, which the data loader gets: `Subset` of it would pass on plain indices.

    Raises
    ------
    DataError
        The dataset is a stream.

    Notes
    -----
    Cost: about 0.1 ms for a batch.
    """

    def __init__(self, dataset: Any) -> None:
        if not hasattr(dataset, "__len__") or isinstance(dataset, IterableDataset):
            raise DataError(f"{type(dataset).__name__} is a stream: a SeededDataset needs a length and items by index")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch of `job.sampler`."""
        with _seeded(getattr(indices, "key", None)):
            if (together := getattr(self.dataset, "__getitems__", None)) is not None:
                found: list[Any] = together(indices)
                return found
            return [self.dataset[index] for index in indices]


@contextmanager
def _seeded(key: tuple[int, ...] | None) -> Iterator[None]:
    """Seed the generators within the block; None: leave them as they are."""
    if key is None:
        yield
        return
    keeps = get_worker_info() is None  # a loader's process has no other use for them
    if keeps:
        before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    first, second, third = (int(word) for word in np.random.SeedSequence(key).generate_state(3))
    random.seed(first)
    np.random.seed(second)
    torch.default_generator.manual_seed(third)
    try:
        yield
    finally:
        if keeps:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.default_generator.set_state(before[2])
