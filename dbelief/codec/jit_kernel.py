"""Loops over payloads, compiled by numba when first called, which release the interpreter lock.

Each integer operation of a loop is written `u32(...)`: numba makes 64 bits of a sum of 32, and a vector of the
processor then holds half as many. A bound is never checked: whoever calls a loop has seen to its arrays' lengths.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dbelief.arrays.jit import jit

Loop = Callable[..., Any]


def kernel(*types: str) -> Callable[[Loop], Loop]:
    """Compile a loop at its first call.

    Parameters
    ----------
    types
        Of each argument and then of the result: a scalar by its name, "int64", or an array by what is done with it,
        "read float32" or "write uint8". What is read may lie at any address, as within a message.

    No operation is fused or reordered, so that every processor gives the same bits; for sums: `dbelief.arrays.lanes`.
    """

    def decorate(loop: Loop) -> Loop:
        @functools.cache
        def compiled() -> Loop:
            return _compile(loop, types)

        @functools.wraps(loop)
        def call(*arguments: Any) -> Any:
            return compiled()(*arguments)

        return call

    return decorate


def _compile(loop: Loop, types: tuple[str, ...]) -> Loop:
    import numba

    def named(text: str) -> Any:
        use, _, dtype = text.rpartition(" ")
        scalar = getattr(numba.types, dtype)
        if not use:
            return scalar
        read = use == "read"
        return numba.types.Array(scalar, 1, "C", readonly=read, aligned=not read)

    *arguments, result = map(named, types)
    return jit(loop, result(*arguments), error_model="numpy")
