"""Asynchronous elastic averaging on a replica (Zhang et al. 2015; You et al. 2017, equations 1, 2, 5 and 6).

A replica has weights W of its own; the shards have the centre C. For each mini-batch, with g the gradient at W:

    async-easgd     W <- (W - eta g) - D
    async-measgd    V <- mu V - eta g;   W <- (W + V) - D        nesterov: g is taken at W + mu V

where D = a (W - C) with both as they were, at every `period`-th mini-batch and a lease's last one, else 0. There
C <- C + D on the shards, by the same D to the last bit: so nothing is made or lost between them, and the sum of all W
and C changes by gradients alone. The exchange needs no gradient, and runs while the gradient is computed.

A replica that joins begins at the centre, and at rest. When it dies, its way since the last exchange dies with it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dbelief.backend import Backend, aligned
from dbelief.layout import RankPart
from dbelief.nn import Batch, Model
from dbelief.outgoing import OnDevice
from dbelief.pushes import Push, Pushed, Pusher
from dbelief.work import Cadence, Lease

from .buffers import Done
from .downpour import Phases


class Centre(Protocol):
    """The shards, as this needs them."""

    def pull(self, out: np.ndarray, versions: np.ndarray, *, clock: int = 0) -> None:
        """Read the centre as of a clock."""

    def exchange(self, values: Any, out: np.ndarray, versions: np.ndarray, push: Push) -> Pushed:
        """Send own weights, and get the centre as it was before it moved."""


@dataclass(frozen=True)
class Settings:
    """What the job file says about how a replica trains.

    Attributes
    ----------
    rate
        eta, by samples leased before.
    moving_rate
        a, by eta.
    mu
        Part of the velocity that is kept; None: there is no velocity.
    nesterov
        Whether the gradient is taken where the velocity alone would lead.
    """

    cadence: Cadence
    rate: Callable[[int], float]
    moving_rate: Callable[[float], float]
    mu: float | None = None
    nesterov: bool = False


class Elastic:
    """Trains leases on the compute thread, with one thread for exchanges.

    Parameters
    ----------
    segments
        How many the job has.
    batches
        Gives the mini-batch for (epoch, start, stop) of an epoch's permutation.
    checked
        Called with the weights before they are sent; raises where they are not finite.
    acknowledged
        Called for each exchange when the mini-batches up to it are done.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        centre: Centre,
        segments: int,
        pusher: Pusher,
        batches: Callable[[int, int, int], Batch],
        settings: Settings,
        phases: Phases,
        checked: Callable[[Any], object],
        acknowledged: Callable[[Done, Pushed], None],
    ) -> None:
        self._model, self._part, self._backend = model, part, backend
        self._centre, self._pusher, self._batches = centre, pusher, batches
        self._settings, self._phases = settings, phases
        self._checked, self._acknowledged = checked, acknowledged
        self._host = aligned(part.size, np.float32)  # the centre, as it came
        self._versions = np.full(segments, -1, np.int64)

        def room(wanted: bool = True) -> Any:
            return backend.to_device(aligned(part.size if wanted else 0, np.float32))

        self._weights, self._gradient = room(), room()
        self._velocity, self._ahead = room(settings.mu is not None), room(settings.nesterov)
        self._difference: Any = self._host if backend.name == "numpy" else backend.to_device(self._host)
        self._began = False
        self._helper = ThreadPoolExecutor(1, "exchange")

    def train(self, lease: Lease) -> None:
        """Compute one lease; returns when its last exchange is done.

        Raises
        ------
        NotFinite
            The weights are not finite; names the tensor.
        Failure
            Shards cannot be reached or refuse.
        """
        cadence = self._settings.cadence
        steps = cadence.steps(lease.samples)
        done = Done(sequence=lease.first_sequence)
        self._begin(lease.clock)
        for step in range(steps):
            first = lease.start + step * cadence.batch
            batch = self._batches(lease.epoch, first, min(first + cadence.batch, lease.stop))
            self._phases.end("data")
            rate = self._settings.rate(lease.samples_before + step * cadence.batch)
            moving_rate = self._settings.moving_rate(rate)
            done.samples, done.steps = done.samples + len(batch), done.steps + 1
            exchange: Future[Pushed] | None = None
            if cadence.pushes_after(step, steps):
                rated = np.float32(moving_rate)
                clock = lease.clock + step
                exchange = self._exchange(Push(self._pusher, done.sequence, rated, done.samples, clock=clock))
            done.loss_sum += self._compute(batch) * len(batch)
            self._phases.end("compute")
            if exchange is None:
                self._step(rate, None)
                continue
            pushed = exchange.result()
            self._phases.end("push")
            self._step(rate, moving_rate)
            self._acknowledged(done, pushed)
            done = Done(sequence=done.sequence + 1)

    def _begin(self, clock: int = 0) -> None:
        """Start at the centre."""
        if not self._began:
            self._centre.pull(self._host, self._versions, clock=clock)
            self._weights[:] = self._backend.to_device(self._host)
            self._began = True
            self._phases.end("fetch")

    def _exchange(self, push: Push) -> Future[Pushed]:
        """Begin an exchange; the weights stay as they are until it is over."""
        self._checked(self._weights)
        values = self._weights if self._backend.name == "numpy" else OnDevice(self._backend.xp, self._weights)
        return self._helper.submit(self._centre.exchange, values, self._host, self._versions, push)

    def _compute(self, batch: Batch) -> float:
        """Leave the gradient; give the loss."""
        at, settings = self._weights, self._settings
        if settings.mu is not None and settings.nesterov:
            self._backend.xp.multiply(self._velocity, np.float32(settings.mu), out=self._ahead)
            self._ahead += self._weights
            at = self._ahead
        return float(self._model.loss_and_gradient(self._part.views(at), batch, self._part.views(self._gradient)))

    def _step(self, rate: float, moving_rate: float | None) -> None:
        """Move the weights, by the centre too where it has come."""
        weights, gradient, velocity, mu = self._weights, self._gradient, self._velocity, self._settings.mu
        with np.errstate(all="ignore"):  # what is not finite is named before it is sent
            if moving_rate is not None:
                if self._backend.name != "numpy":
                    self._difference.set(self._host)
                self._backend.xp.subtract(weights, self._difference, out=self._difference)
                self._difference *= np.float32(moving_rate)
            gradient *= np.float32(rate)
            if mu is None:
                weights -= gradient
            else:
                velocity *= np.float32(mu)
                velocity -= gradient
                weights += velocity
            if moving_rate is not None:
                weights -= self._difference

    def close(self) -> None:
        """End the thread; an exchange that is under way comes to its end."""
        self._helper.shutdown()
