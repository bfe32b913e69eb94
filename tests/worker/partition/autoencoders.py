"""A partitioned model on images against the whole one, as a function of one rank; on threads and by `mpiexec`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, SparseAutoencoder
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.partition import Grid, layout_of
from worker.comm import Communicator
from worker.partition import build_partitioned


class OnImages(ABC):
    """A model on images, and a mini-batch."""

    image: tuple[int, int, int]
    samples: int
    dtype: Any

    @abstractmethod
    def model(self) -> Any:
        """The whole one."""

    @abstractmethod
    def tensors(self) -> dict[str, np.ndarray]:
        """Its parameters."""

    def batch(self) -> Batch:
        shape = (self.samples, *self.image)
        return Batch(np.random.default_rng(1).standard_normal(shape).astype(self.dtype), np.zeros(self.samples))

    @cached_property
    def alone(self) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradient of the whole model."""
        tensors = self.tensors()
        out = {name: np.empty_like(values) for name, values in tensors.items()}
        return self.model().loss_and_gradient(tensors, self.batch(), out), out


@dataclass(frozen=True)
class Case(OnImages):
    """A layer on images, and a mini-batch."""

    image: tuple[int, int, int]
    eq1: Eq1
    samples: int
    dtype: Any = np.float64

    def model(self) -> SparseAutoencoder:
        return SparseAutoencoder(self.image, self.eq1, select_backend("cpu"))

    def tensors(self) -> dict[str, np.ndarray]:
        weight = np.random.default_rng(0).standard_normal(self.model().blocks.w_shape).astype(self.dtype)
        return {"weight": weight, "alpha": np.array([0.6], self.dtype)}


LAYER = Case((32, 28, 2), Eq1(window=8, block=4, maps=3, pool=5), 5)


def check(comm: Communicator, case: OnImages, grid: Grid) -> bytes:
    """Loss and this rank's part of the gradient are those of the whole model, step after step; gives their bits."""
    within = 1e-12 if case.dtype == np.float64 else 1e-5
    (loss, expected), tensors, batch = case.alone, case.tensors(), case.batch()
    model = build_partitioned(case.model(), comm, grid)
    layout = model.layout
    assert layout == layout_of(case.model(), grid)
    flat = layout.flatten(tensors, np.empty(layout.size, case.dtype))
    views = layout.views(flat, comm.rank)
    boxes = [box for box in layout.boxes if box.rank == comm.rank]
    bits = []
    for _ in range(2):  # nothing is left over from a step
        gradient = np.full_like(flat, np.nan)
        found = layout.views(gradient, comm.rank)
        ours = model.loss_and_gradient(views, batch, found)
        assert ours == pytest.approx(loss, rel=within)
        for box in boxes:
            # Terms of both signs cancel in the gradient: alpha's are each about as large as J; those of a neuron with
            # one weight cancel completely, since its weights are normalized, and only rounding is left.
            floor = loss if expected[box.name].size == 1 else 0.1 * loss
            scale = max(np.abs(expected[box.name]).max(), floor)
            np.testing.assert_allclose(
                found[box.name] / scale, expected[box.name][box.index] / scale, rtol=0, atol=within, err_msg=box.name
            )
        bits.append(np.float64(ours).tobytes() + b"".join(values.tobytes() for values in found.values()))
        assert model.evaluate(views, batch)[0] == pytest.approx(loss * case.samples, rel=within)
    assert bits[0] == bits[1]
    assert sorted(found) == sorted(box.name for box in boxes)
    return bits[0]


def some(comm: Communicator) -> None:
    """Layers on all grids of four ranks, some of which have no blocks."""
    for grid in (Grid(1, 4), Grid(2, 2), Grid(4, 1)):
        check(comm, Case((24, 20, 2), Eq1(window=8, block=4, maps=2, pool=5), 3), grid)
        check(comm, Case((12, 6, 1), Eq1(window=6, block=2, maps=3, pool=2), 105, np.float32), grid)
