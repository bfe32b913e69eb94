"""The CUDA sources beside this file, and how they are compiled for a layer.

`blocks.cu` has the kernels, `copies.cu` the three instructions in them that only a CUDA device has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path

FOLDER = Path(__file__).parent

ROWS_AT_A_TIME = 16
"""BF of blocks.cu: numbers of neurons that a box in shared memory holds."""

STAGES = 3
"""Boxes in shared memory: one is multiplied while two are fetched."""


@dataclass(frozen=True)
class KernelPart:
    """What a block of threads computes of W^T y (`blocks.cu`): BQ x BM numbers, a thread QC x MC patches of QV x MV.

    Sums, and what they are made of, are in registers; shared memory is at most 48 KiB, which needs no permission.
    """

    BQ: int
    BM: int
    QV: int = 4
    QC: int = 2
    MV: int = 4
    MC: int = 2

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.BQ * self.BM // (self.QV * self.QC * self.MV * self.MC)

    def count(self, q: int, m: int) -> int:
        """Parts that a tile of q x m numbers has."""
        return math.ceil(q / self.BQ) * math.ceil(m / self.BM)


# Whole warps each. 48 and 288 are the numbers in a tile, 96 the batch of Coates et al.: 288 is 3 x 96.
PARTS = (
    KernelPart(128, 128),
    KernelPart(128, 96),
    KernelPart(96, 128, QV=2, QC=3),
    KernelPart(96, 96, QV=2, QC=3),
    KernelPart(48, 128),
    KernelPart(48, 96, MV=2, MC=3),
    KernelPart(64, 64),
)


def choose_part(q: int, m: int) -> KernelPart:
    """Choose the part that computes the least beyond a tile of q x m numbers; the largest of those."""
    return min(PARTS, key=lambda part: (part.count(q, m) * part.BQ * part.BM, -part.BQ * part.BM))


def source() -> str:
    """All of the CUDA code."""
    return "\n".join((FOLDER / name).read_text() for name in ("copies.cu", "blocks.cu"))


def options(part: KernelPart, vector: int) -> tuple[str, ...]:
    """Give the compiler's options: the part, and how many numbers are moved at once (4 or 1)."""
    constants = {field.name: getattr(part, field.name) for field in fields(part)}
    constants |= {"BF": ROWS_AT_A_TIME, "STAGES": STAGES, "VECTOR": vector}
    return "-std=c++17", *(f"-D{name}={value}" for name, value in constants.items())
