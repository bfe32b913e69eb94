"""One bit a number, with error feedback (Seide et al. 2014, "1-Bit Stochastic Gradient Descent", section 3).

With v = g + e, numbers and what earlier payloads left out, of each block:

    high = mean of v where v >= 0 ;  low = mean of v where v < 0 ;  sent: Q(v) = high or low ;  e <- v - Q(v)

so that all that was sent and e together are the sum of all g, to rounding. A block has at most 2,048 numbers and never
reaches from one tensor into another: these are Seide's columns. A mean of no numbers is 0.

Payload, little-endian, p pieces of n numbers with b blocks in all:

    uint32 p;  p times uint32, a piece's length, which sum to n       a piece is what lies between two cuts
    b times (float32 low, float32 high)                               a piece has blocks of 2,048, its last one shorter
    per block its bits, in so many bytes as hold them                 number i: bit i % 8 of byte i // 8; 1 is high

Cost: n / 8 + 8 b bytes and a little, a 31st of n float32 in full blocks; two passes over a block, which the first cache
holds. The means are summed in float64, in an order that does not depend on the processor (`signs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dbelief.errors import NonFinite

u8, u32, f32 = np.uint8, np.uint32, np.float32

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
        pieces = np.diff([0, *cuts, values.size])
        blocks = _blocks(pieces)
        means_at = 4 + 4 * pieces.size
        bits_at = means_at + 8 * blocks.size
        payload = np.empty(bits_at + _bytes(blocks), u8)
        head = payload[:means_at].view(u32)
        head[0], head[1:] = pieces.size, pieces
        means = payload[means_at:bits_at].view(f32)
        signs.encode(values, residual, blocks, means, payload[bits_at:])
        if not np.isfinite(means).all():
            raise NonFinite("what is to be sent and what was kept of it have no finite mean")
        return payload

    @staticmethod
    def decode(payload: memoryview, out: np.ndarray) -> None:
        """See `Codec`."""
        from . import signs  # brings numba

        count = int(np.frombuffer(payload, u32, 1)[0]) if payload.nbytes >= 4 else 0
        if not 1 <= count <= out.size or payload.nbytes < 4 + 4 * count:
            raise ValueError(f"{payload.nbytes} bytes in {count} pieces are not {out.size} numbers of one bit")
        pieces = np.frombuffer(payload, u32, count, 4).astype(np.int64)
        if not pieces.all() or pieces.sum() != out.size:
            raise ValueError(f"pieces of one bit that are empty, or together are not {out.size} numbers")
        blocks = _blocks(pieces)
        means_at = 4 + 4 * count
        bits_at = means_at + 8 * blocks.size
        if payload.nbytes != bits_at + _bytes(blocks):
            raise ValueError(f"{payload.nbytes} bytes are not {out.size} numbers of one bit in {blocks.size} blocks")
        means = np.frombuffer(payload, f32, 2 * blocks.size, means_at)
        if not np.isfinite(means).all():
            raise ValueError("means of one bit that are not finite")
        signs.decode(np.frombuffer(payload, u8, offset=bits_at), means, blocks, out)


def _blocks(pieces: np.ndarray) -> np.ndarray:
    """The length of each block of pieces of these lengths."""
    counts = -(-pieces // BLOCK)
    blocks = np.full(int(counts.sum()), BLOCK, np.int64)
    blocks[np.cumsum(counts) - 1] = pieces - (counts - 1) * BLOCK
    return blocks


def _bytes(blocks: np.ndarray) -> int:
    """How many bytes hold the bits of blocks of these lengths."""
    return int((-(-blocks // 8)).sum())
