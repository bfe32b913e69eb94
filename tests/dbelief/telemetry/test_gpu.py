"""Figures of devices, from a fake CuPy and a fake management library with two of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.telemetry.gpu import devices

BUS = ("0000:1A:00.0", "0000:3B:00.0")


class Nvml(SimpleNamespace):
    """NVML, which numbers the two the other way round; one of them is a part of a device."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:
        return bus

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if handle == BUS[1]:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=37, memory=12)


@pytest.fixture
def backend() -> Backend:
    """CuPy, as far as it is asked here."""
    current = [0]

    class Device:
        def __init__(self, number: int) -> None:
            self.number, self.pci_bus_id, self.mem_info = number, BUS[number], (70 - number, 80)

        def __enter__(self) -> None:
            current.append(self.number)

        def __exit__(self, *raised: object) -> None:
            current.pop()

    pool = SimpleNamespace(total_bytes=lambda: 5 + current[-1])
    cuda = SimpleNamespace(Device=Device, runtime=SimpleNamespace(getDeviceCount=lambda: 2))
    return Backend("cupy", SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool))


def test_the_host_has_none() -> None:
    assert devices(select_backend("cpu")) == []


def test_memory_is_the_devices_and_our_pools_on_it(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = devices(backend)
    assert [(d.number, d.used_bytes(), d.total_bytes(), d.pool_bytes()) for d in found] == [
        (0, 10, 80, 5),
        (1, 11, 80, 6),
    ]
    assert [np.isnan(device.busy_fraction()) for device in found] == [True, True]


@pytest.mark.parametrize("broken", [True, False])
def test_utilization_is_nan_where_unknown(backend: Backend, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(broken=broken))
    busy = [device.busy_fraction() for device in devices(backend)]
    assert np.isnan(busy[1])
    assert np.isnan(busy[0]) if broken else busy[0] == 0.37


@pytest.mark.gpu
def test_device_memory_includes_an_array_on_it() -> None:
    pytest.importorskip("cupy")
    backend = select_backend("cuda")
    (device, *_) = devices(backend)
    before = device.pool_bytes()
    array = backend.xp.zeros(1 << 26, np.uint8)
    assert device.pool_bytes() - before >= array.nbytes
    assert array.nbytes <= device.used_bytes() <= device.total_bytes()
    busy = device.busy_fraction()
    assert np.isnan(busy) or 0 <= busy <= 1
