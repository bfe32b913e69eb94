"""The speed of this machine's processors, alone and together: a shared machine's changes by half within minutes.

A fixed work stands for what calls cost: Python objects and their text, copies of parameters, small products of
matrices. Two processors that are threads of one core are slower while both are in use.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from threadpoolctl import threadpool_limits

MEASURED_S, TIMES = 0.2, 3
USUAL_S = 0.93e-3
"""Of the work on the machine whose costs the product has."""
_TEXTS, _COPIES, _PRODUCTS = 30, 4, 8
_MESSAGE = {"shard": 1, "pushes": list(range(40)), "state": {"name": "worker", "phases": [0.25] * 20}}


def processor_speed(times: int = TIMES) -> float:
    """Of one processor, as a multiple of the usual one: the best of some measurements, as others only disturb it."""
    return max(_measured() for _ in range(times))


def together() -> float:
    """The speed of a processor while all are in use, as a share of that alone, at most 1."""
    count = os.cpu_count() or 1
    with ProcessPoolExecutor(count, get_context("spawn")) as processes:
        list(processes.map(processor_speed, [1] * count))  # they are started
        alone = processor_speed()
        found = [statistics.mean(processes.map(processor_speed, [1] * count)) for _ in range(TIMES)]
    return min(1.0, max(found) / alone)


def _measured() -> float:
    source, copy = np.ones(1 << 17, np.float32), np.empty(1 << 17, np.float32)
    left, right = np.ones((64, 256), np.float32), np.ones((256, 128), np.float32)
    taken_s: list[float] = []
    with threadpool_limits(1):
        until_s = time.perf_counter() + MEASURED_S
        while time.perf_counter() < until_s:
            began_s = time.perf_counter()
            for _ in range(_TEXTS):
                json.loads(json.dumps(_MESSAGE))
            for _ in range(_COPIES):
                np.copyto(copy, source)
            for _ in range(_PRODUCTS):
                left @ right
            taken_s.append(time.perf_counter() - began_s)
    return USUAL_S / statistics.median(taken_s)
