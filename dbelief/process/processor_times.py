"""Processor time of this process, and of all programs of the machine."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Places of the idle and the waiting time among the numbers of the first line of /proc/stat."""


class ProcessorTimes(NamedTuple):
    """Processor seconds since some start: of this process with all its threads, and of all programs of the machine."""

    used_s: float
    busy_s: float


def processor_times() -> ProcessorTimes:
    """The times so far; where the platform does not report the machine's, `busy_s` is that of the process."""
    used_s = time.process_time()
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in STAT.read_text().partition("\n")[0].split()[1:9]]
        busy = sum(count for place, count in enumerate(ticks) if place not in _IDLE)
        return ProcessorTimes(used_s, busy / os.sysconf("SC_CLK_TCK"))
    return ProcessorTimes(used_s, used_s)
