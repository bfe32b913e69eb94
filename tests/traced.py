"""Memory that some work takes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple


class Traced(NamedTuple):
    """What the work gives, the bytes that it holds on to, and the most that there were beyond those before."""

    given: Any
    kept: int
    peak: int


def traced(work: Callable[[], Any], steady: bool = False) -> Traced:
    """Do the work; `steady`: once more before, so that what a first time keeps does not count."""
    tracemalloc.start()
    try:
        if steady:
            work()
        gc.collect()  # until then Python keeps freed tuples
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        given = work()
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        return Traced(given, tracemalloc.get_traced_memory()[0] - before, peak - before)
    finally:
        tracemalloc.stop()
