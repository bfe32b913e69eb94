"""DiLoCo on a replica: inner steps of its own, and what they have changed as the gradient of a round.

Douillard et al. 2023, algorithm 1. In a round of `steps` mini-batches a replica steps from the shards' parameters w by
the inner rule, to w_i, and pushes w - w_i. Shards hold it until all replicas have pushed theirs, and apply the outer
rule to the mean; the answer of the push are the parameters of the next round. The inner rule's state stays here: it
begins anew with a replica that is started again.

With a `delay` the push travels while the next round's first mini-batches are computed from w_i (Douillard et al. 2025,
section 2.2: overlapping communication); what they have changed is added to what arrives. The last push of a lease is
waited for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.core.absent import of_tensors
from dbelief.core.layout import RankPart
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.placement import Fetch, Parameters
from dbelief.core.push import Push, Pusher, PushResult
from dbelief.nn import Model, absent_of
from dbelief.optim import Rule
from dbelief.optim.gradients import check_finite, clip_by_norm
from dbelief.optim.local_rule import LocalRule
from dbelief.process.runtime import runtime

from ..pipeline.batches import BatchSource
from ..pipeline.buffers import ParameterBuffer, PushStats
from ..pipeline.phases import PhaseTimer


@dataclass(frozen=True)
class DilocoSettings:
    """Training settings from the job file.

    Attributes
    ----------
    cadence
        A push and a fetch for each round.
    inner
        Rule of the replica's own steps.
    rate
        Its learning rate, by samples leased before.
    outer_rate
        Learning rate of the shards' steps.
    clip_norm
        Maximum norm of a mini-batch's gradient; None: unlimited.
    delay
        Mini-batches that are computed while a push travels.
    """

    cadence: FetchPushSchedule
    inner: Rule
    rate: Callable[[int], float]
    outer_rate: float
    clip_norm: float | None = None
    delay: int = 0


class Diloco:
    """Trains leases on the compute thread, with one thread for pushes that travel.

    Parameters
    ----------
    batches
        Returns the mini-batch for (epoch, start, stop) of an epoch's order.
    acknowledged
        Called for each completed push.
    total
        Sum over the ranks of the replica, if there are several: see `clip_by_norm`.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        parameters: Parameters,
        pusher: Pusher,
        batches: BatchSource,
        settings: DilocoSettings,
        phases: PhaseTimer,
        acknowledged: Callable[[PushStats, PushResult], None],
        total: Callable[[float], float] = lambda squares: squares,
    ) -> None:
        self._model, self._part, self._backend, self._shards = model, part, backend, parameters
        self._pusher, self._batches, self._settings, self._phases = pusher, batches, settings, phases
        self._acknowledged, self._total = acknowledged, total
        segments, allocate = len(parameters.placement.spans), parameters.array
        self._fetched = ParameterBuffer.make(part, segments, backend, allocate)
        self._values = backend.zeros(part.size, allocate)
        self._gradient = backend.zeros(part.size, allocate)
        # Without a delay what a round has changed is sent from the gradient's place.
        self._difference = backend.zeros(part.size, allocate) if settings.delay else self._gradient
        self._left = backend.zeros(part.size, allocate) if settings.delay else self._values  # values at the last push
        self._helper = runtime.executor(1, "push") if settings.delay else None
        self._answer: Callable[[], None] | None = None
        self._inner = LocalRule(settings.inner, part, backend)
        self._clock = -1  # that the parameters were fetched for
        self._untouched: Set[str] | None = None  # tensors that took part in no step of the round

    def train(self, lease: DataLease, first_sequence: int) -> None:
        """Compute and push one lease; return when its last push is acknowledged.

        `first_sequence`: number of its first push.

        Raises
        ------
        NonFinite
            A difference is not finite; names the tensor.
        RuntimeFailure
            The shards cannot be reached, or reject a request.
        """
        cadence = self._settings.cadence
        steps = cadence.steps(lease.samples)
        self._batches.expect(lease.epoch, lease.start, lease.stop)
        clock, done = lease.clock, PushStats(sequence=first_sequence, lease=lease.id)
        for step in range(steps):
            if cadence.fetches_at(step) and self._answer is None:
                self._begin_round(clock)
            first = lease.start + step * cadence.batch
            batch = self._batches(lease.epoch, first, min(first + cadence.batch, lease.stop))
            self._phases.end("data")
            loss = self._step(batch, self._settings.rate(lease.samples_before + first - lease.start))
            done.samples, done.steps = done.samples + len(batch), done.steps + 1
            done.position += len(batch)
            done.loss_sum += loss * len(batch)
            self._phases.end("compute")
            due = cadence.pushes_after(step, steps)
            if due or done.steps >= self._settings.delay:
                self._settle()
            if due:
                self._end_round(done, clock, last=step + 1 == steps)
                clock += 1
                done = PushStats(sequence=done.sequence + 1, lease=lease.id, position=done.position)

    def _begin_round(self, clock: int) -> None:
        """Start at the shards' parameters; the push of the round before has fetched them, but at a lease's begin."""
        if self._clock != clock:
            waited_s = self._shards.pull(self._fetched.host, self._fetched.versions, clock=clock)
            self._clock = clock
            self._phases.end("fetch", waited_s)
        self._fetched.to_device()
        self._values[:] = self._fetched.device
        self._phases.end("fetch")

    def _step(self, batch: Any, rate: float) -> float:
        """Make an inner step; the mini-batch's mean loss."""
        views = self._part.views(self._values), self._part.views(self._gradient)
        loss = float(self._model.loss_and_gradient(views[0], batch, views[1]))
        clip_by_norm(self._backend.xp, self._gradient, self._settings.clip_norm, self._total)
        left_out = frozenset(absent_of(self._model))
        self._inner.apply(self._values, self._gradient, np.float32(rate), left_out)
        self._untouched = left_out if self._untouched is None else self._untouched & left_out
        return loss

    def _end_round(self, done: PushStats, clock: int, last: bool) -> None:
        """Push what the round has changed, as a gradient; fetch the next round's parameters with it within a lease."""
        with np.errstate(all="ignore"):  # values that are not finite are reported below
            self._backend.xp.subtract(self._fetched.device, self._values, out=self._difference)
        check_finite(self._difference, self._part, "difference")
        push = Push(
            self._pusher,
            done.sequence,
            np.float32(self._settings.outer_rate),
            done.samples,
            clock=clock,
            lease=done.lease,
            position=done.position,
            absent=of_tensors(self._part, self._untouched or ()),
        )
        self._untouched = None
        sent: Any = self._backend.push_source(self._difference)
        versions = self._fetched.versions
        if not last:
            self._clock = clock + 1
        fetch = None if last else Fetch(self._fetched.host, versions, clock + 1)
        exchange = functools.partial(self._shards.push, sent, versions.copy(), push, fetch)
        if last or self._helper is None:
            self._arrived(done, exchange())
        else:
            self._left[:] = self._values
            self._answer = functools.partial(self._arrived_late, done, self._helper.submit(exchange).result)
            self._phases.end("push")

    def _settle(self) -> None:
        """Wait for the push that travels, if any, and go on from what it brings."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer()

    def _arrived_late(self, done: PushStats, result: Callable[[], PushResult]) -> None:
        """Add what was computed meanwhile to what has arrived: to the bit what has arrived, where nothing was."""
        pushed = result()  # bounded: every push has a deadline
        self._fetched.to_device()
        self._backend.xp.subtract(self._values, self._left, out=self._values)
        self._backend.xp.add(self._values, self._fetched.device, out=self._values)
        self._arrived(done, pushed)

    def _arrived(self, done: PushStats, pushed: PushResult) -> None:
        self._phases.end("push")
        self._acknowledged(done, pushed)

    def close(self) -> None:
        """End the thread; a push that travels is completed first."""
        if self._helper is not None:
            self._helper.shutdown()
