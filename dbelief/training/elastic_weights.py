"""Local weights of an elastic-averaging worker, and the worker's half of the update rule.

    easgd     W <- (W - eta g) - a (W - C)
    measgd    V <- mu V - eta g;   W <- (W + V) - a (W - C)        nesterov: g is taken at W + mu V

with W and the centre C before the update (You et al. 2017, equations 1, 5 and 6). If the job clips, g is clipped first;
the elastic force of the centre is not clipped. A parameter that took no part in the pass keeps its V, and only the
centre moves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.core.absent import Ranges, of_tensors, present
from dbelief.core.layout import RankPart
from dbelief.nn import Batch, Model, absent_of
from dbelief.optim.gradients import clip_by_norm


class ElasticWeights:
    """W on the device, with its gradient, and the velocity if there is one.

    Parameters
    ----------
    mu
        Momentum: the part of the velocity that is kept; None: no velocity.
    nesterov
        Whether the gradient is computed at W + mu V.
    clip_norm
        Largest Euclidean norm of the gradient; None: no limit.
    total
        Sum over all ranks, where this is one of several: see `clip_by_norm`.
    allocate
        Allocates the memory of W, where that is on the host.
    scratch
        The same for what is used from `compute` to `step` only.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        mu: float | None = None,
        nesterov: bool = False,
        clip_norm: float | None = None,
        total: Callable[[float], float] = lambda squares: squares,
        allocate: Allocate = aligned_float32,
        scratch: Allocate = aligned_float32,
    ) -> None:
        self._model, self._part, self.backend = model, part, backend
        self._clip_norm, self._total = clip_norm, total
        self._mu, self._nesterov = mu, nesterov

        def room(wanted: bool, allocate: Allocate = scratch) -> Any:
            return backend.zeros(part.size if wanted else 0, allocate)

        self.values, self._gradient = backend.zeros(part.size, allocate), room(True)
        self._velocity, self._ahead = room(mu is not None, aligned_float32), room(nesterov)
        self._difference = room(backend.name != "numpy")
        self._absent: Ranges = ()

    def begin(self, centre: np.ndarray) -> None:
        """Start at the centre, which is on the host, with velocity 0."""
        self.values[:] = self.backend.to_device(centre)
        self._velocity[:] = 0

    def compute(self, batch: Batch) -> float:
        """Compute and keep the gradient of a mini-batch; return its mean loss."""
        at = self.values
        if self._mu is not None and self._nesterov:
            self.backend.xp.multiply(self._velocity, np.float32(self._mu), out=self._ahead)
            self._ahead += self.values
            at = self._ahead
        loss = float(self._model.loss_and_gradient(self._part.views(at), batch, self._part.views(self._gradient)))
        self._absent = of_tensors(self._part, absent_of(self._model))
        clip_by_norm(self.backend.xp, self._gradient, self._clip_norm, self._total)
        return loss

    def zero_gradient(self) -> None:
        """Set the gradient to 0, for a step without a mini-batch."""
        self._gradient[:], self._absent = 0, ()

    def step(self, rate: float, moving_rate: float, centre: np.ndarray | None) -> None:
        """Update by the kept gradient, and by the centre where it is given.

        Parameters
        ----------
        centre
            Its value at the exchange with these weights, on the host; overwritten.
        """
        weights, gradient, velocity = self.values, self._gradient, self._velocity
        with np.errstate(all="ignore"):  # non-finite values are reported before they are sent
            if centre is not None:
                difference = self._difference_to_center(centre)
                difference *= np.float32(moving_rate)
            gradient *= np.float32(rate)
            if self._mu is None:
                weights -= gradient
            else:
                for own in present(self._absent, self._part.start, self._part.stop):
                    velocity[own] *= np.float32(self._mu)
                    velocity[own] -= gradient[own]
                    weights[own] += velocity[own]
            if centre is not None:
                weights -= difference

    def _difference_to_center(self, centre: np.ndarray) -> Any:
        """W - C."""
        difference = centre
        if self.backend.name != "numpy":
            self._difference.set(centre)
            difference = self._difference
        return self.backend.xp.subtract(self.values, difference, out=difference)
