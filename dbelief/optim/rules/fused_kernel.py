"""Loops over float32 elements, compiled by numba when first called.

A rule written with array operations passes over memory once per operation; a compiled loop passes once in
all, and releases the interpreter lock meanwhile. Settings, and why:

nogil                 two segments are updated on two cores; dbelief/arrays/jit.py does that, and keeps what it compiled
error_model="numpy"   x / 0 gives infinity as in NumPy; Python's check per division would prevent vector code
                      and cost a factor of five
no fastmath           no operation is fused or reordered: the same bits as NumPy, however the vector is cut
one signature         g is declared read-only and unaligned, which accepts every g; a view into a received
                      message is both, and would else be compiled for anew on the first push
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.arrays.jit import Loop, on_demand


def fused(states: int, scalars: int) -> Callable[[Loop], Loop]:
    """Compile `loop(w, g, *states, *scalars)` at its first call; arrays and scalars are float32.

    Parameters
    ----------
    states : int
        Number of state arrays after w and g.
    scalars : int
        Number of scalars after the arrays.

    Raises
    ------
    ValueError
        (when called) The arrays are not of one length: compiled code checks no bounds.
    """
    types = "write float32", "read float32", *["write float32"] * states, *["float32"] * scalars, "void"

    def decorate(loop: Loop) -> Loop:
        compiled = on_demand(loop, *types)

        @functools.wraps(loop)
        def call(*arguments: Any) -> None:
            arrays, size = arguments[: 2 + states], arguments[0].size
            for array in arrays:
                if array.size != size:
                    lengths = ", ".join(str(array.size) for array in arrays)
                    raise ValueError(f"w, g and states must be of one length, got {lengths}")
            compiled()(*arrays, *map(np.float32, arguments[2 + states :]))

        return call

    return decorate
