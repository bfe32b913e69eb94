"""Garbage collection of reference cycles, in programs that serve for long.

gRPC leaves cycles for each connection that breaks, with messages of up to 1 MiB. Python's full collection runs after
some 70,000 further objects, if the total has also grown by a quarter: by then thousands of workers have joined and
left. So a long-lived program collects when a member has left for good. That takes a millisecond if the objects
loaded at start are excluded; else, with numba and its compiler loaded, a tenth of a second.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze() -> None:
    """Exclude all present objects from later collections; call it before there are objects that may become garbage."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    """Free unreachable cycles. Cost: one scan of all objects made since the program was loaded."""
    gc.collect()
