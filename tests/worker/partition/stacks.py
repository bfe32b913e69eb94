"""Stacks that are cut, for `check`; on threads and by `mpiexec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.backend import select_backend
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.stacks import Stacks, tensor_shapes
from dbelief.nn.layers.lcn import Lcn
from dbelief.partition import Grid
from worker.comm import Communicator

from .autoencoders import OnImages, check

DEEP = (Eq1(4, 2, 2, 3, 0.3, 1e-2), Lcn(3)), (Eq1(4, 2, 3, 2, 0.3, 1e-2), Lcn(1))
"""Two stacks: on 18 x 22 pixels 8 x 10 blocks of 2 x 2 neurons, and 4 x 6 on 10 x 14 outputs of these."""


@dataclass(frozen=True)
class Deep(OnImages):
    """Stacks on images, of which some are trained, and a mini-batch."""

    image: tuple[int, int, int]
    stacks: tuple[tuple[Eq1, Lcn], ...]
    train: int | None
    samples: int
    dtype: Any = np.float64

    def model(self) -> Stacks:
        return Stacks(self.image, self.stacks, self.train, self._drawn(), select_backend("cpu"))

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: v for name, v in self._drawn().items() if self.train is None or f"stack{self.train}." in name}

    def _drawn(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        shapes = {name: shape for stack in tensor_shapes(self.image, self.stacks) for name, shape in stack.items()}
        return {
            name: (np.full(1, 0.6) if shape == (1,) else rng.standard_normal(shape)).astype(self.dtype)
            for name, shape in shapes.items()
        }


TWO = Deep((18, 22, 2), DEEP, None, 3)


def some(comm: Communicator) -> None:
    """Stacks on all grids of four ranks, some of which have no blocks of one stack or the other."""
    for grid in (Grid(1, 4), Grid(2, 2), Grid(4, 1)):
        check(comm, Deep((18, 22, 2), DEEP, None, 3), grid)
        check(comm, Deep((18, 22, 2), DEEP, 2, 103, np.float32), grid)
        check(comm, Deep((12, 22, 1), DEEP, None, 3), grid)
