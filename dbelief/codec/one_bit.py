"""One bit a number, with error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3).

With v = g + e, numbers and what earlier payloads left out, of each block:

    high = mean of v where v >= 0 ;  low = mean of v where v < 0 ;  sent: Q(v) = high or low ;  e <- v - Q(v)

so that all that was sent and e together are the sum of all g, to rounding. A block has at most 2,048 numbers and never
reaches from one tensor into another: these are Seide's columns. A mean of no numbers is 0.

Payload, little-endian: pieces as `blocks` has them, with b blocks in all; then

    b times (float32 low, float32 high)
    per block its bits, in so many bytes as hold them                 number i: bit i % 8 of byte i // 8; 1 is high

Cost: n / 8 + 8 b bytes and a little, a 31st of n float32 in full blocks; two passes over a block, which the first cache
holds. The means are summed in float64, in an order that does not depend on the processor (`signs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dbelief.errors import NonFinite

from .blocks import CodedBlocks

BLOCK = 2048
"""Numbers that share their two means."""


class OneBit:
    """The sign of each number, and two means for a block."""

    name: ClassVar[str] = "one-bit"
    keeps: ClassVar[bool] = True

    def encode(self, values: np.ndarray, residual: np.ndarray | None = None, cuts: Sequence[int] = ()) -> np.ndarray:
        """See `Codec`."""
        from . import signs  # brings numba

        assert residual is not None, "what one bit does not encode goes to the residual"
        if residual.size != values.size:
            raise ValueError(f"{residual.size} numbers were kept for {values.size}")
        blocks = CodedBlocks.between(cuts, values.size, BLOCK, 2, 1)
        payload = blocks.payload()
        means = blocks.floats(payload)
        signs.encode(values, residual, blocks.lengths, means, blocks.bits(payload))
        if not np.isfinite(means).all():
            raise NonFinite("what is to be sent and what was kept of it have no finite mean")
        return payload

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        from . import signs  # brings numba

        blocks = CodedBlocks.of(payload, out.size, BLOCK, 2, 1)
        means = blocks.floats(payload)
        if not np.isfinite(means).all():
            raise ValueError("means of one bit that are not finite")
        signs.decode(blocks.bits(payload), means, blocks.lengths, out)
