"""Hashes of a table's keys, and the initial values of rows, from (seed, table, key): the same in every process.

splitmix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", figure 16): word j of key k is
`mix(mix(k + salt) + j g)`, with g the golden ratio's 64 bits. Word 0 is the key's hash; its bits are used once:

    63..40    bucket: the upper 32 bits times the number of buckets, shifted by 32    at most 2^16 buckets
    47..40    tag in the bucket's index
    24..0     slot in the bucket's index

Integers and multiples of 2^-23 only: the same bits on every processor.
"""

from __future__ import annotations

import hashlib

import numpy as np

from dbelief.arrays.jit import kernel

u64 = np.uint64
_STEP = u64(0x9E3779B97F4A7C15)
_ONE, _OTHER = u64(0xBF58476D1CE4E5B9), u64(0x94D049BB133111EB)
MOST_BUCKETS = 1 << 16


def table_salt(seed: int, table: str) -> int:
    """64 bits for a job's seed and a table's name."""
    digest = hashlib.blake2b(f"{seed} {table}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def hashes(keys: np.ndarray, salt: int) -> np.ndarray:
    """(n,) uint64 of (n,) int64 keys."""
    found = np.empty(keys.size, u64)
    _words(keys, u64(salt), 1, found)
    return found


def buckets(hashed: np.ndarray, count: int) -> np.ndarray:
    """(n,) uint16 numbers of buckets, from 0 to `count` - 1, of (n,) hashes."""
    return ((hashed >> u64(32)) * u64(count) >> u64(32)).astype(np.uint16)


def uniform_rows(keys: np.ndarray, salt: int, width: int, limit: float) -> np.ndarray:
    """(n, width) float32, uniform in [-limit, limit), of (n,) int64 keys. Cost: 4 ns a number."""
    words = np.empty(keys.size * width, u64)
    _words(keys, u64(salt ^ int(_ONE)), width, words)
    rows = ((words >> u64(40)).astype(np.float32) * np.float32(2**-23) - np.float32(1)) * np.float32(limit)
    return rows.reshape(keys.size, width)


@kernel("read int64", "uint64", "int64", "write uint64", "void")
def _words(keys: np.ndarray, salt: int, each: int, words: np.ndarray) -> None:
    """Write the first `each` words of every key."""
    for i in range(keys.size):
        start = u64(0)
        for j in range(-1, each):
            x = u64(u64(keys[i]) + salt) if j < 0 else u64(start + u64(u64(j) * _STEP))
            x = u64(u64(x ^ u64(x >> u64(30))) * _ONE)
            x = u64(u64(x ^ u64(x >> u64(27))) * _OTHER)
            x = u64(x ^ u64(x >> u64(31)))
            if j < 0:
                start = x
            else:
                words[i * each + j] = x
