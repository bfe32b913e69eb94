"""Packed rows of a table, for pushes: keys as they are, and numbers by fp16, by bf16, or by int8 with a scale a row.

Packed rows are one float32 array of n (2 + width) numbers: n int64 keys in the bits of the first 2 n, then n rows.

int8 keeps nothing for later pushes, as a push has other rows each time, and a residual of every row would be a second
table. It rounds by chance instead (Alistarh et al. 2017, "QSGD", section 3.1). Of each row g, with u uniform in
[-1/2, 1/2) for each number:

    s = max |g| / 127 ;  q = g / s + u, rounded to the nearest, ties to even ;  sent: q s

so that a number is off by s at most, to rounding, and on average by nothing. Where s would be smaller than float32's
normal numbers it is 0, and the row is sent as zeros.

Payload, little-endian: uint32 n; n keys of 8 bytes; then the numbers of all rows as `float16` or `bfloat16` write them,
or, of int8, float32 s of each row and then each q, a byte in two's complement.

Cost of a row: 8 bytes, and 2 a number; of int8 12 bytes, and 1 a number; three passes in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dbelief.errors import NonFinite

from .bfloat16 import BFloat16
from .codec import Decode
from .float16 import SCALE_BYTES, Float16

u8, u32, i8, f32 = np.uint8, np.uint32, np.int8, np.float32

_HEAD = 4
_SMALLEST, _LARGEST = f32(2.0**-126), f32(2.0**121)
"""Of scales: 127 times the largest is finite."""


def encode(name: str, packed: np.ndarray, width: int, noise: np.ndarray | None = None) -> np.ndarray:
    """Encode packed rows; the same rows and noise give the same payload.

    Parameters
    ----------
    name
        "fp16", "bf16" or "int8".
    packed
        (n (2 + width),) float32, n at least 1; left as they are.
    noise
        Of int8: (n, width) float32, uniform in [-1/2, 1/2).

    Returns
    -------
    uint8 array
        The payload, in memory of its own.

    Raises
    ------
    NonFinite
        Of int8: a number is NaN or infinite.
    """
    count = packed.size // (2 + width)
    keys, rows = packed[: 2 * count].view(u8), packed[2 * count :]
    if name == "int8":
        assert noise is not None, "int8 rounds by chance"
        numbers = _to_int8(rows.reshape(count, width), noise)
    else:
        numbers = _ENCODERS[name](rows)
    return np.concatenate([np.array([count], u32).view(u8), keys, numbers])


def decode(name: str, payload: memoryview, out: np.ndarray) -> None:
    """Write packed rows from a payload; nothing outside `out` is ever touched, whatever the payload.

    Parameters
    ----------
    out
        float32, of the length of the packed rows.

    Raises
    ------
    ValueError
        The payload holds no packed rows of this length, and says why.
    """
    count = int(np.frombuffer(payload, u32, 1)[0]) if payload.nbytes >= _HEAD else 0
    first, stop = 2 * count, _HEAD + 8 * count
    if not count or payload.nbytes < stop or out.size <= first or (out.size - first) % count:
        raise ValueError(f"{payload.nbytes} bytes with {count} keys are not {out.size} numbers of packed rows")
    out[:first].view(u8)[:] = np.frombuffer(payload, u8, 8 * count, _HEAD)
    rows = out[first:]
    if name == "int8":
        _from_int8(payload[stop:], rows.reshape(count, -1))
    else:
        _DECODERS[name](payload[stop:], rows)


def payload_bytes(name: str, count: float, width: int) -> float:
    """Bytes of the payload of so many rows; `count` may be a mean, with a fraction."""
    bits = 4 * count + count * width if name == "int8" else _SCALES[name] + 2 * count * width
    return _HEAD + 8 * count + bits


def _to_int8(rows: np.ndarray, noise: np.ndarray) -> np.ndarray:
    largest = np.abs(rows).max(axis=1)
    if not np.isfinite(largest).all():
        raise NonFinite("rows that are to be sent are not finite")
    scales = np.minimum(largest / f32(127), _LARGEST)
    scales[scales < _SMALLEST] = 0
    whole = np.rint(rows / np.where(scales > 0, scales, f32(np.inf))[:, None] + noise)
    return np.concatenate([scales.view(u8), np.clip(whole, -127, 127).astype(i8).view(u8).reshape(-1)])


def _from_int8(payload: memoryview, rows: np.ndarray) -> None:
    if payload.nbytes != 4 * len(rows) + rows.size:
        raise ValueError(f"{payload.nbytes} bytes are not {len(rows)} scales and {rows.size} whole numbers of rows")
    scales = np.frombuffer(payload, f32, len(rows))
    if not ((scales >= 0) & (scales <= _LARGEST)).all():
        raise ValueError("scales of rows that are negative, or larger than any sender's")
    np.multiply(np.frombuffer(payload, i8, offset=4 * len(rows)).reshape(rows.shape), scales[:, None], out=rows)


_ENCODERS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"fp16": Float16().encode, "bf16": BFloat16().encode}
_DECODERS: Mapping[str, Decode] = {"fp16": Float16.decode, "bf16": BFloat16.decode}
_SCALES: Mapping[str, int] = {"fp16": SCALE_BYTES, "bf16": 0}
"""Bytes of what such a codec writes before the numbers."""
NAMES = ("fp16", "bf16", "int8")
"""Of the codecs, in job files."""
