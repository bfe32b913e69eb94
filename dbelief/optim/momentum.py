"""Heavy-ball momentum: v <- mu v + g; w <- w - rate v.

This is the sense of torch.optim.SGD(momentum=mu): the rate stands outside the velocity, so a change of rate
acts on the whole velocity at once. (The other common form, v <- mu v - rate g; w <- w + v, is the same only
while the rate is constant.)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .fused import fused
from .options import below_one


@dataclass(frozen=True)
class Momentum:
    """v <- mu v + g; w <- w - rate v, from v = 0.

    Parameters
    ----------
    mu : float
        Share of the velocity that is kept, 0 <= mu < 1.
    """

    mu: float = 0.9
    name: ClassVar[str] = "momentum"
    state: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        below_one(self.name, mu=self.mu)

    def initial(self, state_name: str) -> float:
        """At rest."""
        return 0.0

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        """Update w and v in place, compiled (see `Rule.apply`)."""
        _loop(w, g, *states, rate, self.mu)

    def apply_reference(
        self, xp: Any, w: Any, g: Any, states: tuple[Any, ...], rate: float | np.floating[Any], step: int
    ) -> None:
        """Update w and v in place, as a formula (see `Rule.apply_reference`)."""
        number = w.dtype.type
        (v,) = states
        with np.errstate(all="ignore"):
            v *= number(self.mu)
            v += g
            w -= number(rate) * v


@fused(states=1, scalars=2)
def _loop(w, g, v, rate, mu):  # type: ignore[no-untyped-def]
    for i in range(w.size):
        v[i] = mu * v[i] + g[i]
        w[i] -= rate * v[i]
