"""Threads beside the one that computes: each begins on the first device, and must not stay there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.data import Split
from dbelief.optim.gradients import check_finite
from tests.device.standin.cupy import standing_in
from worker.pipeline.batches import BatchLoader


def test_a_gradient_is_checked_where_it_lies() -> None:
    """As on the push thread of a rank on the second device."""
    values = np.random.default_rng(0).standard_normal(100, dtype=np.float32)
    with standing_in(devices=2), ThreadPoolExecutor(1) as pushing:
        backend = select_backend("cuda")
        with backend.xp.cuda.Device(1):
            gradient = backend.to_device(values)
        norm = pushing.submit(check_finite, gradient, Layout.of({"w": values})).result()
    assert norm == pytest.approx(np.linalg.norm(values))


def test_mini_batches_come_where_the_model_computes() -> None:
    """As on the thread that gathers ahead for a batch method; into the same arrays, again and again."""
    rng = np.random.default_rng(0)
    split = Split(rng.standard_normal((9, 5), dtype=np.float32), rng.integers(0, 3, 9))
    with standing_in(devices=2) as machine, ThreadPoolExecutor(1) as gathering:
        backend = select_backend("cuda")
        with backend.xp.cuda.Device(1):
            batches = BatchLoader(split, 4, 1, backend)
        expected, asked = BatchLoader(split, 4, 1, select_backend("cpu")), len(machine.memory.requests[1])
        for start, stop in ((0, 4), (4, 8), (8, 9)):
            batch, wanted = gathering.submit(batches, 0, start, stop).result(), expected(0, start, stop)
            assert batch.inputs.device.id == 1
            np.testing.assert_array_equal(batch.inputs.get(), wanted.inputs)
            np.testing.assert_array_equal(batch.targets.get(), wanted.targets)
        assert len(machine.memory.requests[1]) == asked
        assert not machine.memory.requests[0]
