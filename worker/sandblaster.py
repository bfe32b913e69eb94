"""A batch method's work on a replica: bundles of portions computed at one point and pushed as one sum.

Parameters are fetched once for each pass; the sums of a bundle's portions are one push. Nothing is checked for being
finite: a trial may be too far, and the method that chose it sees that from the loss.

Source: DistBelief section 4.2 and Algorithm 7.2 of its appendix (`ProcessPortion`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dbelief.backend import Backend, aligned
from dbelief.layout import Layout
from dbelief.nn import Batch, Model
from dbelief.pushes import ACCRUED, TRIAL, Push, Pusher
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rpc.parameters import ShardedParameters

from .buffers import Fetched
from .downpour import Phases


class Bundles:
    """Computes bundles, one after another.

    Parameters
    ----------
    batches
        Gives the samples of (epoch, start, stop) of an epoch's permutation.
    """

    def __init__(
        self,
        model: Model,
        layout: Layout,
        backend: Backend,
        parameters: ShardedParameters,
        pusher: Pusher,
        batches: Callable[[int, int, int], Batch],
        phases: Phases,
    ) -> None:
        self._model = model
        self._layout = layout
        self._backend = backend
        self._parameters = parameters
        self._pusher = pusher
        self._batches = batches
        self._phases = phases
        self._turn = 0
        self._trial = Fetched.make(layout, len(parameters.placement.spans), backend)
        self._gradient = backend.to_device(aligned(layout.size, np.float32))
        self._views = layout.views(self._gradient)
        self._sum = backend.to_device(aligned(layout.size, np.float32))

    def compute(self, bundle: wire.Bundle) -> wire.BundleDone:
        """Compute and push a bundle; when this returns, every segment holds it.

        Raises
        ------
        Failure
            Shards cannot be reached or refuse.
        """
        if bundle.turn != self._turn:
            self._fetch(bundle.turn)
        self._sum[:] = 0
        loss_sum = 0.0
        for start in range(bundle.start, bundle.stop, bundle.portion):
            batch = self._batches(bundle.epoch, start, min(start + bundle.portion, bundle.stop))
            self._phases.end("data")
            loss = float(self._model.loss_and_gradient(self._trial.views, batch, self._views))
            self._gradient *= np.float32(len(batch))
            self._sum += self._gradient
            loss_sum += loss * len(batch)
            self._phases.end("compute")
        samples = bundle.stop - bundle.start
        push = Push(self._pusher, 0, samples=samples, vector=ACCRUED, clock=bundle.turn, bundle=bundle.bundle)
        self._parameters.push(self._backend.to_host(self._sum), self._trial.versions, push)
        self._phases.end("push")
        return wire.BundleDone(turn=bundle.turn, bundle=bundle.bundle, loss_sum=loss_sum, samples=samples)

    def _fetch(self, turn: int) -> None:
        self._parameters.pull(self._trial.host, self._trial.versions, vector=TRIAL)
        self._trial.to_device()
        self._turn = turn
        self._phases.end("fetch")
