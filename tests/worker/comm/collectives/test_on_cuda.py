"""Sums over ranks of threads whose arrays lie on CUDA devices, or on one that they share: the host's bits."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.arrays.backend import Backend
from tests.worker.comm.collectives.ways import any_numbers, ways
from worker.comm import Communicator, run_ranks

pytestmark = pytest.mark.gpu


def test_sums_on_devices_are_the_hosts(cuda: Backend) -> None:
    def on_host(comm: Communicator) -> list[np.ndarray]:
        arrays = [any_numbers(comm.rank, 1001) for _ in ways()]
        for way, array in zip(ways(), arrays, strict=True):
            way.make(comm, 1001)(array)
        return arrays

    def on_device(comm: Communicator) -> list[np.ndarray]:
        cuda.bind_device(comm.rank)
        arrays = [cuda.to_device(any_numbers(comm.rank, 1001)) for _ in ways()]
        for way, array in zip(ways(), arrays, strict=True):
            way.make(comm, 1001)(array)
        return [cuda.to_host(array) for array in arrays]

    for found, wanted in zip(run_ranks(4, on_device, xp=cuda.xp), run_ranks(4, on_host), strict=True):
        np.testing.assert_array_equal(found, wanted)
