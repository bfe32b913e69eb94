"""Only what is large, with the rest kept (Strom 2015, "Scalable Distributed DNN Training Using Commodity GPU Cloud
Computing", section 3).

With r the residual: r <- r + g; of each number with |r| > tau its index and sign are sent, which stand for +tau or
-tau; r <- r - sent. So all that was sent and r together are the sum of all g: exactly, where all of them are multiples
of one power of two. A number that is many times tau goes in as many payloads; where tau is larger than all that ever
gathers nothing is sent. tau is in the gradients' own unit.

Payload, little-endian: float32 tau; then a uint32 for each number sent, indices strictly rising: the index in 31 bits,
and 1 in the highest bit for -tau.

Cost: 4 bytes a number sent; one pass over all of them, and one more over runs of 64 that have something to send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbelief.arrays.jit import kernel
from dbelief.errors import NonFinite

u8, u32, i32, f32 = np.uint8, np.uint32, np.int32, np.float32

_RUN = 64
"""Numbers that are looked over at a time; nearly always nothing of them is sent."""


@dataclass(frozen=True)
class Threshold:
    """+tau or -tau for each number of larger magnitude, nothing for the others.

    Parameters
    ----------
    tau
        Above 0, in gradient units; rounded to float32.
    """

    tau: float
    name: ClassVar[str] = "threshold"
    keeps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < f32(self.tau) < f32(np.inf):
            raise ValueError(f"tau is {self.tau}, must be above 0 and finite in float32")

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """See `Codec`."""
        assert residual is not None, "what does not pass the threshold has to be kept"
        if residual.size != values.size:
            raise ValueError(f"{residual.size} numbers were kept for {values.size}")
        payload = np.empty(1 + values.size, u32)
        payload[:1].view(f32)[0] = self.tau
        count = _encode(values, residual, f32(self.tau), payload[1:])
        if count < 0:
            raise NonFinite("what is to be sent and what was kept of it have no finite sum")
        return payload[: 1 + count].copy().view(u8)

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        if payload.nbytes < 4 or payload.nbytes % 4 or payload.nbytes > 4 + 4 * out.size:
            raise ValueError(f"{payload.nbytes} bytes are not tau and words of at most {out.size} numbers")
        tau = np.frombuffer(payload, f32, 1)[0]
        if not 0 < tau < np.inf:
            raise ValueError(f"a threshold of {tau:g}")
        if not _decode(np.frombuffer(payload, u32, offset=4), tau, out):
            raise ValueError(f"indices that do not rise, or leave the {out.size} numbers there are")


@kernel("read float32", "write float32", "float32", "write uint32", "int64")
def _encode(values: np.ndarray, kept: np.ndarray, tau: np.float32, words: np.ndarray) -> int:
    """How many words were written; -1 where a number is not finite."""
    count = 0
    least = f32(tau).view(i32)
    for first in range(0, values.size, _RUN):
        g, r = values[first : first + _RUN], kept[first : first + _RUN]
        largest = i32(0)  # as bits, which rise with magnitude, up to infinity and NaN
        for i in range(g.size):
            total = r[i] + g[i]
            r[i] = total
            magnitude = i32(f32(total).view(i32) & i32(0x7FFFFFFF))
            largest = magnitude if magnitude > largest else largest
        if largest >= i32(0x7F800000):
            return -1
        if largest > least:
            for i in range(g.size):
                if abs(r[i]) > tau:
                    negative = r[i] < f32(0)
                    words[count] = u32(u32(first + i) | u32(0x80000000 if negative else 0))
                    r[i] -= -tau if negative else tau
                    count += 1
    return count


@kernel("read uint32", "float32", "write float32", "boolean")
def _decode(words: np.ndarray, tau: np.float32, values: np.ndarray) -> bool:
    """Whether all indices rise and lie within the values."""
    values[:] = f32(0)
    last = np.int64(-1)
    for word in words:
        index = np.int64(word & u32(0x7FFFFFFF))
        if index <= last or index >= values.size:
            return False
        values[index] = -tau if word & u32(0x80000000) else tau
        last = index
    return True
