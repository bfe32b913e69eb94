"""Downpour SGD on a replica (DistBelief, section 4.1 and Algorithm 7.1 of its appendix).

For each mini-batch `step` of a lease:

    if step mod n_fetch == 0:          parameters <- fetched from the shards
    gradient <- of the mini-batch;     accrued <- accrued + gradient
    parameters <- parameters - alpha * gradient        if the next mini-batch still uses them
    if (step + 1) mod n_push == 0:     push accrued;   accrued <- 0      (literal order: step mod n_push == 0)

With the aligned order a fetch sees all gradients that this replica computed before it. The literal order fetches first,
so that local progress is overwritten and reappears up to n_push - 1 steps late. At the end of a lease both push the
rest. New parameters are swapped in between mini-batches only. Without `overlap` a fetch waits for the acknowledgement
of the push before it, so that one replica with n_fetch = n_push = 1 is exactly SGD. The two are one call then: each
shard answers the push with its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dbelief.arrays.backend import Backend, aligned
from dbelief.core.absent import of_tensors
from dbelief.core.layout import RankPart
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.placement import Fetch, Parameters
from dbelief.core.push import Push, Pusher, PushResult
from dbelief.nn import Batch, Model, absent_of
from dbelief.optim import apply_rule, make_rule
from dbelief.optim.gradients import check_finite, clip_by_norm
from dbelief.training.parameter_buffer import ParameterBuffer
from dbelief.training.phases import PhaseTimer

from ..pipeline.batches import BatchSource
from ..pipeline.buffers import GradientBuffer
from ..pipeline.fetch_thread import Fetcher, FetchThread
from ..pipeline.push_thread import PushThread
from ..pipeline.table_rows import TableRows

SLOTS = 2
"""Number of gradient buffers: one being computed, one being sent; one where every push is waited for."""


@dataclass(frozen=True)
class DownpourSettings:
    """Training settings from the job file.

    Attributes
    ----------
    rate
        Learning rate by samples leased before.
    local_rate
        alpha of the local step between fetches; None: the push's own rate.
    overlap
        Whether a fetch may start before the preceding push is acknowledged.
    clip_norm
        Maximum norm of a mini-batch's gradient; None: unlimited.
    """

    cadence: FetchPushSchedule
    rate: Callable[[int], float]
    local_rate: float | None = None
    overlap: bool = False
    clip_norm: float | None = None


class Downpour:
    """Trains leases on the compute thread, with a fetch and a push thread.

    Parameters
    ----------
    batches
        Returns the mini-batch for (epoch, start, stop) of an epoch's order.
    acknowledged
        Called for each completed push, on the push thread or in `train`.
    noted
        Called before each mini-batch with (lease, step, sequence of its push, versions computed from); for the log of a
        replay.
    total
        Sum over the ranks of the replica, if there are several: see `clip_by_norm`.
    rows
        Rows of tables that the model reads; then each mini-batch is fetched for and pushed. None: it reads none.
    fetcher
        Fetches; None: a thread does.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        parameters: Parameters,
        pusher: Pusher,
        batches: BatchSource,
        settings: DownpourSettings,
        phases: PhaseTimer,
        acknowledged: Callable[[GradientBuffer, PushResult], None],
        noted: Callable[[DataLease, int, int, np.ndarray], None] | None = None,
        total: Callable[[float], float] = lambda squares: squares,
        rows: TableRows | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self._rows = rows
        self._model, self._part, self._backend, self._shards = model, part, backend, parameters
        self._pusher, self._batches, self._settings, self._phases = pusher, batches, settings, phases
        self._noted, self._total = noted, total
        segments, allocate = len(parameters.placement.spans), parameters.array
        if fetcher is None:
            fetched = ParameterBuffer.make(part, segments, backend, allocate)
            # Only with `overlap` are parameters computed on while others arrive.
            spare = ParameterBuffer.make(part, segments, backend, allocate) if settings.overlap else fetched
            fetcher = FetchThread(parameters, (fetched, spare))
        self._fetcher: Fetcher = fetcher
        count = 1 if not settings.overlap and settings.cadence.fetches_after_every_push else SLOTS
        slots = [GradientBuffer.make(part, segments, backend, allocate) for _ in range(count)]
        self._sender = PushThread(self._push, slots, acknowledged)
        self._sgd = make_rule("sgd", {})
        # With n_push = 1 gradients are computed in the send buffer; else they are accumulated from here. On a device it
        # also holds what a local step subtracts.
        if settings.cadence.needs_own_gradient:
            self._gradient = backend.to_device(aligned(part.size, np.float32))
            self._gradient_views = part.views(self._gradient)
        self._parameters: ParameterBuffer | None = None
        self._fetched_ahead = False  # the last push has fetched the parameters of the next mini-batch

    def train(self, lease: DataLease, first_sequence: int) -> None:
        """Compute and push one lease; return when every push of it is acknowledged.

        `first_sequence`: number of its first push.

        Raises
        ------
        NonFinite
            A gradient is not finite; names the tensor.
        RuntimeFailure
            The shards cannot be reached, or reject a request.
        """
        cadence = self._settings.cadence
        steps = cadence.steps(lease.samples)
        sequence = first_sequence
        slot: GradientBuffer | None = None
        self._batches.expect(lease.epoch, lease.start, lease.stop)
        for step in range(steps):
            parameters = self._fetch(lease, step)
            if self._noted is not None:
                self._noted(lease, step, sequence, parameters.versions)
            first = lease.start + step * cadence.batch
            batch = self._batches(lease.epoch, first, min(first + cadence.batch, lease.stop))
            self._phases.end("data")
            if slot is None:
                slot = self._open(lease, step, sequence)
            if self._rows is not None:
                self._rows.begin(parameters.versions, _last_clock(lease, step, cadence))
            self._compute(parameters, batch, slot)
            slot.clock, slot.position = lease.clock + step, first + len(batch) - lease.start
            if step + 1 < steps and not cadence.fetches_at(step + 1):
                self._local_step(parameters, slot)
            self._phases.end("compute")
            if cadence.pushes_after(step, steps):
                fetch = self._clock_of_fetch_after(lease, step)
                self._finish(slot, parameters, fetch, waits=fetch is not None or step + 1 == steps)
                slot, sequence = None, sequence + 1

    def close(self) -> None:
        """End both threads; submitted gradients are pushed first."""
        self._fetcher.close()
        self._sender.close()

    @property
    def _ahead(self) -> FetchThread:
        """Where fetches travel beside computing, or with a push: another fetcher takes part in neither."""
        assert isinstance(self._fetcher, FetchThread)
        return self._fetcher

    def _fetch(self, lease: DataLease, step: int) -> ParameterBuffer:
        """The parameters that mini-batch `step` is computed from."""
        cadence = self._settings.cadence
        if self._fetched_ahead:
            self._fetched_ahead = False
            self._parameters = self._ahead.swap()
            self._parameters.to_device()
            self._phases.end("fetch")
        elif self._parameters is None or cadence.fetches_at(step):
            clock = _last_clock(lease, step, cadence)
            if self._settings.overlap:
                self._ahead.request(clock)
                self._parameters = self._ahead.get()
            else:
                self._sender.flush()
                self._phases.end("push")
                self._parameters = self._fetcher.fetch_now(clock)
            self._parameters.to_device()
            # Filled while this one is computed on; but a lease begins with the newest parameters.
            if self._settings.overlap and step + cadence.n_fetch < cadence.steps(lease.samples):
                self._ahead.request(_last_clock(lease, step + cadence.n_fetch, cadence))
            self._phases.end("fetch")
        return self._parameters

    def _open(self, lease: DataLease, step: int, sequence: int) -> GradientBuffer:
        """Acquire a free buffer for the push that begins with mini-batch `step`."""
        slot = self._sender.acquire_buffer()
        self._phases.end("push")
        slot.sequence, slot.lease = sequence, lease.id
        slot.samples = slot.steps = 0
        slot.loss_sum = 0.0
        slot.rate = self._settings.rate(lease.samples_before + step * self._settings.cadence.batch)
        return slot

    def _compute(self, parameters: ParameterBuffer, batch: Batch, slot: GradientBuffer) -> None:
        """Add the mini-batch's gradient to the slot's sum."""
        if self._settings.cadence.n_push == 1:
            loss = self._model.loss_and_gradient(parameters.views, batch, slot.views)
            clip_by_norm(self._backend.xp, slot.gradient, self._settings.clip_norm, self._total)
        else:
            loss = self._model.loss_and_gradient(parameters.views, batch, self._gradient_views)
            clip_by_norm(self._backend.xp, self._gradient, self._settings.clip_norm, self._total)
            if slot.steps == 0:
                slot.gradient[:] = self._gradient
            else:
                self._backend.xp.add(slot.gradient, self._gradient, out=slot.gradient)
        if self._rows is not None:
            slot.rows = self._rows.take()
        absent = frozenset(absent_of(self._model))
        slot.absent = absent & slot.absent if slot.steps else absent
        slot.samples += len(batch)
        slot.steps += 1
        slot.loss_sum += loss * len(batch)

    def _local_step(self, parameters: ParameterBuffer, slot: GradientBuffer) -> None:
        """Update the replica's own copy by the gradient of this mini-batch, with plain SGD."""
        alpha = self._settings.local_rate
        rate = np.float32(slot.rate if alpha is None else alpha)
        gradient = slot.gradient if self._settings.cadence.n_push == 1 else self._gradient
        if self._backend.name == "numpy":
            apply_rule(self._sgd, parameters.device, gradient, (), rate, 1)
        else:
            # The product needs a buffer: this one's content has been added to the slot, or is unused.
            parameters.device -= self._backend.xp.multiply(gradient, rate, out=self._gradient)
        parameters.locally_modified = True

    def _clock_of_fetch_after(self, lease: DataLease, step: int) -> int | None:
        """Clock of the fetch that waits for the push after mini-batch `step`; None where no fetch does."""
        cadence = self._settings.cadence
        if self._settings.overlap or step + 1 >= cadence.steps(lease.samples) or not cadence.fetches_at(step + 1):
            return None
        return _last_clock(lease, step + 1, cadence)

    def _finish(self, slot: GradientBuffer, parameters: ParameterBuffer, fetch: int | None, waits: bool) -> None:
        """Push a buffer, and fetch for the clock `fetch` with it, if any; unless it `waits`, the push is only begun."""
        slot.sent = self._backend.push_source(slot.gradient)
        slot.versions[:] = parameters.versions
        slot.fetch = fetch
        if waits:
            self._sender.push_now(slot)
            self._fetched_ahead = fetch is not None
        else:
            self._sender.submit(slot)
        self._phases.end("push")

    def _push(self, slot: GradientBuffer) -> PushResult:
        check_finite(slot.gradient, self._part)
        push = Push(
            self._pusher,
            slot.sequence,
            np.float32(slot.rate),
            slot.samples,
            clock=slot.clock,
            lease=slot.lease,
            position=slot.position,
            absent=of_tensors(self._part, slot.absent),
        )
        fetch: Fetch | None = None
        if slot.fetch is not None:
            spare = self._ahead.spare
            spare.prepare_fetch()
            fetch = Fetch(spare.host, spare.versions, slot.fetch)
        if self._rows is not None and slot.rows is not None:
            return self._rows.push(slot.sent, slot.rows, slot.versions, push, fetch)
        return self._shards.push(slot.sent, slot.versions, push, fetch)


def _last_clock(lease: DataLease, step: int, cadence: FetchPushSchedule) -> int:
    """Clock of the last mini-batch computed from the fetch for `step`; the staleness bound must allow it."""
    return lease.clock + min(step + cadence.n_fetch, cadence.steps(lease.samples)) - 1
