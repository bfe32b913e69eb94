"""Heavy-ball momentum in Caffe's sense: v <- mu v + rate (g + weight_decay w); w <- w - v.

The rate stands inside the velocity, which is in units of the parameters: what was gathered at one rate is walked off at
that rate after it has changed. While the rate is constant this is `momentum` with a velocity rate times as long. The
settings of FireCaffe (Iandola et al. 2016, section 7.1) are in this sense. The decay is that of `sgd`.

Source: SGDSolver::ComputeUpdateValue and Regularize of Caffe (Jia et al. 2014).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .momentum import Momentum


@dataclass(frozen=True)
class CaffeMomentum(Momentum):
    """v <- mu v + rate (g + weight_decay w); w <- w - v, from v = 0; mu and weight_decay as in `Momentum`."""

    name: ClassVar[str] = "caffe-momentum"

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w and v in place, compiled (see `Rule.apply`)."""
        _loop(w, g, *states, rate, self.mu, self.weight_decay)

    def apply_reference(
        self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: float | np.floating[Any], step: int
    ) -> None:
        """Update w and v in place, as a formula (see `Rule.apply_reference`)."""
        number = w.dtype.type
        (v,) = states
        with np.errstate(all="ignore"):
            v *= number(self.mu)
            v += number(rate) * (g + number(self.weight_decay) * w)
            w -= v


@fused(states=1, scalars=3)
def _loop(w, g, v, rate, mu, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        v[i] = mu * v[i] + rate * (g[i] + weight_decay * w[i])
        w[i] -= v[i]
