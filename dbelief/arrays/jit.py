"""Loops compiled by numba, with their machine code cached on disk where possible.

The cache is in NUMBA_CACHE_DIR, else beside this package, else in the user's cache folder; where none can be written,
each process compiles for itself. numba is imported at the first call and not before: most processes never need it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


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
