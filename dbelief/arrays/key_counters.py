"""Counters of keys in a fixed number of bytes, in a compiled loop."""

from __future__ import annotations

import numpy as np

from .jit import kernel

u64, u8 = np.uint64, np.uint8
_ONE, _OTHER = u64(0xD6E8FEB86659FD93), u64(0xA3B195354A39B70D)


@kernel("read uint64", "int64", "write uint8", "write uint8", "int64")
def count_keys(hashed: np.ndarray, after: int, counters: np.ndarray, reached: np.ndarray) -> int:
    """Count each key once more; write 1 for each that was counted `after` times with this, else 0.

    A key has two counters, of which the lower counts; a counter that is higher stays as it is (count-min sketch,
    Cormode and Muthukrishnan 2005, with the conservative update of Estan and Varghese 2002). So no count is too low.

    Parameters
    ----------
    hashed
        (n,) uint64 hashes.
    counters
        (2^k,) uint8, k at least 1.
    reached
        (n,) uint8.

    Returns
    -------
    int
        Counters that were 0 and are not now.
    """
    mask, used = u64(counters.size - 1), 0
    for i in range(hashed.size):
        one = u64(u64(u64(hashed[i] * _ONE) >> u64(32)) & mask)
        other = u64(u64(u64(hashed[i] * _OTHER) >> u64(32)) & mask)
        count = min(counters[one], counters[other]) + 1
        reached[i] = count >= after
        if not reached[i]:
            for at in (one, other):
                if counters[at] < count:
                    used += counters[at] == 0
                    counters[at] = u8(count)
    return used
