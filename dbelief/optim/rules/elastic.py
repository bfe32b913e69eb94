"""The elastic rule of the centre: w <- w + a (x - w), where x are a worker's own weights (Zhang et al. 2015, eq. 2).

The other half is the worker's: x <- x - a (x - w) with the same two old values, after which x + w is what it was.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.arrays.streaming_copy import LINE, store_line

from .fused_kernel import fused
from .rule import Rate

_LANES = LINE // 4
"""Numbers of a store."""


@dataclass(frozen=True)
class ElasticMove:
    """w <- w + a (x - w). No state; x stands where other rules have a gradient, a where they have a rate."""

    name: ClassVar[str] = "elastic"
    state: ClassVar[Mapping[str, float]] = {}

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Move w towards g in place, compiled (see `Rule.apply`)."""
        _loop(w, g, rate)

    def exchange(self, w: np.ndarray, x: np.ndarray, before: np.ndarray, rate: np.float32) -> None:
        """Copy w to `before` and move w towards x in one pass, which reads each number once; the same bits as `apply`.

        Parameters
        ----------
        w, x, before
            (n,) float32, contiguous, of which no two overlap; `streaming_copy.streams(before)` holds.

        Raises
        ------
        ValueError
            The arrays are not of one length.
        """
        if not w.size == x.size == before.size:
            raise ValueError(f"w, x and before must be of one length, got {w.size}, {x.size}, {before.size}")
        lines = w.size // _LANES
        _exchange()(before.ctypes.data, w.ctypes.data, x.ctypes.data, np.float32(rate), lines)
        rest = slice(lines * _LANES, None)
        before[rest] = w[rest]
        self.apply_reference(np, w[rest], x[rest], (), rate, 0)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Move w towards g in place, as a formula (see `Rule.apply_reference`)."""
        with np.errstate(all="ignore"):
            w += w.dtype.type(rate) * (g - w)

    def together(self, xp: Any, w: Any, weights: Sequence[Any], rate: Rate) -> None:
        """Move w towards several workers' weights at once, summed in their order (see `move`)."""
        with np.errstate(all="ignore"):
            total = weights[0].copy()
            for x in weights[1:]:
                total += x
            self.move(w, total, len(weights), rate)

    @staticmethod
    def move(w: Any, total: Any, workers: int, rate: Rate) -> None:
        """W <- w + a (total - P w), where `total`, which is used up, is the sum of the weights of P workers."""
        number = w.dtype.type
        total -= number(workers) * w
        total *= number(rate)
        w += total


@fused(states=0, scalars=1)
def _loop(w, g, rate):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        w[i] += rate * (g[i] - w[i])


@functools.cache
def _exchange() -> Callable[[int, int, int, np.float32, int], None]:
    """Compiled loop over lines, with the addresses of before, w and x, the rate, and the number of lines."""
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    from dbelief.arrays.jit import jit

    def line(typing: Any, before: Any, w: Any, x: Any, rate: Any) -> Any:
        def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.VectorType(ir.FloatType(), _LANES)
            there, centre, own = (builder.inttoptr(address, kind.as_pointer()) for address in arguments[:3])
            rates = ir.Constant(kind, ir.Undefined)
            for lane in range(_LANES):
                rates = builder.insert_element(rates, arguments[3], ir.Constant(ir.IntType(32), lane))
            old, new = builder.load(centre, align=4), builder.load(own, align=4)
            store_line(builder, old, there)
            builder.store(builder.fadd(old, builder.fmul(rates, builder.fsub(new, old))), centre, align=4)
            return context.get_dummy_value()

        return types.void(types.uintp, types.uintp, types.uintp, types.float32), made

    move: Any = intrinsic(line)

    def lines(before: int, w: int, x: int, rate: np.float32, count: int) -> None:
        for number in range(count):
            move(before + number * LINE, w + number * LINE, x + number * LINE, rate)

    return jit(lines, "void(uintp, uintp, uintp, float32, intp)")
