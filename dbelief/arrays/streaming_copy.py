"""Copies with non-temporal stores, for data larger than the caches: the target's lines are not read first.

A plain store loads its line into the cache before it is overwritten, a third of a large copy's traffic. Bypassing pays
only where the target is not read soon, or is larger than the caches; there `streaming_copy` is up to half as fast again
as NumPy's copy, most where several threads copy at the same time.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

LINE = 64
"""Bytes per store, and alignment of a target."""
LARGE = 1 << 19
"""Bytes from which on a copy bypasses the caches: a segment of this size is of a vector that does not fit there."""


def streaming_copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy (n,) bytes or numbers, both contiguous and of one type; the interpreter lock is released.

    For small arrays, other processors, or an unaligned target, this is NumPy's copy.
    """
    if not streams(target):
        np.copyto(target, source)
        return
    whole = target.nbytes - target.nbytes % LINE
    bytes_there, bytes_here = target.view(np.uint8), source.view(np.uint8)
    _stream()(bytes_there.ctypes.data, bytes_here.ctypes.data, whole // LINE)
    bytes_there[whole:] = bytes_here[whole:]


def streams(target: np.ndarray) -> bool:
    """Whether a copy to this array bypasses the caches."""
    large = target.nbytes >= LARGE
    return large and not target.ctypes.data % LINE and platform.machine() in ("x86_64", "AMD64")


def store_line(builder: Any, numbers: Any, target: Any) -> None:
    """In a loop that is being compiled: a non-temporal store of a vector of `LINE` bytes to an aligned pointer."""
    from llvmlite import ir

    store = builder.store(numbers, target, align=LINE)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


def warm_up(most: int = LARGE) -> None:
    """Compile the loop, or load it from the cache, ahead of its first use; no operation if `most` is below `LARGE`."""
    if most < LARGE:
        return
    room = np.zeros(LARGE + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    streaming_copy(room[start : start + LARGE], np.zeros(LARGE, np.uint8))


@functools.cache
def _stream() -> Callable[[int, int, int], None]:
    """Compiled loop over lines, with the addresses of target and source and the number of lines."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    from dbelief.arrays.jit import jit

    def line(typing: Any, target: Any, source: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.VectorType(ir.IntType(32), LINE // 4).as_pointer()
            there, here = (builder.inttoptr(address, kind) for address in arguments)
            store_line(builder, builder.load(here, align=1), there)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp), made

    move: Any = intrinsic(line)

    def lines(target: int, source: int, count: int) -> None:
        # The last stores become visible to other threads when this one acquires a lock: the interpreter's, at the end.
        for number in range(count):
            move(target + number * LINE, source + number * LINE)

    return jit(lines, "void(uintp, uintp, intp)")
