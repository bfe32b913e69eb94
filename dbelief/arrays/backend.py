"""Array backends: NumPy on the host, or CuPy on a CUDA device.

Formulas are written once on `xp` and receive the module as an argument. This file is the only importer of CuPy, and
imports it only on request, so that `import dbelief` needs neither CuPy nor a driver.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dbelief.arrays.push_source import DeviceSource
from dbelief.errors import JobError

Device = Literal["auto", "cpu", "cuda"]

Allocate = Callable[[int], np.ndarray]
"""Allocator of n float32 on the host, all 0, aligned to 64 bytes."""

# One cache line, and one AVX-512 register.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Backend:
    """An array module, and conversions to and from it.

    Attributes
    ----------
    name : "numpy" or "cupy"
    xp : module
        `numpy` or `cupy`.
    """

    name: Literal["numpy", "cupy"]
    xp: Any

    def to_host(self, array: Any) -> np.ndarray:
        """Return `array` as a NumPy array: itself if it is one, else a copy (waits for the device)."""
        if isinstance(array, np.ndarray):
            return array
        host: np.ndarray = self.xp.asnumpy(array)
        return host

    def bind_device(self, rank: int) -> None:
        """Select a device for this thread: its own where there are enough, else devices are shared round-robin."""
        if self.name == "cupy":
            devices = self.xp.cuda.runtime.getDeviceCount()
            self.xp.cuda.Device(rank % devices).use()

    def to_device(self, array: Any) -> Any:
        """Return `array` as an array of `xp`: itself if it is one, else a copy."""
        return self.xp.asarray(array)

    def zeros(self, n: int, allocate: Allocate) -> Any:
        """Return `n` float32 of `xp`, all 0; on the host they come from `allocate`."""
        return allocate(n) if self.name == "numpy" else self.xp.zeros(n, np.float32)

    def push_source(self, values: Any) -> np.ndarray | DeviceSource:
        """What a push of (n,) complete values reads; call it on the thread that computed them."""
        return values if isinstance(values, np.ndarray) else DeviceSource(self.xp, values)


def select_backend(device: Device) -> Backend:
    """Select the backend for a job's `device`.

    Parameters
    ----------
    device : "auto", "cpu" or "cuda"
        "auto" is CUDA where CuPy imports and finds a device, else the CPU.

    Raises
    ------
    JobError
        `device` is "cuda" and there is none; the message names what is missing.
    ValueError
        `device` is none of the three.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}, must be auto, cpu or cuda")
    if device == "cpu":
        return Backend("numpy", np)
    found = _cuda()
    if isinstance(found, Backend):
        return found
    if device == "cuda":
        raise JobError(f"device: cuda is requested, but {found}")
    return Backend("numpy", np)


def on_device_of(array: Any) -> AbstractContextManager[Any]:
    """Context that selects an array's device: a thread starts on the first device, whatever its parent's is."""
    found: AbstractContextManager[Any] = nullcontext() if isinstance(array, np.ndarray) else array.device
    return found


def device_bytes(backend: Backend) -> list[int]:
    """Total memory of each device that a backend may compute on; an empty list for the host."""
    if backend.name == "numpy":
        return []
    cuda = backend.xp.cuda
    return [int(cuda.Device(number).mem_info[1]) for number in range(cuda.runtime.getDeviceCount())]


def _cuda() -> Backend | str:
    """Return the CuPy backend, or the reason why there is none."""
    # A broken CUDA installation raises anything from ImportError and OSError to CuPy's own errors.
    try:
        import cupy
    except Exception as error:
        return f"CuPy does not import ({_first_line(error)})"
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"CuPy finds no CUDA driver ({_first_line(error)})"
    if devices < 1:
        return "CuPy finds no CUDA device"
    return Backend("cupy", cupy)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def aligned(n: int, dtype: Any) -> np.ndarray:
    """Allocate a zeroed one-dimensional host array that is aligned to 64 bytes.

    Parameters
    ----------
    n : int
        Number of elements, 0 or more.
    dtype : dtype-like
        Any argument of `numpy.dtype`.

    Returns
    -------
    array of shape (n,), C-contiguous and writable
    """
    if n < 0:
        raise ValueError(f"n is {n}, must be 0 or more")
    kind = np.dtype(dtype)
    raw = np.zeros(n * kind.itemsize + ALIGNMENT_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + n * kind.itemsize].view(kind)


def aligned_float32(n: int) -> np.ndarray:
    """Allocate float32 as `aligned` does."""
    return aligned(n, np.float32)
