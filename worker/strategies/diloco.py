"""DiLoCo on a replica: `LocalRounds` with a model, mini-batches and shards, and a thread for pushes that travel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from dbelief.arrays.backend import Allocate, Backend
from dbelief.core.layout import RankPart
from dbelief.core.lease import DataLease
from dbelief.core.placement import Fetch, Parameters, report_clock
from dbelief.core.push import Pusher, PushResult, PushStats, together
from dbelief.nn import Batch, Model, absent_of
from dbelief.process.runtime import runtime
from dbelief.training.local_rounds import DilocoSettings, LocalRounds, RoundExchange
from dbelief.training.phases import PhaseTimer

from ..pipeline.batches import BatchSource


class Diloco:
    """Trains leases on the compute thread, with one thread for pushes that travel.

    Parameters
    ----------
    batches
        Returns the mini-batch for (epoch, start, stop) of an epoch's order.
    acknowledged
        Called for each round whose pushes are all completed.
    noted
        Called with lease, mini-batches of it so far, number of the round and versions for each fetch that is complete.
    total
        Sum over the ranks of the replica, if there are several: see `clip_by_norm`.
    scratch
        Allocates what holds nothing from one lease to the next, where that is on the host: with `blend` nothing, else
        all but the state of the inner rule. None: it is the trainer's own.
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
        noted: Callable[[DataLease, int, int, np.ndarray], None] | None = None,
        total: Callable[[float], float] = lambda squares: squares,
        scratch: Allocate | None = None,
    ) -> None:
        self._model, self._backend, self._shards = model, backend, parameters
        self._batches, self._phases, self._acknowledged, self._noted = batches, phases, acknowledged, noted
        spans = parameters.placement.spans
        allocate = scratch if scratch is not None and not settings.blend else parameters.array
        self._local = LocalRounds(part, backend, spans, pusher, settings, allocate, total)
        self._views = part.views(self._local.values), part.views(self._local.gradient)
        self._helper = runtime.executor(1, "push") if settings.delay else None
        self._under_way: Future[None] | None = None
        self._results: list[PushResult] = []  # of the round's fragments so far
        self._lease: DataLease | None = None

    def train(self, lease: DataLease, first_sequence: int) -> None:
        """Compute and push one lease; return when its last push is acknowledged.

        `first_sequence`: number of its first round's pushes.

        Raises
        ------
        NonFinite
            A difference is not finite; names the tensor.
        RuntimeFailure
            The shards cannot be reached, or reject a request.
        """
        local = self._local
        self._batches.expect(lease.epoch, lease.start, lease.stop)
        clock = local.clock.of(lease.clock)
        waited_s = self._shards.pull(local.fetched.host, local.fetched.versions, clock=clock)
        self._phases.end("fetch", waited_s)
        self._lease = lease
        self._note(0, first_sequence)
        local.begin(lease, first_sequence)
        self._phases.end("fetch")
        for start, stop in local.batches():
            batch = self._batches(lease.epoch, start, stop)
            self._phases.end("data")
            self._step(batch)
            self._phases.end("compute")
            if local.settles:
                self._settle()
            if local.due:
                self._exchange()

    def _note(self, steps: int, sequence: int) -> None:
        if self._noted is not None:
            assert self._lease is not None
            self._noted(self._lease, steps, sequence, self._local.fetched.versions)

    def _step(self, batch: Batch) -> None:
        """Make an inner step."""
        loss = float(self._model.loss_and_gradient(self._views[0], batch, self._views[1]))
        self._local.step(len(batch), loss, frozenset(absent_of(self._model)))

    def _exchange(self) -> None:
        """Push what the due fragments have changed, and fetch their parameters of the next round with it."""
        exchange = self._local.exchange()
        sent, read = self._backend.push_source(self._local.difference), self._local.fetched.versions.copy()
        if exchange.following is None or self._helper is None:
            self._send(exchange, sent, read)
            self._local.merge()
        else:
            self._under_way = self._helper.submit(self._send, exchange, sent, read)
        self._phases.end("push")

    def _send(self, exchange: RoundExchange, sent: Any, read: Any) -> None:
        """Send pushes of differences to the parameters of versions `read`; `sent` is what they read."""
        fetched, following = self._local.fetched, exchange.following
        fetch = None if following is None else Fetch(fetched.host, fetched.versions, following)
        for within, push in exchange.pushes:
            self._results.append(self._shards.push(sent, read, push, fetch, within=within))
        if fetch is not None:
            self._note(exchange.steps, exchange.pushes[0][1].sequence)
        if exchange.completes is not None:
            results, self._results = self._results, []
            self._answered(exchange.pushes[-1][1].clock, pushed := together(results))
            self._acknowledged(exchange.completes, pushed)  # reported while the replica computes

    def _answered(self, clock: int, pushed: PushResult) -> None:
        """Go on at the open round; no shard is to wait for this replica in those before it."""
        if self._local.clock.answered(clock, pushed.clock):
            report_clock(self._shards, self._local.clock.next)

    def _settle(self) -> None:
        """Wait for the push that travels, and go on from what it brings."""
        assert self._under_way is not None
        self._under_way.result()  # bounded: every push has a deadline
        self._local.merge()
        self._phases.end("push")

    def close(self) -> None:
        """End the thread; a push that travels is completed first."""
        if self._helper is not None:
            self._helper.shutdown()
