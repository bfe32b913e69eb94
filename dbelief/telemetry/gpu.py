"""Memory and utilization of CUDA devices; an empty list where there are none.

Memory is read through CuPy. CUDA does not report utilization: NVIDIA's management library does, through `nvidia-ml-py`
where that is installed.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dbelief.arrays.backend import Backend


@dataclass(frozen=True)
class Device:
    """One device of a backend.

    Attributes
    ----------
    number
        CUDA's index among the devices visible to this process.
    """

    number: int
    _xp: Any
    _nvml: ModuleType | None
    _handle: Any

    def used_bytes(self) -> float:
        """Memory in use on the device, by all processes."""
        free, total = self._xp.cuda.Device(self.number).mem_info
        return float(total - free)

    def total_bytes(self) -> float:
        """Memory of the device."""
        return float(self._xp.cuda.Device(self.number).mem_info[1])

    def pool_bytes(self) -> float:
        """Memory that this process's pool holds on the device, in use or not."""
        with self._xp.cuda.Device(self.number):
            return float(self._xp.get_default_memory_pool().total_bytes())

    def busy_fraction(self) -> float:
        """Fraction of the last sampling period (a second or less) in which a kernel ran; NaN if not available."""
        if self._nvml is None:
            return math.nan
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100.0
        except self._nvml.NVMLError:  # not available for MIG instances, for example
            return math.nan


def devices(backend: Backend) -> list[Device]:
    """Devices that a backend may compute on; none for the host."""
    if backend.name == "numpy":
        return []
    nvml, cuda = _nvml(), backend.xp.cuda
    found = []
    for number in range(cuda.runtime.getDeviceCount()):
        handle = None
        if nvml is not None:
            # NVML counts all devices of the machine, CUDA only the visible ones: the PCI bus id matches them.
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByPciBusId(cuda.Device(number).pci_bus_id)
        found.append(Device(number, backend.xp, nvml if handle is not None else None, handle))
    return found


def _nvml() -> ModuleType | None:
    """NVIDIA's management library, initialized; None where it is not installed, or finds no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    library: ModuleType = pynvml
    return library
