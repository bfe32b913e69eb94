"""Momentum in three senses: heavy-ball, Caffe's, and Nesterov's. The decay is that of `sgd`.

`momentum` is torch.optim.SGD(momentum=mu): the rate stands outside the velocity, so a change of rate acts on the whole
velocity at once.

`caffe-momentum` has the rate inside the velocity, which is in units of the parameters: what was gathered at one rate is
walked off at that rate after it has changed. While the rate is constant this is `momentum` with a velocity rate times
as long. The settings of FireCaffe (Iandola et al. 2016, section 7.1) are in this sense. Source:
SGDSolver::ComputeUpdateValue and Regularize of Caffe (Jia et al. 2014).

`nesterov` is torch.optim.SGD(momentum=mu, nesterov=True), after Sutskever et al. 2013: w is where the next gradient is
computed, so the step looks ahead along the velocity that this gradient has changed already. The rate stands outside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.arrays.jit import Loop

from .fused_kernel import fused
from .options import at_least_zero, below_one
from .rule import Rate


@fused(states=1, scalars=3)
def _heavy_ball(w, g, v, rate, mu, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        v[i] = mu * v[i] + (g[i] + weight_decay * w[i])
        w[i] -= rate * v[i]


@fused(states=1, scalars=3)
def _caffe(w, g, v, rate, mu, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        v[i] = mu * v[i] + rate * (g[i] + weight_decay * w[i])
        w[i] -= v[i]


@fused(states=1, scalars=3)
def _nesterov(w, g, v, rate, mu, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        d = g[i] + weight_decay * w[i]
        velocity = mu * v[i] + d
        v[i] = velocity
        w[i] -= rate * (d + mu * velocity)


@dataclass(frozen=True)
class Momentum:
    """v <- mu v + (g + weight_decay w); w <- w - rate v, from v = 0.

    Parameters
    ----------
    mu : float
        Share of the velocity that is kept, 0 <= mu < 1.
    weight_decay : float
        Multiple of w that is added to a gradient.
    """

    mu: float = 0.9
    weight_decay: float = 0.0
    name: ClassVar[str] = "momentum"
    state: ClassVar[Mapping[str, float]] = {"velocity": 0.0}
    loop: ClassVar[Loop] = staticmethod(_heavy_ball)

    def __post_init__(self) -> None:
        below_one(self.name, mu=self.mu)
        at_least_zero(self.name, weight_decay=self.weight_decay)

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w and v in place, compiled (see `Rule.apply`)."""
        self.loop(w, g, *states, rate, self.mu, self.weight_decay)

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Update w and v in place, as a formula (see `Rule.apply_reference`)."""
        number = w.dtype.type
        with np.errstate(all="ignore"):
            self._update(w, g + number(self.weight_decay) * w, states[0], number(rate), number(self.mu))

    def _update(self, w: Any, d: Any, v: Any, rate: Any, mu: Any) -> None:
        """Update w and v in place, with d = g + weight_decay w."""
        v *= mu
        v += d
        w -= rate * v


@dataclass(frozen=True)
class CaffeMomentum(Momentum):
    """v <- mu v + rate (g + weight_decay w); w <- w - v, from v = 0; mu and weight_decay as in `Momentum`."""

    name: ClassVar[str] = "caffe-momentum"
    loop: ClassVar[Loop] = staticmethod(_caffe)

    def _update(self, w: Any, d: Any, v: Any, rate: Any, mu: Any) -> None:
        """Update w and v in place, with d = g + weight_decay w."""
        v *= mu
        v += rate * d
        w -= v


@dataclass(frozen=True)
class Nesterov(Momentum):
    """v <- mu v + d; w <- w - rate (d + mu v), d = g + weight_decay w, from v = 0; options as in `Momentum`."""

    name: ClassVar[str] = "nesterov"
    loop: ClassVar[Loop] = staticmethod(_nesterov)

    def _update(self, w: Any, d: Any, v: Any, rate: Any, mu: Any) -> None:
        """Update w and v in place, with d = g + weight_decay w."""
        v *= mu
        v += d
        w -= rate * (d + mu * v)
