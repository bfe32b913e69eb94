"""DiLoCo on a replica: inner steps of its own, and what they have changed as the gradient of a round.

Douillard et al. 2023, algorithm 1. In a round of `steps` mini-batches a replica steps from the shards' parameters w by
the inner rule, to w_i, and pushes w - w_i. Shards hold it until all replicas have pushed theirs, and apply the outer
rule to the mean; the answer of the push are the parameters of the next round. The inner rule's state stays here: it
begins anew with a replica that is started again.

Fragments of the parameters may have their exchanges at different steps of a round: see `Rounds`. With a `delay` a push
travels while the next mini-batches are computed from w_i; what they have changed is added to what arrives. With `blend`
a share of the replica's own parameters stays. (Douillard et al. 2025: sections 2.1 to 2.3.) The last push of a lease is
waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.core.absent import of_tensors
from dbelief.core.layout import RankPart
from dbelief.core.lease import DataLease
from dbelief.core.placement import Fetch, Parameters
from dbelief.core.push import Push, Pusher, PushResult, together
from dbelief.core.rounds import Fragment, Rounds, cut
from dbelief.nn import Model, absent_of
from dbelief.optim import Rule
from dbelief.optim.gradients import check_finite, clip_by_norm
from dbelief.optim.local_rule import LocalRule
from dbelief.optim.merge import merge
from dbelief.process.runtime import runtime

from ..pipeline.batches import BatchSource
from ..pipeline.buffers import ParameterBuffer, PushStats
from ..pipeline.phases import PhaseTimer


@dataclass(frozen=True)
class DilocoSettings:
    """Training settings from the job file.

    Attributes
    ----------
    rounds
        Of a lease, and when fragments are exchanged.
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
    blend
        Share of its own parameters that a replica keeps where an answer arrives.
    weight
        Weight of a push in the mean of its round, by its samples and steps.
    """

    rounds: Rounds
    inner: Rule
    rate: Callable[[int], float]
    outer_rate: float
    clip_norm: float | None = None
    delay: int = 0
    blend: float = 0.0
    weight: Callable[[int, int], int] = lambda samples, steps: samples


class Diloco:
    """Trains leases on the compute thread, with one thread for pushes that travel.

    Parameters
    ----------
    batches
        Returns the mini-batch for (epoch, start, stop) of an epoch's order.
    acknowledged
        Called for each round whose pushes are all completed.
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
        spans, allocate = parameters.placement.spans, parameters.array
        self._fragments = cut(spans, (part.start, part.stop), settings.rounds.fragments)
        self._rounds = replace(settings.rounds, fragments=len(self._fragments))
        self._fetched = ParameterBuffer.make(part, len(spans), backend, allocate)
        self._values = backend.zeros(part.size, allocate)
        self._gradient = backend.zeros(part.size, allocate)
        # Without a delay what a round has changed is sent from the gradient's place.
        self._difference = backend.zeros(part.size, allocate) if settings.delay else self._gradient
        self._sent = backend.zeros(part.size, allocate) if settings.delay else None  # values at the last push
        self._helper = runtime.executor(1, "push") if settings.delay else None
        self._answer: Callable[[], None] | None = None
        self._results: list[PushResult] = []  # of the round's fragments so far
        self._inner = LocalRule(settings.inner, part, backend)
        self._begun = False

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
        rounds, settings = self._rounds, self._settings
        self._batches.expect(lease.epoch, lease.start, lease.stop)
        self._fetch(lease.clock)
        done = closing = PushStats(sequence=first_sequence, lease=lease.id)
        behind = 0  # mini-batches since the push under way was begun
        for before in range(0, lease.samples, rounds.batch):
            position = min(before + rounds.batch, lease.samples)
            batch = self._batches(lease.epoch, lease.start + before, lease.start + position)
            self._phases.end("data")
            loss = self._step(batch, settings.rate(lease.samples_before + before))
            done.samples, done.steps = done.samples + len(batch), done.steps + 1
            done.loss_sum += loss * len(batch)
            done.position, behind = position, behind + 1
            self._phases.end("compute")
            due = rounds.due(before, position, lease.samples)
            if due or behind >= settings.delay:
                self._settle()
            if due:
                behind = 0
                if not due[0]:  # what is done up to here is, as soon as the round's last fragment is
                    closing, done = done, PushStats(sequence=done.sequence + 1, lease=lease.id)
                clock = lease.clock + before // rounds.samples
                self._exchange(due, closing, position, clock, last=position == lease.samples)

    def _fetch(self, clock: int) -> None:
        """Fetch the parameters of a lease's first round; the others come with the answers of pushes."""
        waited_s = self._shards.pull(self._fetched.host, self._fetched.versions, clock=clock)
        self._phases.end("fetch", waited_s)
        if self._sent is not None:
            self._sent[:] = self._values
        for fragment in self._fragments:
            self._merge(fragment, self._settings.blend if self._begun else 0.0)
        self._begun = True
        self._phases.end("fetch")

    def _step(self, batch: Any, rate: float) -> float:
        """Make an inner step; the mini-batch's mean loss."""
        views = self._part.views(self._values), self._part.views(self._gradient)
        loss = float(self._model.loss_and_gradient(views[0], batch, views[1]))
        clip_by_norm(self._backend.xp, self._gradient, self._settings.clip_norm, self._total)
        left_out = frozenset(absent_of(self._model))
        self._inner.apply(self._values, self._gradient, np.float32(rate), left_out)
        for fragment in self._fragments:
            fragment.stepped(len(batch), left_out)
        return loss

    def _exchange(self, due: Sequence[int], closing: PushStats, position: int, clock: int, last: bool) -> None:
        """Push what fragments have changed, as a gradient, and fetch their parameters of the next round with it.

        `closing`: what is done when all fragments of the round are pushed. At a lease's end nothing is fetched.
        """
        fragments = [self._fragments[number] for number in due]
        pushes = [self._push(fragment, closing, position, clock) for fragment in fragments]
        for fragment in fragments:
            if self._sent is not None:
                for own in fragment.pieces:
                    self._sent[own] = self._values[own]
            fragment.pushed()
        sent: Any = self._backend.push_source(self._difference)
        read, versions = self._fetched.versions.copy(), self._fetched.versions
        fetch = None if last else Fetch(self._fetched.host, versions, clock + 1)

        def exchange() -> None:
            for fragment, push in zip(fragments, pushes, strict=True):
                self._results.append(self._shards.push(sent, read, push, fetch, within=fragment.within))
            if due[-1] + 1 == len(self._fragments):
                results, self._results = self._results, []
                self._acknowledged(closing, together(results))  # reported while the replica computes

        def arrived() -> None:
            for fragment in () if last else fragments:
                self._merge(fragment, self._settings.blend)
            self._phases.end("push")

        if last or self._helper is None:
            exchange()
            arrived()
            return
        under_way = self._helper.submit(exchange)

        def answer() -> None:
            under_way.result()  # bounded: every push has a deadline
            arrived()

        self._answer = answer
        self._phases.end("push")

    def _push(self, fragment: Fragment, closing: PushStats, position: int, clock: int) -> Push:
        """Have in `_difference` what a fragment has changed, and the push of it."""
        for own in fragment.pieces:
            with np.errstate(all="ignore"):  # values that are not finite are reported below
                self._backend.xp.subtract(self._fetched.device[own], self._values[own], out=self._difference[own])
            check_finite(self._difference[own], self._part, "difference", own.start)
        return Push(
            self._pusher,
            closing.sequence,
            np.float32(self._settings.outer_rate),
            self._settings.weight(fragment.samples, fragment.steps),
            clock=clock,
            lease=closing.lease,
            position=position,
            absent=of_tensors(self._part, fragment.untouched or ()),
        )

    def _settle(self) -> None:
        """Wait for the push that travels, if any, and go on from what it brings."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer()

    def _merge(self, fragment: Fragment, blend: float) -> None:
        """Go on from what a push has brought, with what was computed since."""
        for own in fragment.pieces:
            self._fetched.to_device(own)
            sent = self._sent[own] if self._sent is not None else None
            room = self._difference[own]  # what was sent from there has arrived
            merge(self._backend.xp, self._values[own], self._fetched.device[own], sent, room, blend)

    def close(self) -> None:
        """End the thread; a push that travels is completed first."""
        if self._helper is not None:
            self._helper.shutdown()
