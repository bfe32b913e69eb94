"""Elastic averaging through the shards, on a replica (Zhang et al. 2015; You et al. 2017, equations 1, 2, 5 and 6).

A replica has its own weights W; the shards have the centre C. At every `period`-th mini-batch and the last one of a
lease, W <- W - D and, on the shards, C <- C + D. D = a (W - C) is the same to the last bit on both sides, so the sum of
all W and C changes by gradients alone. The exchange needs no gradient, and runs while the gradient is computed.

With `turns` (You et al. 2017, algorithm 1: the original, round robin) each mini-batch is one exchange in two halves.
The replica waits until all replicas before it have pushed, and fetches the centre. Then it computes. Then it pushes its
weights as they were, and updates them. No other replica computes meanwhile, so that D is the same on both sides.

A replica that joins begins at the centre, with zero velocity. When it fails, its updates since the last exchange are
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.core.layout import RankPart
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.placement import Parameters
from dbelief.core.push import Push, Pusher, PushResult, PushStats
from dbelief.nn import Model
from dbelief.optim.gradients import check_finite
from dbelief.process.runtime import runtime
from dbelief.training.elastic_weights import ElasticWeights
from dbelief.training.phases import PhaseTimer

from ..pipeline.batches import BatchSource


class Centre(Parameters, Protocol):
    """Interface to the shards."""

    def exchange(self, values: Any, out: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        """Push own weights, and fetch the centre as it was before it moved."""


@dataclass(frozen=True)
class ElasticSettings:
    """Training settings from the job file.

    Attributes
    ----------
    rate
        eta, by samples leased before.
    moving_rate
        a, by eta.
    mu
        Fraction of the velocity that is kept; None: there is no velocity.
    nesterov
        Whether the gradient is computed at the weights advanced by the velocity alone.
    turns
        Whether replicas compute one after the other.
    clip_norm
        Maximum norm of a gradient; None: unlimited.
    """

    cadence: FetchPushSchedule
    rate: Callable[[int], float]
    moving_rate: Callable[[float], float]
    mu: float | None = None
    nesterov: bool = False
    turns: bool = False
    clip_norm: float | None = None


class Elastic:
    """Trains leases on the compute thread, with one thread for exchanges.

    Parameters
    ----------
    batches
        Returns the mini-batch for (epoch, start, stop) of an epoch's order.
    acknowledged
        Called for each exchange when the mini-batches up to it are done.
    noted
        Called before each mini-batch with (lease, step, sequence of its exchange, versions of the last fetched centre);
        for the log of a replay.
    total
        Sum over the ranks of the replica, if there are several: see `clip_by_norm`.
    scratch
        Allocates what holds nothing from one lease to the next; other trainers may use the same memory then. None: it
        is the trainer's own.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        centre: Centre,
        pusher: Pusher,
        batches: BatchSource,
        settings: ElasticSettings,
        phases: PhaseTimer,
        acknowledged: Callable[[PushStats, PushResult], None],
        noted: Callable[[DataLease, int, int, np.ndarray], None] | None = None,
        total: Callable[[float], float] = lambda squares: squares,
        scratch: Allocate | None = None,
    ) -> None:
        self._backend, self._centre, self._pusher, self._batches = backend, centre, pusher, batches
        self._part, self._settings, self._phases = part, settings, phases
        self._acknowledged, self._noted = acknowledged, noted
        self._host = (scratch or centre.array)(part.size)  # the centre, as received
        self._versions = np.full(len(centre.placement.spans), -1, np.int64)
        self._own = ElasticWeights(
            model,
            part,
            backend,
            mu=settings.mu,
            nesterov=settings.nesterov,
            clip_norm=settings.clip_norm,
            total=total,
            allocate=centre.array,
            scratch=scratch or aligned_float32,
        )
        self._began = False
        self._helper = runtime.executor(1, "exchange")

    def train(self, lease: DataLease, first_sequence: int) -> None:
        """Compute one lease; return when its last exchange is done.

        `first_sequence`: number of its first exchange.

        Raises
        ------
        NonFinite
            The weights are not finite; names the tensor.
        RuntimeFailure
            The shards cannot be reached, or reject a request.
        """
        cadence = self._settings.cadence
        steps = cadence.steps(lease.samples)
        done = PushStats(sequence=first_sequence, lease=lease.id)
        self._begin(lease.clock)
        self._batches.expect(lease.epoch, lease.start, lease.stop)
        for step in range(steps):
            first = lease.start + step * cadence.batch
            batch = self._batches(lease.epoch, first, min(first + cadence.batch, lease.stop))
            self._phases.end("data")
            if self._noted is not None:
                self._noted(lease, step, done.sequence, self._versions)
            rate = self._settings.rate(lease.samples_before + step * cadence.batch)
            moving_rate = self._settings.moving_rate(rate)
            done.samples, done.steps = done.samples + len(batch), done.steps + 1
            done.position += len(batch)
            exchange: Callable[[], PushResult] | None = None
            if cadence.pushes_after(step, steps):
                clock = lease.clock + step * lease.stride
                push = Push(
                    self._pusher,
                    done.sequence,
                    np.float32(moving_rate),
                    done.samples,
                    clock=clock,
                    lease=lease.id,
                    position=done.position,
                )
                exchange = self._round_robin_exchange(push) if self._settings.turns else self._exchange(push)
            done.loss_sum += self._own.compute(batch) * len(batch)
            self._phases.end("compute")
            if exchange is None:
                self._own.step(rate, 0.0, None)
                self._phases.end("compute")
                continue
            pushed = exchange()
            self._phases.end("push")
            self._own.step(rate, moving_rate, self._host)
            self._phases.end("compute")
            self._acknowledged(done, pushed)
            done = PushStats(sequence=done.sequence + 1, lease=lease.id, position=done.position)

    def _begin(self, clock: int = 0) -> None:
        """Initialize the weights with the centre, once."""
        if not self._began:
            waited_s = self._centre.pull(self._host, self._versions, clock=clock)
            self._own.begin(self._host)
            self._began = True
            self._phases.end("fetch", waited_s)

    def _exchange(self, push: Push) -> Callable[[], PushResult]:
        """Start an exchange, and return the function that waits for it; the weights stay unchanged until then."""
        values = self._sent()
        return self._helper.submit(self._centre.exchange, values, self._host, self._versions, push).result

    def _round_robin_exchange(self, push: Push) -> Callable[[], PushResult]:
        """Wait for this replica's turn and fetch the centre; return the function that pushes and ends the turn."""
        values = self._sent()
        self._versions.fill(-1)  # the last step has overwritten the centre of these versions
        waited_s = self._centre.pull(self._host, self._versions, clock=push.clock)
        self._phases.end("fetch", waited_s)
        return lambda: self._centre.push(values, self._versions, push)

    def _sent(self) -> Any:
        """Own weights in the form in which they are sent, after the check."""
        check_finite(self._own.values, self._part, "weights")
        return self._backend.push_source(self._own.values)

    def close(self) -> None:
        """End the thread; an exchange in progress is completed first."""
        self._helper.shutdown()
