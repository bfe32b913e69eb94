"""Adam (Kingma and Ba 2015, Algorithm 1), with the bias corrections placed as torch.optim.Adam places them; and AdamW.

    m <- beta1 m + (1 - beta1) g ;  v <- beta2 v + (1 - beta2) g^2
    w <- w - rate / c1 (m / (sqrt(v) / sqrt(c2) + eps)),  c1 = 1 - beta1^t, c2 = 1 - beta2^t

t counts the pushes that a segment has seen. No step where the denominator is 0 (only possible with eps = 0).

AdamW (Loshchilov and Hutter 2019, Algorithm 2) is Adam with a decay of the weights beside the gradient's step:

    w <- (1 - rate weight_decay) w, then Adam's step

The decay is no part of the gradient, so the moments never see it. It acts once per push: where P replicas push at
one clock it acts P times, and weight_decay is to be P times smaller than for one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dbelief.optim.rules.powers import power

from .fused_kernel import fused
from .options import at_least_zero, below_one
from .rule import Rate


@dataclass(frozen=True)
class Adam:
    """Steps of the mean gradient over the root of the mean square, both decaying.

    Parameters
    ----------
    beta1, beta2 : float
        Share of the first and the second moment that is kept per push, 0 <= beta < 1.
    eps : float
        Added outside the root.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    name: ClassVar[str] = "adam"
    state: ClassVar[Mapping[str, float]] = {"first_moment": 0.0, "second_moment": 0.0}  # the corrections make up for 0

    def __post_init__(self) -> None:
        below_one(self.name, beta1=self.beta1, beta2=self.beta2)
        at_least_zero(self.name, eps=self.eps)

    def kept(self, rate: Rate) -> float:
        """The factor of w before its step: 1 but in AdamW, and a product with 1 changes no bit."""
        return 1.0

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w and both moments in place, compiled (see `Rule.apply`)."""
        _loop(w, g, *states, *self._scalars(rate, step))

    def apply_reference(self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: Rate, step: int) -> None:
        """Update w and both moments in place, as a formula (see `Rule.apply_reference`)."""
        kept, pace, root_c2, beta1, rest1, beta2, rest2, eps = map(w.dtype.type, self._scalars(rate, step))
        m, v = states
        with np.errstate(all="ignore"):
            m *= beta1
            m += rest1 * g
            v *= beta2
            v += rest2 * (g * g)
            denominator = xp.sqrt(v) / root_c2 + eps
            w *= kept
            w -= pace * xp.where(denominator == 0, w.dtype.type(0), m / denominator)

    def _scalars(self, rate: Rate, step: int) -> tuple[float, ...]:
        """Compute in float64, to be rounded once: in float32 1 - beta2^t would lose half its digits."""
        if step < 1:
            raise ValueError(f"step is {step}, the first push is step 1")
        pace = float(rate) / (1.0 - power(self.beta1, step))
        root_c2 = math.sqrt(1.0 - power(self.beta2, step))
        rest1, rest2 = 1.0 - self.beta1, 1.0 - self.beta2
        return self.kept(rate), pace, root_c2, self.beta1, rest1, self.beta2, rest2, self.eps


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay.

    Parameters
    ----------
    weight_decay : float
        Share of w that a push takes away, per unit of rate; 0 is Adam.
    """

    weight_decay: float = 0.01
    name: ClassVar[str] = "adamw"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_zero(self.name, weight_decay=self.weight_decay)

    def kept(self, rate: Rate) -> float:
        """What the decay leaves of w."""
        return 1.0 - float(rate) * self.weight_decay


@dataclass(frozen=True)
class LazyAdam(Adam):
    """Adam of rows of a table, as torch.optim.SparseAdam: eps stands beside sqrt(v), before that is corrected.

    A row that a push lacks stays as it is, with its moments; t counts the pushes of all rows.
    """

    name: ClassVar[str] = "lazy-adam"

    def _scalars(self, rate: Rate, step: int) -> tuple[float, ...]:
        kept, pace, root_c2, *decays, eps = super()._scalars(rate, step)
        return kept, pace, root_c2, *decays, eps / root_c2


@fused(states=2, scalars=8)
def _loop(w, g, m, v, kept, pace, root_c2, beta1, rest1, beta2, rest2, eps):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        m[i] = beta1 * m[i] + rest1 * g[i]
        v[i] = beta2 * v[i] + rest2 * (g[i] * g[i])
        denominator = np.sqrt(v[i]) / root_c2 + eps
        quotient = m[i] / denominator
        w[i] = kept * w[i] - pace * (np.float32(0) if denominator == np.float32(0) else quotient)
