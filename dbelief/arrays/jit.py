"""Loops compiled by numba, with their machine code cached on disk where possible.

The cache is in NUMBA_CACHE_DIR, else beside this package, else in the user's cache folder; where none can be written,
each process compiles for itself. numba is imported at the first call and not before: most processes never need it.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Loop = Callable[..., Any]


def jit(loop: F, signature: Any = None, **options: Any) -> F:
    """Compile a loop that releases the interpreter lock: at once where the signature is given, else at its first call.

    Parameters
    ----------
    signature, options
        As for `numba.njit`.
    """
    import numba

    compiled: F
    try:
        compiled = numba.njit(signature, nogil=True, cache=True, **options)(loop)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        compiled = numba.njit(signature, nogil=True, cache=False, **options)(loop)
    return compiled


def inlined(loop: F) -> F:
    """Compile a part of a loop, which becomes part of each loop that calls it: many arguments cost nothing."""
    return jit(loop, forceinline=True)


def kernel(*types: str) -> Callable[[Loop], Loop]:
    """Compile a loop over arrays at its first call.

    Each integer operation of a loop is written `u32(...)`: numba makes 64 bits of a sum of 32, and a vector of the
    processor then holds half as many. No bound is checked: the caller of a loop checks its arrays' lengths.

    Parameters
    ----------
    types
        Of each argument and then of the result: a scalar by its name, "int64", or an array by what is done with it,
        "read float32" or "write uint8". What is read may lie at any address, as within a message.

    No operation is fused or reordered, so that every processor gives the same bits; for sums: `dbelief.arrays.lanes`.
    """

    def decorate(loop: Loop) -> Loop:
        compiled = on_demand(loop, *types)

        @functools.wraps(loop)
        def call(*arguments: Any) -> Any:
            return compiled()(*arguments)

        return call

    return decorate


def on_demand(loop: Loop, *types: str) -> Callable[[], Loop]:
    """A function that gives the compiled loop; it is compiled when first asked for. Types as for `kernel`."""

    @functools.cache
    def compiled() -> Loop:
        import numba

        def named(text: str) -> Any:
            use, _, dtype = text.rpartition(" ")
            scalar = getattr(numba.types, dtype)
            return numba.types.Array(scalar, 1, "C", readonly=use == "read", aligned=use != "read") if use else scalar

        *arguments, result = map(named, types)
        return jit(loop, result(*arguments), error_model="numpy")

    return compiled
