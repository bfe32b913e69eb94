"""FTRL-Proximal by coordinate (McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", Algorithm 1).

    z <- z + rate g - (sqrt(n + g^2) - sqrt(n)) w ;  n <- n + g^2
    w <- 0 where |z| <= rate l1, else -(z - sign(z) rate l1) / (beta + sqrt(n) + rate l2)

The rate is the paper's alpha, and z is rate times the paper's: at a constant rate w is the same. It is where
sum(g_i) w + sum(s_i (w - w_i)^2) / 2 + l1 |w| + (beta / rate + l2) w^2 / 2 is least, over all pushes i, with
s_i = (sqrt(n_i) - sqrt(n_(i-1))) / rate: so a large l1 makes most numbers exactly 0. Where the rate changes, a push
counts by the rate that it had; without l1, l2 and beta that is Adagrad. l1 and l2 act by the present rate.

One choice of ours: no step where n = 0, so that a number keeps its initial value until its first gradient; the paper
starts at w = 0. In float32 n is 0 below |g| = 2.6e-23.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .options import at_least_zero
from .rule import Rate


@dataclass(frozen=True)
class Ftrl:
    """Follow the regularised leader, with one rate per coordinate.

    Parameters
    ----------
    beta
        Added to the root of the sum of squares, in gradient units; the paper takes 1.
    l1, l2
        Factors of the penalties |w| and w^2 / 2, summed over all pushes.
    """

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    name: ClassVar[str] = "ftrl"
    state: ClassVar[Mapping[str, float]] = {"shifted_sum": 0.0, "sum_of_squares": 0.0}

    def __post_init__(self) -> None:
        at_least_zero(self.name, beta=self.beta, l1=self.l1, l2=self.l2)

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w, z and n in place, compiled (see `Rule.apply`)."""
        _loop(w, g, *states, *self._scalars(rate))

    def _scalars(self, rate: Rate) -> tuple[float, ...]:
        return float(rate), self.beta, float(rate) * self.l1, float(rate) * self.l2

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Update w, z and n in place, as a formula (see `Rule.apply_reference`)."""
        pace, beta, l1, l2 = map(w.dtype.type, self._scalars(rate))
        z, n = states
        with np.errstate(all="ignore"):
            before = xp.sqrt(n)
            n += g * g
            root = xp.sqrt(n)
            z += pace * g - (root - before) * w
            least = -(z - xp.where(z > 0, l1, -l1)) / (beta + root + l2)
            w[...] = xp.where(n == 0, w, xp.where(xp.abs(z) <= l1, w.dtype.type(0), least))


@fused(states=2, scalars=4)
def _loop(w, g, z, n, rate, beta, l1, l2):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        before = np.sqrt(n[i])
        squares = n[i] + g[i] * g[i]
        root = np.sqrt(squares)
        shifted = z[i] + (rate * g[i] - (root - before) * w[i])
        n[i], z[i] = squares, shifted
        # Computing all and choosing after keeps the loop free of branches, so that it becomes vector code.
        least = -(shifted - (l1 if shifted > np.float32(0) else -l1)) / (beta + root + l2)
        chosen = np.float32(0) if abs(shifted) <= l1 else least
        w[i] = w[i] if squares == np.float32(0) else chosen
