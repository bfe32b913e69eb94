"""Model wrapper that delays computing, to simulate replicas with a machine each on one machine.

The delay sleeps, so that other replicas on the same processor continue meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dbelief.nn import Batch, Evaluates, LeavesOut, Model, ReadsSparse
from dbelief.process.runtime import runtime


class DelayedModel:
    """A model with a delay after each gradient.

    Parameters
    ----------
    wait_s
        Seconds added to each mini-batch, or portion of a batch method, whatever its size.
    sleep
        Function that sleeps.
    """

    def __init__(self, model: Model, wait_s: float, sleep: Callable[[float], None] = runtime.sleep) -> None:
        self._model, self._wait_s, self._sleep = model, wait_s, sleep
        self.parameters = model.parameters
        if isinstance(model, Evaluates):
            self.evaluate = model.evaluate
        if isinstance(model, LeavesOut):
            self.absent = model.absent
        self.reads_sparse = isinstance(model, ReadsSparse) and model.reads_sparse

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        """Return the model's loss, after the delay."""
        loss = self._model.loss_and_gradient(views, batch, out)
        if isinstance(self._model, LeavesOut):
            self.absent = self._model.absent
        self._sleep(self._wait_s)
        return loss
