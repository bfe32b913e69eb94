"""Processors that this process may use, and the time that it, and all programs of the machine, have used of them."""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .runtime import runtime

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Of a running kernel: containers of one machine read the same."""
NETWORK = Path("/proc/self/ns/net")
LIMIT = Path("/sys/fs/cgroup/cpu.max")


class ProcessorUse(NamedTuple):
    """Processors of a process, and what was used of them since the meter's start; see `ProcessorFigures`."""

    machine: str
    network: str
    cores: float
    used_s: float
    busy_s: float
    lived_s: float


def available_processors() -> float:
    """Number of processors: the smaller of the affinity and the control group's limit, which may be a fraction."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with suppress(OSError, ValueError):
        quota, period = LIMIT.read_text().split()
        cores = min(cores, int(quota) / int(period))
    return cores


def machine_name() -> str:
    """Identity of the machine whose processors this process uses, without its name: eight digits."""
    with suppress(OSError):
        return _digits(BOOT.read_text())
    return _digits(socket.gethostname())


def network_name() -> str:
    """Identity of the network interfaces of this process: eight digits."""
    with suppress(OSError):
        return _digits(machine_name() + os.readlink(NETWORK))
    return machine_name()


def _digits(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


class ProcessorMeter:
    """Counts from its start. Reading costs some microseconds, most of them for /proc/stat."""

    def __init__(self) -> None:
        self._machine, self._network, self._cores = machine_name(), network_name(), available_processors()
        self._began, self._began_s = runtime.processor_times(), runtime.monotonic()

    def read(self) -> ProcessorUse:
        """The totals so far."""
        now = runtime.processor_times()
        used_s, busy_s = now.used_s - self._began.used_s, now.busy_s - self._began.busy_s
        lived_s = runtime.monotonic() - self._began_s
        return ProcessorUse(self._machine, self._network, self._cores, used_s, busy_s, lived_s)
