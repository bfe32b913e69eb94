"""Adagrad as each shard of DistBelief runs it (Dean et al. 2012, section 4.1, unnumbered equation).

    A_i <- A_i + g_i^2 ;  w_i <- w_i - rate (g_i / sqrt(A_i)) ;  no step where A_i = 0

g is what was pushed, be it one gradient or a sum of several; the sum includes the current one. The paper has
no epsilon. Two choices of ours: the quotient comes first, so that the first step is exactly rate sign(g); and
0 / 0 := 0, asked of A and not of g, since in float32 g^2 is 0 below |g| = 2.6e-23.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .options import at_least_zero
from .rule import Rate


@dataclass(frozen=True)
class Adagrad:
    """A <- A + g^2; w <- w - rate (g / (sqrt(A) + eps)), from A = a0.

    Parameters
    ----------
    eps : float
        Added outside the root, as torch and Keras do; the paper's rule has 0.
    a0 : float
        Value every A starts with (TensorFlow: 0.1); the paper's rule has 0.
    """

    eps: float = 0.0
    a0: float = 0.0
    name: ClassVar[str] = "adagrad"

    def __post_init__(self) -> None:
        at_least_zero(self.name, eps=self.eps, a0=self.a0)

    @property
    def state(self) -> Mapping[str, float]:
        """The sums start at a0."""
        return {"sum_of_squares": self.a0}

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w and A in place, compiled (see `Rule.apply`)."""
        _loop(w, g, *states, rate, self.eps)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Update w and A in place, as a formula (see `Rule.apply_reference`)."""
        number = w.dtype.type
        (a,) = states
        with np.errstate(all="ignore"):
            a += g * g
            quotient = g / (xp.sqrt(a) + number(self.eps))
            w -= number(rate) * xp.where(a == 0, number(0), quotient)


@fused(states=1, scalars=2)
def _loop(w, g, a, rate, eps):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        sum_of_squares = a[i] + g[i] * g[i]
        a[i] = sum_of_squares
        quotient = g[i] / (np.sqrt(sum_of_squares) + eps)
        # Dividing first and choosing after keeps the loop free of branches, so that it becomes vector code.
        w[i] -= rate * (np.float32(0) if sum_of_squares == np.float32(0) else quotient)
