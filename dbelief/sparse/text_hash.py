"""XXH64 of text in compiled loops; its specification: Collet, "XXH64 algorithm description", xxHash, version 0.1.1.

Integers only: the same bits on every processor. Importing this module imports numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dbelief.arrays.jit import jit

u64 = np.uint64
_ONE, _TWO = u64(0x9E3779B185EBCA87), u64(0xC2B2AE3D27D4EB4F)
_THREE, _FOUR, _FIVE = u64(0x165667B19E3779F9), u64(0x85EBCA77C2B2AE63), u64(0x27D4EB2F165667C5)
_LANES = 32  # bytes of a turn, 8 of each of four sums


@jit
def hash_text(content: Any, start: Any, stop: Any) -> Any:
    """XXH64 with seed 0 of the bytes from `start` to `stop` of a uint8 array: int64, the hash's bits."""
    at = start
    if stop - start >= _LANES:
        a, b, c, d = u64(_ONE + _TWO), _TWO, u64(0), u64(u64(0) - _ONE)
        while at + _LANES <= stop:
            a = _round(a, _word(content, at))
            b = _round(b, _word(content, at + 8))
            c = _round(c, _word(content, at + 16))
            d = _round(d, _word(content, at + 24))
            at += _LANES
        found = u64(u64(_turned(a, 1) + _turned(b, 7)) + u64(_turned(c, 12) + _turned(d, 18)))
        found = _merged(_merged(_merged(_merged(found, a), b), c), d)
    else:
        found = _FIVE
    found = u64(found + u64(stop - start))
    while at + 8 <= stop:
        found = u64(found ^ _round(u64(0), _word(content, at)))
        found = u64(u64(_turned(found, 27) * _ONE) + _FOUR)
        at += 8
    if at + 4 <= stop:
        found = u64(found ^ u64(_half(content, at) * _ONE))
        found = u64(u64(_turned(found, 23) * _TWO) + _THREE)
        at += 4
    while at < stop:
        found = u64(found ^ u64(u64(content[at]) * _FIVE))
        found = u64(_turned(found, 11) * _ONE)
        at += 1
    found = u64(u64(found ^ u64(found >> u64(33))) * _TWO)
    found = u64(u64(found ^ u64(found >> u64(29))) * _THREE)
    return np.int64(found ^ u64(found >> u64(32)))


@jit
def hash_texts(content: Any, ends: Any, keys: Any) -> None:
    """Write the hash of each text; text i has the bytes from ends[i - 1], or 0, to ends[i]."""
    start = 0
    for i in range(ends.size):
        keys[i] = hash_text(content, start, ends[i])
        start = ends[i]


@jit
def _turned(word: Any, bits: Any) -> Any:
    return u64(u64(word << u64(bits)) | u64(word >> u64(64 - bits)))


@jit
def _round(total: Any, word: Any) -> Any:
    return u64(_turned(u64(total + u64(word * _TWO)), 31) * _ONE)


@jit
def _merged(found: Any, total: Any) -> Any:
    return u64(u64(u64(found ^ _round(u64(0), total)) * _ONE) + _FOUR)


@jit
def _half(content: Any, at: Any) -> Any:
    """Four bytes, the lowest first."""
    return u64(
        u64(content[at])
        | u64(u64(content[at + 1]) << u64(8))
        | u64(u64(content[at + 2]) << u64(16))
        | u64(u64(content[at + 3]) << u64(24))
    )


@jit
def _word(content: Any, at: Any) -> Any:
    """Eight bytes, the lowest first."""
    return u64(_half(content, at) | u64(_half(content, at + 4) << u64(32)))
