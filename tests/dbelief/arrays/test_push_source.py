"""Values sent from a device: the right numbers, and each block prefetched before the previous one is sent."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import Backend, select_backend
from dbelief.arrays.push_source import DeviceSource
from tests.device.standin.cupy import standing_in
from tests.device.standin.machine import Machine


def ranges_of(edges: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(edges))


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One that copies as late as it may."""
    with standing_in(eagerness=0.0) as machine:
        yield machine


@pytest.fixture
def xp(machine: Machine) -> Any:
    return select_backend("cuda").xp


@given(st.lists(st.integers(0, 60), min_size=2, unique=True).map(sorted), st.integers(0, 99))
def test_every_block_holds_the_numbers_of_its_range(edges: list[int], seed: int) -> None:
    values = np.arange(60, dtype=np.float32)
    with standing_in(seed=seed, eagerness=seed / 99) as machine:
        xp = select_backend("cuda").xp
        source = DeviceSource(xp, xp.asarray(values))
        for (start, stop), block in zip(ranges_of(edges), source.blocks(ranges_of(edges)), strict=True):
            np.testing.assert_array_equal(block, values[start:stop])
    of_asarray, *buffers = machine.memory.requests[-1]
    assert of_asarray == values.nbytes
    assert buffers == [4 * max(np.diff(edges))] * 2
    assert machine.stalls == 0


def test_the_next_block_is_on_its_way_while_one_is_sent(xp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    get, wait_event = xp.ndarray.get, xp.cuda.Stream.func.wait_event

    def noted(self: Any, **options: Any) -> Any:
        notes.append(f"fetch {len([one for one in notes if 'fetch' in one])}")
        return get(self, **options)

    def waited(self: Any, event: Any) -> None:
        notes.append("wait for the gradient")
        wait_event(self, event)

    monkeypatch.setattr(xp.ndarray, "get", noted)
    monkeypatch.setattr(xp.cuda.Stream.func, "wait_event", waited)
    source = DeviceSource(xp, xp.arange(12, dtype=np.float32))
    for number, _ in enumerate(source.blocks(ranges_of([0, 3, 6, 9, 12]))):
        notes.append(f"send {number}")
    assert notes == [
        "wait for the gradient",
        *("fetch 0", "fetch 1", "send 0", "fetch 2", "send 1", "fetch 3", "send 2", "send 3"),
    ]


@pytest.mark.parametrize("aborted", [False, True])
def test_walks_at_the_same_time_do_not_meet(xp: Any, aborted: bool) -> None:
    """Aborted: pinned memory is given again at once, and what was being copied into it is not over then."""
    values = np.arange(40, dtype=np.float32)
    source = DeviceSource(xp, xp.asarray(values))
    left, right = ranges_of([0, 5, 10, 15, 20]), ranges_of([20, 25, 30, 35, 40])
    broken = source.blocks(left)
    next(broken)
    if aborted:
        del broken
    for one, other, first, second in zip(left, right, source.blocks(left), source.blocks(right), strict=True):
        np.testing.assert_array_equal(first, values[slice(*one)])
        np.testing.assert_array_equal(second, values[slice(*other)])


@pytest.mark.gpu
def test_cupy_prefetches_the_next_block(gpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, length, count = gpu.xp, 1 << 18, 6
    alloc, pinned = cupy.cuda.alloc_pinned_memory, []

    def noted(size: int) -> Any:
        pinned.append(alloc(size))
        np.frombuffer(pinned[-1], np.float32, length)[:] = np.nan
        return pinned[-1]

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", noted)
    values = cupy.arange(count * length, dtype=cupy.float32)
    ranges = ranges_of(list(range(0, count * length + 1, length)))
    for number, block in enumerate(DeviceSource(cupy, values).blocks(ranges)):
        np.testing.assert_array_equal(block, np.arange(*ranges[number], dtype=np.float32))
        if number + 1 < count:
            following = np.frombuffer(pinned[(number + 1) % 2], np.float32, length)
            wanted, until_s = np.arange(*ranges[number + 1], dtype=np.float32), time.monotonic() + 10
            while not np.array_equal(following, wanted):
                assert time.monotonic() < until_s
