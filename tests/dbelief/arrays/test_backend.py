import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, aligned, select_backend
from dbelief.errors import JobError


class FakeCupy(ModuleType):
    """As much of CuPy as the backend touches, with a given number of devices."""

    def __init__(self, devices: int | Exception) -> None:
        super().__init__("cupy")

        def count() -> int:
            if isinstance(devices, Exception):
                raise devices
            return devices

        self.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=count))


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)


def with_cupy(monkeypatch: pytest.MonkeyPatch, devices: int | Exception) -> FakeCupy:
    fake = FakeCupy(devices)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def test_cpu_is_numpy_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cupy(monkeypatch, 1)
    assert select_backend("cpu") == Backend("numpy", np)


@pytest.mark.usefixtures("no_cupy")
def test_auto_without_cupy_is_numpy() -> None:
    assert select_backend("auto") == Backend("numpy", np)


@pytest.mark.parametrize("devices", [0, RuntimeError("no driver")])
def test_auto_without_a_device_is_numpy(monkeypatch: pytest.MonkeyPatch, devices: int | Exception) -> None:
    with_cupy(monkeypatch, devices)
    assert select_backend("auto").name == "numpy"


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_device_is_taken(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    fake = with_cupy(monkeypatch, 2)
    assert select_backend(device) == Backend("cupy", fake)


@pytest.mark.usefixtures("no_cupy")
def test_cuda_without_cupy_says_so() -> None:
    with pytest.raises(JobError, match="cuda is requested, but CuPy does not import"):
        select_backend("cuda")


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (0, "CuPy finds no CUDA device"),
        (RuntimeError("driver too old\nmore"), r"no CUDA driver \(driver too old\)$"),
    ],
)
def test_cuda_without_a_device_says_so(monkeypatch: pytest.MonkeyPatch, devices: int | Exception, reason: str) -> None:
    with_cupy(monkeypatch, devices)
    with pytest.raises(JobError, match=reason):
        select_backend("cuda")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="'tpu'"):
        select_backend("tpu")  # type: ignore[arg-type]


def test_numpy_arrays_pass_through_uncopied() -> None:
    backend, array = Backend("numpy", np), np.arange(3.0)
    assert backend.to_host(array) is array
    assert backend.to_device(array) is array


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, "int64"])
@pytest.mark.parametrize("n", [0, 1, 7, 1000])
def test_aligned_arrays(n: int, dtype: Any) -> None:
    array = aligned(n, dtype)
    assert array.shape == (n,)
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert n == 0 or array.ctypes.data % 64 == 0
    assert not array.any()


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        aligned(-1, np.float32)
