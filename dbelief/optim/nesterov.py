"""Nesterov's momentum: v <- mu v + d; w <- w - rate (d + mu v), with d = g + weight_decay w.

This is the sense of torch.optim.SGD(momentum=mu, nesterov=True), after Sutskever et al. 2013: w is where the next
gradient is computed, so the step looks ahead along the velocity that this gradient has changed already. As with
heavy-ball momentum the rate stands outside the velocity.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .momentum import Momentum


@dataclass(frozen=True)
class Nesterov(Momentum):
    """v <- mu v + d; w <- w - rate (d + mu v), d = g + weight_decay w, from v = 0; options as in `Momentum`."""

    name: ClassVar[str] = "nesterov"

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
            d = g + number(self.weight_decay) * w
            v *= number(self.mu)
            v += d
            w -= number(rate) * (d + number(self.mu) * v)


@fused(states=1, scalars=3)
def _loop(w, g, v, rate, mu, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        d = g[i] + weight_decay * w[i]
        velocity = mu * v[i] + d
        v[i] = velocity
        w[i] -= rate * (d + mu * velocity)
