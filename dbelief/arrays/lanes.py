"""Sums in an order fixed by the source, in loops over rows of numbers; importing this module imports numba.

A processor adds as many numbers at once as its registers hold. Left to the compiler, the order of a sum, and with it
the last bits, would depend on the processor. So the lanes are explicit: number i of an array belongs to lane i % n,
each lane adds its numbers by ascending index, and in the end the upper half of the lanes is added to the lower half
until one is left. Numbers after the last complete row are added one by one. LLVM maps a row to the available registers;
as no instruction has a fast-math flag, it neither reorders a sum nor contracts x * y + z to one rounding.

numba's cache checks only the file of a compiled loop: after an edit here, delete the cached loops of other files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Partial sums of `dot` and `norm1`: four registers of AVX2."""

Step = Callable[..., Sequence[Any]]


def rows(lanes: int, totals: Sequence[ir.Type], step: Step) -> Callable[..., Any]:
    """Code of an intrinsic that sums (n,) arrays over their first n // lanes * lanes numbers.

    Parameters
    ----------
    lanes
        Numbers of a row, a power of two.
    totals
        LLVM types of the sums, which start at 0; with more than one the intrinsic returns a tuple.
    step
        `step(builder, *pointers)`: called once, with a pointer to the current row of each array; returns a vector of
        `lanes` for each sum.
    """

    def made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds = zip(signature.args, arguments, strict=True)
        arrays = [context.make_array(kind)(context, builder, value) for kind, value in kinds]
        starts = [builder.bitcast(array.data, _row(array.data.type.pointee, lanes)) for array in arrays]
        zeros = [ir.Constant(ir.VectorType(kind, lanes), [kind(0)] * lanes) for kind in totals]
        sums = [cgutils.alloca_once_value(builder, zero) for zero in zeros]  # type: ignore[no-untyped-call]
        size = builder.extract_value(arrays[0].shape, 0)
        with cgutils.for_range(builder, builder.udiv(size, size.type(lanes))) as loop:
            here = [builder.gep(start, [loop.index]) for start in starts]
            for place, terms in zip(sums, step(builder, *here), strict=True):
                builder.store(_add(builder, builder.load(place), terms), place)
        scalars = [_fold(builder, builder.load(place)) for place in sums]
        return scalars[0] if len(scalars) == 1 else context.make_tuple(builder, signature.return_type, scalars)

    return made


def _row(kind: ir.Type, lanes: int) -> ir.Type:
    """Pointer to a row of numbers; a row of bits is one integer."""
    return (ir.IntType(lanes) if isinstance(kind, ir.IntType) else ir.VectorType(kind, lanes)).as_pointer()


def _add(builder: Any, one: Any, other: Any) -> Any:
    return (builder.add if isinstance(one.type.element, ir.IntType) else builder.fadd)(one, other)


def _fold(builder: Any, lanes: Any) -> Any:
    """Sum of a vector: its upper half is added to its lower half until one number is left."""
    index = ir.IntType(32)
    half = lanes.type.count // 2
    while half:
        parts = [[index(first + lane) for lane in range(half)] for first in (0, half)]
        lower, upper = (
            builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(index, half), part)) for part in parts
        )
        lanes, half = _add(builder, lower, upper), half // 2
    return builder.extract_element(lanes, index(0))


def wide(builder: Any, values: Any) -> Any:
    """Convert a vector of float32 or float64 to float64."""
    target = ir.VectorType(ir.DoubleType(), values.type.count)
    return values if values.type == target else builder.fpext(values, target)


def _products(builder: Any, x: Any, y: Any) -> Sequence[Any]:
    return [builder.fmul(*(wide(builder, builder.load(place, align=1)) for place in (x, y)))]


def _magnitudes(builder: Any, x: Any) -> Sequence[Any]:
    values = wide(builder, builder.load(x, align=1))
    kind = ir.FunctionType(values.type, [values.type])
    magnitude = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.v{LANES}f64")  # type: ignore[no-untyped-call]
    return [builder.call(magnitude, [values])]


def _typed_dot(typing: Any, x: Any, y: Any) -> Any:
    return types.float64(x, y), rows(LANES, [ir.DoubleType()], _products)


def _typed_norm1(typing: Any, x: Any) -> Any:
    return types.float64(x), rows(LANES, [ir.DoubleType()], _magnitudes)


_dot_of_rows: Any = intrinsic(_typed_dot)
_norm1_of_rows: Any = intrinsic(_typed_norm1)


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Sum of x y in float64, of contiguous (n,) float32 or float64; for compilation by numba."""
    total: float = _dot_of_rows(x, y)
    for i in range(x.size // LANES * LANES, x.size):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


def norm1(x: np.ndarray) -> float:
    """Sum of |x| in float64, of contiguous (n,) float32 or float64; for compilation by numba."""
    total: float = _norm1_of_rows(x)
    for i in range(x.size // LANES * LANES, x.size):
        total += abs(np.float64(x[i]))
    return total
