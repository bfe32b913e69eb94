"""Copies of what does not fit the caches: stores go past them, and what lay there is not read first.

A plain store brings its line into the cache before it is overwritten, a third of a large copy's traffic. It pays only
where nobody reads the target soon, or the target is larger than the caches; there `copy` is up to half as fast again as
NumPy's, most where several copy at the same time.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

LINE = 64
"""Bytes that are stored at a time, and where a target has to begin."""
LARGE = 1 << 19
"""Bytes from which on a copy goes past the caches: a segment of as many is one of a vector that does not fit there."""


def streaming_copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy (n,) bytes or numbers, both contiguous and of one type; the interpreter lock is released.

    Where there is little, or the processor or the target's address do not allow for it, this is NumPy's copy.
    """
    whole = target.nbytes - target.nbytes % LINE
    if target.nbytes < LARGE or target.ctypes.data % LINE or platform.machine() not in ("x86_64", "AMD64"):
        np.copyto(target, source)
        return
    bytes_there, bytes_here = target.view(np.uint8), source.view(np.uint8)
    _stream()(bytes_there.ctypes.data, bytes_here.ctypes.data, whole // LINE)
    bytes_there[whole:] = bytes_here[whole:]


def warm_up(most: int = LARGE) -> None:
    """Compile the loop, or load it, before there is anyone to wait for it; not where copies have at most few bytes."""
    if most < LARGE:
        return
    room = np.zeros(LARGE + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    streaming_copy(room[start : start + LARGE], np.zeros(LARGE, np.uint8))


@functools.cache
def _stream() -> Callable[[int, int, int], None]:
    """A loop over lines, by the addresses of target and source and how many there are."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    from dbelief.arrays.jit import jit

    def line(typing: Any, target: Any, source: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.VectorType(ir.IntType(32), LINE // 4).as_pointer()
            there, here = (builder.inttoptr(address, kind) for address in arguments)
            store = builder.store(builder.load(here, align=1), there, align=LINE)
            one = ir.Constant(ir.IntType(32), 1)
            store.set_metadata("nontemporal", builder.module.add_metadata([one]))
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp), made

    move: Any = intrinsic(line)

    def lines(target: int, source: int, count: int) -> None:
        # The last stores are seen by others when whoever made them has taken a lock: the interpreter's, at the end.
        for number in range(count):
            move(target + number * LINE, source + number * LINE)

    return jit(lines, "void(uintp, uintp, intp)")
