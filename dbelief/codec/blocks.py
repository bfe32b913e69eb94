"""What codecs by blocks share: pieces of a payload, one for each tensor, and the blocks that each is cut into.

A block never reaches from one tensor into another. A payload begins, little-endian, with

    uint32 p;  p times uint32, a piece's length, which sum to n       a piece is what lies between two cuts

and a piece has blocks of one length, its last one shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

u8, u32 = np.uint8, np.uint32


class CodedBlocks:
    """The blocks of n numbers, and the place of what a payload holds of them.

    Parameters
    ----------
    pieces
        Lengths of the pieces, each at least 1.
    block
        Numbers of a full block.
    floats, bits
        float32 that a payload has for each block, and bits for each number; 0: these depend on the block.

    Attributes
    ----------
    lengths
        Numbers of each block: int64.
    """

    def __init__(self, pieces: np.ndarray, block: int, floats: int, bits: int = 0) -> None:
        counts = -(-pieces // block)
        self.lengths = np.full(int(counts.sum()), block, np.int64)
        self.lengths[np.cumsum(counts) - 1] = pieces - (counts - 1) * block
        self._pieces, self._floats_at = pieces, 4 + 4 * pieces.size
        self._bits_at = self._floats_at + 4 * floats * self.lengths.size
        self.nbytes = self._bits_at + int((-(-bits * self.lengths // 8)).sum())

    @classmethod
    def between(cls, cuts: Sequence[int], n: int, block: int, floats: int, bits: int = 0) -> CodedBlocks:
        """Blocks of n numbers with these cuts."""
        return cls(np.diff([0, *cuts, n]), block, floats, bits)

    @classmethod
    def of(cls, payload: memoryview, n: int, block: int, floats: int, bits: int = 0) -> CodedBlocks:
        """Blocks that a payload of n numbers has.

        Raises
        ------
        ValueError
            Its pieces are not n numbers, or it is longer or shorter than they need.
        """
        count = int(np.frombuffer(payload, u32, 1)[0]) if payload.nbytes >= 4 else 0
        if not 1 <= count <= n or payload.nbytes < 4 + 4 * count:
            raise ValueError(f"{payload.nbytes} bytes in {count} pieces are not {n} numbers in blocks")
        pieces = np.frombuffer(payload, u32, count, 4).astype(np.int64)
        if not pieces.all() or pieces.sum() != n:
            raise ValueError(f"pieces that are empty, or together are not {n} numbers")
        made = cls(pieces, block, floats, bits)
        if payload.nbytes < made.nbytes or (bits and payload.nbytes > made.nbytes):
            raise ValueError(f"{payload.nbytes} bytes are not {n} numbers in {made.lengths.size} blocks")
        return made

    def payload(self, more: int = 0) -> np.ndarray:
        """A payload with its pieces written; the rest, and `more` bytes behind it, is uninitialised."""
        made = np.empty(self.nbytes + more, u8)
        head = made[: self._floats_at].view(u32)
        head[0], head[1:] = self._pieces.size, self._pieces
        return made

    def floats(self, payload: memoryview | np.ndarray) -> np.ndarray:
        """float32 of all blocks, a view."""
        return np.frombuffer(payload, u8)[self._floats_at : self._bits_at].view(np.float32)

    def bits(self, payload: memoryview | np.ndarray) -> np.ndarray:
        """uint8 that hold the numbers' bits, each block from a byte of its own on; a view."""
        return np.frombuffer(payload, u8)[self._bits_at :]
