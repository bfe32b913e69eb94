"""The largest numbers of each block in two bits and an index, with error feedback (Sarfi et al. 2025, "Communication
Efficient LLM Pre-training with SparseLoCo", section 3).

With v = g + decay e, numbers and what earlier payloads left out, of each block of at most 4,096 numbers of one tensor: sent
are the k = share x length largest |v|, at least one and none that is 0, each as +h, -h, +l or -l, and e <- v - sent.

    t = mean of the sent |v| ;  h = mean of those from t up ;  l = mean of those below

h and l are rounded to 8 bits and to multiples of the largest power of two that all of the sent v are multiples of. So,
without a decay, all that was sent and e together are the sum of all g, to rounding: exactly, where all g are multiples of one power of
two, and v stays below 2^24 of it.

Payload, little-endian: pieces as `blocks` has them, with b blocks in all; then

    b times (uint16 l, uint16 h: the upper halves of float32; uint32 k)
    per block of m numbers with k above 0, its indices rising, with r = log2 of m // k, rounded down:
        k times 2 bits: 1 for h, 2 for minus
        k times r bits: the index's lower bits
        k + (m - 1) // 2^r bits: bit (index // 2^r + j) is 1 for the index j, counted from 0     Elias-Fano code

where bits fill bytes from the lowest up, and each of the three begins with a byte of its own.

Cost: 152 bytes for 4,096 numbers at a share of 1/32, a 108th of float32; two passes over a block (`largest`), which the
first cache holds. The means are summed in float64, one by one in the order of the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.errors import NonFinite

from .blocks import CodedBlocks

u8, u32, i32, i64, u64, f32, f64 = np.uint8, np.uint32, np.int32, np.int64, np.uint64, np.float32, np.float64

BLOCK = 4096
"""Numbers that share their two levels."""
SHARE = 1 / 32
"""Of the numbers of a block."""
_MOST = f64(255 * 2.0**120)
"""The largest level of 8 bits."""


@dataclass(frozen=True)
class TopK:
    """One of four levels for each of the largest numbers of a block, nothing for the others.

    Parameters
    ----------
    share
        Of a block's numbers that are sent, from 2^-12 to 1.
    decay
        Factor of what earlier payloads left out, above 0 and at most 1; below 1 some of it is never sent.
    """

    share: float = SHARE
    decay: float = 1.0
    name: ClassVar[str] = "top-k"
    keeps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 / BLOCK <= self.share <= 1:
            raise ValueError(f"share is {self.share}, must be from 2^-12 to 1")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}, must be above 0 and at most 1")

    @property
    def block_bytes(self) -> int:
        """Bytes of a full block in which no number is 0."""
        full = np.array([BLOCK])
        return 8 + int(_cut(full, self._counts(full), np.empty(1, i64)))

    def _counts(self, lengths: np.ndarray) -> np.ndarray:
        return np.maximum(self.share * lengths, 1).astype(i64)

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """See `Codec`."""
        from . import largest  # brings numba

        assert residual is not None, "what is not among the largest has to be kept"
        if residual.size != values.size:
            raise ValueError(f"{residual.size} numbers were kept for {values.size}")
        if self.decay < 1:
            residual *= f32(self.decay)
        blocks = CodedBlocks.between(cuts, values.size, BLOCK, 2)
        counts = self._counts(blocks.lengths)
        chosen = np.empty(counts.sum() + 1, i32)
        if not largest.choose(values, residual, blocks.lengths, counts, chosen):
            raise NonFinite("what is to be sent and what was kept of it have no finite sum")
        lowers = np.empty(counts.size, i64)
        payload = blocks.payload(_cut(blocks.lengths, counts, lowers))
        heads = blocks.floats(payload).view(u32)
        middles, means, units = np.empty(counts.size), np.empty((counts.size, 2)), np.empty(counts.size, i32)
        _measure(residual, blocks.lengths, counts, chosen, middles, means.reshape(-1), units)
        heads[::2], heads[1::2] = _levels(means, units), counts
        _encode(residual, blocks.lengths, lowers, chosen, middles, heads, blocks.bits(payload))
        return payload

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        blocks = CodedBlocks.of(payload, out.size, BLOCK, 2)
        heads, bits = blocks.floats(payload).view(u32), blocks.bits(payload)
        levels, counts = heads[::2], heads[1::2].astype(i64)
        if (levels & u32(0xFFFF) > 0x7F7F).any() or (levels >> u32(16) > 0x7F7F).any():
            raise ValueError("levels of the largest numbers that are negative or not finite")
        if (counts > blocks.lengths).any():
            raise ValueError("more of a block's numbers than it has")
        lowers = np.empty(counts.size, i64)
        if bits.size != (size := _cut(blocks.lengths, counts, lowers)):
            raise ValueError(f"{bits.size} bytes are not those of the {counts.sum()} largest numbers, {size}")
        if not _decode(bits, heads, blocks.lengths, lowers, out):
            raise ValueError(f"indices that do not rise, or leave the {out.size} numbers there are")


@kernel("read int64", "read int64", "write int64", "int64")
def _cut(lengths: np.ndarray, counts: np.ndarray, lowers: np.ndarray) -> int:
    """Write how many bits of an index are lower ones, for each block; the bytes behind the heads."""
    size = 0
    for block in range(lengths.size):
        m, k, lower = lengths[block], counts[block], 0
        while k and k << (lower + 1) <= m:
            lower += 1
        if k:
            size += (2 * k + 7) // 8 + (lower * k + 7) // 8 + (k + ((m - 1) >> lower) + 7) // 8
        lowers[block] = lower
    return size


def _levels(means: np.ndarray, units: np.ndarray) -> np.ndarray:
    """uint32 of (b, 2) means below and from the middle up, as the payload has them."""
    exponents = np.maximum(np.frexp(means)[1] - 8, np.maximum(units, -133)[:, None])
    rounded = np.minimum(np.ldexp(np.rint(np.ldexp(means, -exponents)), exponents), _MOST)
    words = rounded.astype(f32).view(u32)
    packed: np.ndarray = words[:, 1] | words[:, 0] >> u32(16)
    return packed


@kernel(
    "read float32", "read int64", "read int64", "read int32", "write float64", "write float64", "write int32", "void"
)
def _measure(
    sums: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    chosen: np.ndarray,
    middles: np.ndarray,
    means: np.ndarray,
    units: np.ndarray,
) -> None:
    """Write of each block's chosen magnitudes their mean, the means of each side of it, and the exponent of the largest
    power of two that all are multiples of.
    """
    sizes = np.empty(BLOCK, i32)
    first = at = 0
    for block in range(lengths.size):
        v, places = sums[first : first + lengths[block]], chosen[at : at + counts[block]]
        total = f64(0)
        for j in range(places.size):
            sizes[j] = i32(f32(v[places[j]]).view(i32) & i32(0x7FFFFFFF))
            total += f64(i32(sizes[j]).view(f32))
        unit = i32(127)
        for j in range(places.size):
            exponent = i32(sizes[j] >> i32(23))
            digits = i32(i32(sizes[j] & i32(0x7FFFFF)) | i32(i32(0x800000) if exponent else i32(0)))
            last = i32(f32(i32(digits & i32(-digits))).view(i32) >> i32(23))  # the lowest bit's exponent and 127
            exponent = i32(i32(last + i32(exponent if exponent else i32(1))) - i32(277))
            unit = exponent if exponent < unit else unit
        middle = total / max(places.size, 1)
        low = high = f64(0)
        above = 0
        for j in range(places.size):
            size = f64(i32(sizes[j]).view(f32))
            up = int(size >= middle)
            low, high, above = low + size * (1 - up), high + size * up, above + up  # no branch: half of them are up
        middles[block], units[block] = middle, unit
        means[2 * block], means[2 * block + 1] = low / max(places.size - above, 1), high / max(above, 1)
        first, at = first + lengths[block], at + counts[block]


@kernel("write float32", "read int64", "read int64", "read int32", "read float64", "read uint32", "write uint8", "void")
def _encode(
    kept: np.ndarray,
    lengths: np.ndarray,
    lowers: np.ndarray,
    chosen: np.ndarray,
    middles: np.ndarray,
    heads: np.ndarray,
    packed: np.ndarray,
) -> None:
    """Write the bits of the chosen numbers, and take them off what is kept."""
    packed[:] = u8(0)
    first = at = behind = 0
    for block in range(lengths.size):
        m, k, lower = lengths[block], int(heads[2 * block + 1]), lowers[block]
        levels, middle = u32(heads[2 * block]), middles[block]
        codes, low = behind, behind + (2 * k + 7) // 8
        high = low + (lower * k + 7) // 8
        behind = high + (k + ((m - 1) >> lower) + 7) // 8 if k else behind
        byte = u32(0)
        for j in range(k):
            place = first + chosen[at + j]
            one = kept[place]
            up, minus = u32(f64(abs(one)) >= middle), u32(f32(one).view(u32) >> u32(31))
            level = u32(u32(levels << u32(u32(1 - up) << u32(4))) & u32(0xFFFF0000))  # no branch: half of them are up
            kept[place] = one - u32(level | u32(minus << u32(31))).view(f32)
            byte |= u32(u32(up | u32(minus << u32(1))) << u32(2 * (j & 3)))
            if j & 3 == 3 or j == k - 1:
                packed[codes], codes, byte = u8(byte), codes + 1, u32(0)
        waiting, filled = u64(0), u64(0)
        for j in range(k):
            place = i64(chosen[at + j])
            upper = (place >> lower) + j
            packed[high + (upper >> 3)] |= u8(1 << (upper & 7))
            waiting |= u64(u64(place & ((1 << lower) - 1)) << filled)
            filled += u64(lower)
            if filled >= u64(32):
                for _ in range(4):
                    packed[low], low, waiting = u8(waiting & u64(255)), low + 1, u64(waiting >> u64(8))
                filled -= u64(32)
        for _ in range((i64(filled) + 7) >> 3):
            packed[low], low, waiting = u8(waiting & u64(255)), low + 1, u64(waiting >> u64(8))
        first, at = first + m, at + k


@kernel("read uint8", "read uint32", "read int64", "read int64", "write float32", "boolean")
def _decode(packed: np.ndarray, heads: np.ndarray, lengths: np.ndarray, lowers: np.ndarray, values: np.ndarray) -> bool:
    """Whether all indices rise and lie within their blocks; the bytes are as many as the heads need."""
    uppers = np.empty(2 * BLOCK + 1, i32)
    first = at = 0
    for block in range(lengths.size):
        m, k, lower = lengths[block], int(heads[2 * block + 1]), lowers[block]
        values[first : first + m] = f32(0)
        low, high = at + (2 * k + 7) // 8, at + (2 * k + 7) // 8 + (lower * k + 7) // 8
        bits = k + ((m - 1) >> lower) if k else 0
        found = 0
        for i in range(bits):
            uppers[found] = i32(i - found)
            found += (packed[high + (i >> 3)] >> (i & 7)) & 1
        if found != k:
            return False
        last, waiting, filled = i64(-1), u64(0), u64(0)
        for j in range(k):
            while filled < u64(lower):
                waiting |= u64(u64(packed[low]) << filled)
                low, filled = low + 1, u64(filled + u64(8))
            place = (i64(uppers[j]) << lower) | i64(waiting & u64((1 << lower) - 1))
            waiting, filled = u64(waiting >> u64(lower)), u64(filled - u64(lower))
            if place <= last or place >= m:
                return False
            code = u32(u32(packed[at + j // 4]) >> u32(2 * (j % 4)))
            level = u32(heads[2 * block] & u32(0xFFFF0000)) if code & u32(1) else u32(heads[2 * block] << u32(16))
            values[first + place] = u32(level | u32(u32(code & u32(2)) << u32(30))).view(f32)
            last = place
        first, at = first + m, high + (bits + 7) // 8
    return True
