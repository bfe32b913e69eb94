"""What is sent from a device: the right numbers, and each block on its way before the one ahead of it is gone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.backend import choose
from dbelief.errors import JobError
from dbelief.outgoing import OnDevice, OnHost


class Device:
    """Stands in for CuPy: copies are done when their event is waited for, in order; what happened is noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.buffers: list[np.ndarray] = []
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: Stream(self),
            get_current_stream=lambda: Stream(self),
            alloc_pinned_memory=self._alloc,
        )

    def _alloc(self, size: int) -> memoryview:
        self.buffers.append(np.full(size, 0xFF, np.uint8))
        return self.buffers[-1].data


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.queued: list[Any] = []

    def record(self) -> Event:
        return Event(self, len(self.queued))

    def wait_event(self, event: Event) -> None:
        self.device.notes.append("wait for the gradient")


class Event:
    def __init__(self, stream: Stream, after: int) -> None:
        self.stream, self.after = stream, after

    def synchronize(self) -> None:
        for number, copy in enumerate(self.stream.queued[: self.after]):
            if copy is not None:
                copy()
                self.stream.queued[number] = None


class Array:
    """(N,) numbers "on the device"."""

    def __init__(self, device: Device, values: np.ndarray, first: int = 0) -> None:
        self.xp, self.values, self.first = device, values, first
        self.dtype = values.dtype

    @property
    def device(self) -> Array:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: there is one device."""

    def __getitem__(self, span: slice) -> Array:
        return Array(self.xp, self.values[span], span.start)

    def get(self, stream: Stream, out: np.ndarray, blocking: bool) -> None:
        assert not blocking
        self.xp.notes.append(f"fetch {self.first}")
        stream.queued.append(lambda: np.copyto(out, self.values))


def ranges_of(edges: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(edges))


@given(st.lists(st.integers(0, 60), min_size=2, unique=True).map(sorted))
def test_every_block_holds_the_numbers_of_its_range(edges: list[int]) -> None:
    values = np.arange(60, dtype=np.float32)
    device = Device()
    for source in (OnHost(values), OnDevice(device, Array(device, values))):
        for (start, stop), block in zip(ranges_of(edges), source.blocks(ranges_of(edges)), strict=True):
            np.testing.assert_array_equal(block, values[start:stop])
    assert len(device.buffers) == 2
    assert all(buffer.size == 4 * max(np.diff(edges)) for buffer in device.buffers)


def test_the_next_block_is_on_its_way_while_one_is_sent() -> None:
    device = Device()
    source = OnDevice(device, Array(device, np.arange(12, dtype=np.float32)))
    for number, _ in enumerate(source.blocks(ranges_of([0, 3, 6, 9, 12]))):
        device.notes.append(f"send {number}")
    assert device.notes == [
        "wait for the gradient",
        *("fetch 0", "fetch 3", "send 0", "fetch 6", "send 1", "fetch 9", "send 2", "send 3"),
    ]


def test_walks_at_the_same_time_do_not_meet() -> None:
    device = Device()
    values = np.arange(40, dtype=np.float32)
    source = OnDevice(device, Array(device, values))
    left, right = ranges_of([0, 5, 10, 15, 20]), ranges_of([20, 25, 30, 35, 40])
    broken = source.blocks(left)
    next(broken)
    for one, other, first, second in zip(left, right, source.blocks(left), source.blocks(right), strict=True):
        np.testing.assert_array_equal(first, values[slice(*one)])
        np.testing.assert_array_equal(second, values[slice(*other)])


@pytest.fixture
def cupy() -> Iterator[Any]:
    try:
        yield choose("cuda").xp
    except JobError as error:
        pytest.skip(str(error))


@pytest.mark.gpu
def test_cupy_fills_the_next_block_while_nobody_asks_for_it(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    length, count = 1 << 18, 6
    alloc, pinned = cupy.cuda.alloc_pinned_memory, []

    def noted(size: int) -> Any:
        pinned.append(alloc(size))
        np.frombuffer(pinned[-1], np.float32, length)[:] = np.nan
        return pinned[-1]

    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", noted)
    values = cupy.arange(count * length, dtype=cupy.float32)
    ranges = ranges_of(list(range(0, count * length + 1, length)))
    for number, block in enumerate(OnDevice(cupy, values).blocks(ranges)):
        np.testing.assert_array_equal(block, np.arange(*ranges[number], dtype=np.float32))
        if number + 1 < count:
            following = np.frombuffer(pinned[(number + 1) % 2], np.float32, length)
            wanted, until_s = np.arange(*ranges[number + 1], dtype=np.float32), time.monotonic() + 10
            while not np.array_equal(following, wanted):
                assert time.monotonic() < until_s
