"""Heavy-ball momentum: v <- mu v + (g + weight_decay w); w <- w - rate v.

This is the sense of torch.optim.SGD(momentum=mu): the rate stands outside the velocity, so a change of rate
acts on the whole velocity at once. (Caffe's sense, with the rate inside, is `caffe_momentum`.) The decay is that of
`sgd`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused_kernel import fused
from .options import at_least_zero, below_one


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
    state: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        below_one(self.name, mu=self.mu)
        at_least_zero(self.name, weight_decay=self.weight_decay)

    def initial(self, state_name: str) -> float:
        """At rest."""
        return 0.0

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
            v += g + number(self.weight_decay) * w
            w -= number(rate) * v


@fused(states=1, scalars=3)
def _loop(w, g, v, rate, mu, weight_decay):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        v[i] = mu * v[i] + (g[i] + weight_decay * w[i])
        w[i] -= rate * v[i]
