"""AdamW (Loshchilov and Hutter 2019, Algorithm 2): Adam, with a decay of the weights beside the gradient's step.

    w <- (1 - rate weight_decay) w, then Adam's step

The decay is no part of the gradient, so the moments never see it. It acts once per push: where P replicas push at
one clock it acts P times, and weight_decay is to be P times smaller than for one.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .adam import Adam
from .options import at_least_zero


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

    def kept(self, rate: float | np.floating[Any]) -> float:
        """What the decay leaves of w."""
        return 1.0 - float(rate) * self.weight_decay
