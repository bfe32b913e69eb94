"""Adagrad with one sum a row of a table (row-wise Adagrad: Naumov et al. 2019, "Deep Learning Recommendation Model",
section 4; as in FBGEMM, the sum is of the mean over the row).

    A <- A + mean(g^2) ;  w_i <- w_i - rate g_i / (sqrt(A) + eps) ;  no step where A = 0

A row of width w keeps one number beside it, where Adagrad keeps w. The squares of a row are summed in float64, from the
first to the last, so that every processor gives the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.arrays.jit import kernel

from .options import at_least_zero
from .rule import Rate

f32, f64 = np.float32, np.float64
u64 = np.uint64  # of places, which do not count from the end: the loop becomes vector code


@dataclass(frozen=True)
class RowAdagrad:
    """A <- A + mean(g^2); w <- w - rate g / (sqrt(A) + eps), from A = a0. A rule of tables only: see `by_row`.

    Parameters
    ----------
    eps, a0
        As of `Adagrad`.
    """

    eps: float = 0.0
    a0: float = 0.0
    name: ClassVar[str] = "row-adagrad"
    by_row: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least_zero(self.name, eps=self.eps, a0=self.a0)

    @property
    def state(self) -> Mapping[str, float]:
        """The sums start at a0; one number a row."""
        return {"mean_of_squares": self.a0}

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update rows in place, compiled: w and g are (rows x width,), row by row, and the state is (rows,).

        Raises
        ------
        ValueError
            Their lengths do not fit each other.
        """
        (sums,) = states
        if w.size != g.size or (sums.size and w.size % sums.size) or (w.size and not sums.size):
            raise ValueError(f"{w.size} numbers and {g.size} of a gradient are not {sums.size} rows")
        if sums.size:
            _loop(w, g, sums, f32(rate), f32(self.eps))

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Update rows in place, as a formula."""
        number, (sums,) = w.dtype.type, states
        if not sums.size:
            return
        rows, gradients = w.reshape(sums.size, -1), g.reshape(sums.size, -1)
        with np.errstate(all="ignore"):
            squares = xp.cumsum(gradients.astype(xp.float64) ** 2, axis=1)[:, -1]
            sums += (squares / gradients.shape[1]).astype(w.dtype)
            pace = xp.where(sums == 0, number(0), number(rate) / (xp.sqrt(sums) + number(self.eps)))
            rows -= pace[:, None] * gradients


@kernel("write float32", "read float32", "write float32", "float32", "float32", "void")
def _loop(w: np.ndarray, g: np.ndarray, sums: np.ndarray, rate: float, eps: float) -> None:
    width = w.size // sums.size
    for row in range(sums.size):
        first, squares = u64(row * width), f64(0)
        for i in range(width):
            squares += f64(g[u64(first + u64(i))]) * f64(g[u64(first + u64(i))])
        sums[row] += f32(squares / f64(width))
        pace = f32(0) if sums[row] == f32(0) else f32(rate / f32(np.sqrt(sums[row]) + eps))
        for i in range(width):
            w[u64(first + u64(i))] -= pace * g[u64(first + u64(i))]
