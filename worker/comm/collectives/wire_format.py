"""Wire formats of numbers between ranks: unchanged, or in 16 bits and added in float32.

Rounding for sending has a relative error of 2^-11 in float16 and 2^-8 in bfloat16 (round to nearest even). The largest
float16 is 65,504, and greater numbers become infinite; below 6.1e-5 the absolute error is up to 2^-25 instead. bfloat16
is float32's upper half and has float32's range. A NaN stays a NaN. Source: FireCaffe, section 8.2.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Wire = Literal["float16", "bfloat16"]


class Float32Format:
    """Numbers of any dtype, sent without a copy: `packed` is `numbers`, except for received summands."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def pack(self, numbers: Any, packed: Any) -> None:
        """Write `numbers` into `packed`: nothing, both are one array."""

    def unpack(self, packed: Any, numbers: Any) -> None:
        """Write `packed` into `numbers`: nothing, both are one array."""

    def add(self, packed: Any, numbers: Any) -> None:
        """Add `packed` to `numbers` in their own dtype."""
        numbers += packed


class Float16Format:
    """float32 as IEEE half precision: 11 bits of significand, 5 of exponent."""

    dtype = np.dtype(np.float16)

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def pack(self, numbers: Any, packed: Any) -> None:
        """Round to float16."""
        with np.errstate(over="ignore"):
            self._xp.copyto(packed, numbers, casting="same_kind")

    def unpack(self, packed: Any, numbers: Any) -> None:
        """Convert to float32; exact."""
        self._xp.copyto(numbers, packed)

    def add(self, packed: Any, numbers: Any) -> None:
        """Add in float32."""
        numbers += packed


class BFloat16Format:
    """float32's upper half, rounded: 8 bits of significand, 8 of exponent; in NumPy the bits are stored as uint16.

    Parameters
    ----------
    most
        Maximum number of elements in one call; scratch buffers of this size are kept.
    """

    dtype = np.dtype(np.uint16)

    def __init__(self, xp: Any, most: int) -> None:
        self._xp = xp
        self._bits = xp.empty(most, np.uint32)
        self._unequal = xp.empty(most, np.bool_)

    def pack(self, numbers: Any, packed: Any) -> None:
        """Round: add half a unit of the kept bits, slightly less where they are even, and truncate."""
        whole = numbers.view(np.uint32)
        bits, unequal = self._bits[: whole.size], self._unequal[: whole.size]
        self._xp.right_shift(whole, 16, out=bits)
        bits &= 1
        bits += 0x7FFF
        bits += whole
        bits >>= 16
        packed[...] = bits
        self._xp.not_equal(numbers, numbers, out=unequal)  # a NaN, whose bits may have overflowed
        self._xp.copyto(packed, np.uint16(0x7FC0), where=unequal)

    def unpack(self, packed: Any, numbers: Any) -> None:
        """Convert to float32; exact."""
        whole = numbers.view(np.uint32)
        whole[...] = packed
        whole <<= 16

    def add(self, packed: Any, numbers: Any) -> None:
        """Add in float32."""
        bits = self._bits[: packed.size]
        bits[...] = packed
        bits <<= 16
        numbers += bits.view(np.float32)


Format = Float32Format | Float16Format | BFloat16Format
"""Converts numbers to what is sent, of its `dtype`, and back; `numbers` and `packed` have the same size."""


def make_format(xp: Any, dtype: Any, wire: Wire | None, most: int) -> Format:
    """Return the format of a name; None sends numbers unchanged.

    Raises
    ------
    ValueError
        There is no such format, or the numbers to be sent in 16 bits are not float32.
    """
    if wire is None:
        return Float32Format(dtype)
    if wire not in ("float16", "bfloat16"):
        raise ValueError(f"wire is {wire!r}, must be float16, bfloat16 or None")
    if np.dtype(dtype) != np.float32:
        raise ValueError(f"wire is {wire}: what is sent in 16 bits must be float32, not {np.dtype(dtype)}")
    return Float16Format(xp) if wire == "float16" else BFloat16Format(xp, most)
