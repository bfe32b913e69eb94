"""Initial values of layers: uniform numbers, of which any range can be drawn without those before it.

`numpy.random.Generator.random` makes a float32 from 32 bits, two from each step of PCG64, and PCG64 can be advanced by
any number of steps at once. So number i of a tensor is a function of the seed and of its position among all numbers
that are drawn, in whatever order and in however many threads they are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.core.layout import Range

_PER_STEP = 2
"""Float32 that a step of the generator gives."""


class UniformTensor(NamedTuple):
    """So many numbers, drawn uniformly from ±limit; zeros where it is None."""

    size: int
    limit: float | None


def draw_uniform(rng: np.random.Generator, limit: float, out: np.ndarray) -> np.ndarray:
    """Overwrite contiguous float32 `out` with the next numbers of `rng`, uniform in ±limit; returns it."""
    rng.random(out=out, dtype=np.float32)
    out *= 2.0 * limit
    out -= limit
    return out


class UniformValues:
    """Initial values of a network, drawn where they are read (`PushSource`); safe to use from several threads.

    Parameters
    ----------
    tensors
        In the order of the flat vector. The first drawn one begins with the first number of the generator.
    seed
        Of `numpy.random.default_rng`.
    """

    def __init__(self, tensors: Sequence[UniformTensor], seed: int) -> None:
        self._tensors, self._seed = tuple(tensors), seed

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """Yield the numbers of each range; a block is valid until the next iteration.

        Cost: some 4 ns for each number, which is drawn again in another iteration; memory of the longest range.
        """
        buffer = aligned(max((stop - start for start, stop in ranges), default=0), np.float32)
        for start, stop in ranges:
            yield self.draw(start, buffer[: stop - start])

    def draw(self, start: int, out: np.ndarray) -> np.ndarray:
        """Overwrite (n,) float32 `out` with n numbers of the flat vector from `start` on; returns it."""
        first = drawn_before = 0  # number of the flat vector, and how many were drawn before it
        for size, limit in self._tensors:
            begin, end = max(start, first), min(start + len(out), first + size)
            if begin < end:
                part = out[begin - start : end - start]
                if limit is None:
                    part.fill(0)
                else:
                    draw_uniform(_generator_at(self._seed, drawn_before + begin - first), limit, part)
            first += size
            drawn_before += size if limit is not None else 0
        return out


def _generator_at(seed: int, position: int) -> np.random.Generator:
    """The generator of this seed, after so many float32."""
    generator = np.random.default_rng(seed)
    steps, odd = divmod(position, _PER_STEP)
    generator.bit_generator.advance(steps)  # type: ignore[attr-defined]  # PCG64 has it, not every bit generator
    generator.random(odd, dtype=np.float32)
    return generator
