"""Batch-method worker: computes bundles of portions at one point, and pushes each bundle as one sum.

Parameters are fetched once for each pass; or, where bundles of sparse rows touch few of them, these for each bundle
(`touched.py`). While a portion is computed, the samples of the next one are gathered. While the last portion of a
bundle is computed, the next bundle is requested. A bundle's push overlaps with what follows.

Nothing is checked for being finite: a trial step may be too long, and the optimization method detects that by the loss.

Source: DistBelief section 4.2 and Algorithm 7.2 of its appendix (`ProcessPortion`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from dbelief.arrays.backend import Backend, aligned_float32
from dbelief.core.layout import RankPart
from dbelief.core.push import ACCRUED, TRIAL, Push, Pusher, PushResult
from dbelief.core.ranks import RankGroup, SingleRank, all_or_none
from dbelief.errors import Rejected, Unavailable
from dbelief.nn import Batch, Model
from dbelief.nn.model import Tensors
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import format_error
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.parameter_buffer import ParameterBuffer
from dbelief.training.phases import PhaseTimer

from ..pipeline.buffers import GradientBuffer
from ..pipeline.push_thread import PushThread
from .touched import TouchedNumbers, owned, touched_by

Gather = Callable[[int, int, int], Batch]
"""Returns the samples of (epoch, start, stop) of an epoch's permutation; they are valid until the next call."""

_Prefetched = tuple[wire.Bundle | None, "Batch | FetchedNumbers | None"]
"""The next bundle, if there is one; and the samples of its first portion, or what it touches, where shards have it."""

SLOTS = 2
"""Number of sum buffers: one being computed, one being sent."""


class BundleReporter(Protocol):
    """Interface of a bundle worker to the coordinator; called from several threads."""

    def next_bundle(self, turn: int, holds: list[int]) -> wire.Bundle | None:
        """Request the next bundle while one is still being computed; None if there is none now."""

    def report_alive(self) -> None:
        """Report that the computation makes progress."""

    def done(self, done: wire.BundleDone) -> None:
        """Report a bundle that every segment has received."""

    def failed(self, failed: wire.BundleFailed) -> None:
        """Report a bundle that could not be computed."""


class FetchedNumbers(NamedTuple):
    """What a bundle touches, and (n,) float32 numbers of the trial there."""

    touched: TouchedNumbers
    trial: np.ndarray


class BundleWorker:
    """Computes bundles, one after another.

    Parameters
    ----------
    gather
        Two functions, used alternately.
    ranks
        Ranks of the replica, which compute every bundle together; None: there is one.
    tensor
        The tensor of which only the rows that a bundle touches are fetched and pushed: see `touched.column_tensor`.
        None: whole vectors are.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        parameters: ShardedParameterClient,
        pusher: Pusher,
        gather: tuple[Gather, Gather],
        phases: PhaseTimer,
        reporter: BundleReporter,
        ranks: RankGroup | None = None,
        tensor: str | None = None,
    ) -> None:
        self._model = model
        self._backend = backend
        self._parameters = parameters
        self._pusher = pusher
        self._gather = itertools.cycle(gather)
        self._phases = phases
        self._reporter = reporter
        self._ranks = ranks or SingleRank()
        self._part, self._tensor = part, tensor
        whole, allocate = (part, parameters.array) if tensor is None else (RankPart((), 0), aligned_float32)
        segments = len(parameters.placement.spans)
        self._trial = ParameterBuffer.make(whole, segments, backend, allocate)
        self._gradient = backend.zeros(whole.size, aligned_float32)
        self._views = whole.views(self._gradient)
        self._sender = PushThread(
            self._push,
            [GradientBuffer.make(whole, segments, backend, allocate) for _ in range(SLOTS)],
            self._acknowledged,
        )
        self._helper = runtime.executor(1, "gather")
        self._gathered: tuple[tuple[int, int, int], Batch | Future[Batch]] | None = None
        self._fetched: tuple[wire.Bundle, FetchedNumbers] | None = None  # ahead
        self.pass_number = 0
        self._holds: dict[tuple[int, int], float] = {}  # by pass and number: seconds of computing

    @property
    def holds(self) -> list[int]:
        """Numbers of this pass's bundles that were assigned and are not reported yet."""
        return [number for turn, number in list(self._holds) if turn == self.pass_number]

    def compute(self, bundle: wire.Bundle) -> wire.Bundle | None:
        """Compute a bundle and start its push; return the next bundle, if one is already assigned.

        Raises
        ------
        RuntimeFailure
            Shards or the coordinator cannot be reached, or reject a request, for this bundle or an earlier one's push.
        """
        slot = self._sender.acquire_buffer()
        self._phases.end("wait")
        self._holds[bundle.pass_number, bundle.bundle] = 0.0
        began = runtime.monotonic()
        try:
            if bundle.pass_number != self.pass_number:
                if self._tensor is None:
                    all_or_none(self._ranks, partial(self._fetch, bundle.placement_epoch))
                self.pass_number = bundle.pass_number  # where one rank was rejected, all fetch again
                self._phases.end("fetch")
            following = self._sum(bundle, slot) if self._tensor is None else self._sum_touched(bundle, slot)
        except Unavailable:
            raise
        except Exception as error:  # any error of a model's code: another machine may succeed
            if self._ranks.size > 1 and not isinstance(error, Rejected):
                raise  # the other ranks are still computing it
            self._sender.release_buffer(slot)
            del self._holds[bundle.pass_number, bundle.bundle]
            self._reporter.failed(
                wire.BundleFailed(pass_number=bundle.pass_number, bundle=bundle.bundle, reason=format_error(error))
            )
            return None
        self._holds[bundle.pass_number, bundle.bundle] = runtime.monotonic() - began
        slot.sequence, slot.clock, slot.samples = bundle.bundle, bundle.pass_number, bundle.stop - bundle.start
        if self._tensor is None:
            slot.sent = self._backend.push_source(slot.gradient)
        self._sender.submit(slot)
        assigned, first = following.result()
        if isinstance(first, FetchedNumbers) and assigned is not None:
            self._fetched = assigned, first
        elif isinstance(first, Batch) and assigned is not None:
            self._gathered = (assigned.epoch, *next(_portions(assigned))), first
        self._phases.end("wait")
        return assigned

    def _sum(self, bundle: wire.Bundle, slot: GradientBuffer) -> Future[_Prefetched]:
        """Sum all portions' gradients and losses into a slot; return the future of the request for the next bundle."""
        slot.loss_sum = 0.0
        following: Future[_Prefetched] | None = None
        ranges = list(_portions(bundle))
        for place, (start, stop) in enumerate(ranges):
            batch = self._batch(bundle.epoch, start, stop)
            if place + 1 < len(ranges):
                self._gather_ahead(bundle.epoch, *ranges[place + 1])
            else:
                following = self._helper.submit(self._ask_ahead, bundle.pass_number)
            self._phases.end("data")
            self._add(slot, self._trial.views, batch, place == 0)
        assert following is not None, "a bundle has a portion"
        return following

    def _sum_touched(self, bundle: wire.Bundle, slot: GradientBuffer) -> Future[_Prefetched]:
        """As `_sum`, in a short vector of what the bundle touches."""
        ahead, self._fetched = self._fetched, None
        if ahead is not None and ahead[0] == bundle:
            fetched = ahead[1]
        else:
            fetched = self._helper.submit(self._touch, bundle).result()
        self._phases.end("fetch")
        touched, part = fetched.touched, fetched.touched.part
        self._gradient, slot.gradient = aligned_float32(part.size), aligned_float32(part.size)
        self._views, slot.views = part.views(self._gradient), part.views(slot.gradient)
        slot.sent, slot.loss_sum = touched.positions, 0.0
        following = self._helper.submit(self._ask_ahead, bundle.pass_number)
        for place, batch in enumerate(touched.batches):
            self._add(slot, part.views(fetched.trial), batch, place == 0)
        return following

    def _add(self, slot: GradientBuffer, trial: Tensors, batch: Batch, first: bool) -> None:
        """Add a portion's gradient and loss to a slot."""
        gradient, views = (slot.gradient, slot.views) if first else (self._gradient, self._views)
        loss = float(self._model.loss_and_gradient(trial, batch, views))
        gradient *= np.float32(len(batch))
        if not first:
            slot.gradient += gradient
        slot.loss_sum += loss * len(batch)
        self._phases.end("compute")
        self._reporter.report_alive()

    # -- prefetching, on the helper thread ---------------------------------------------------------------

    def _batch(self, epoch: int, start: int, stop: int) -> Batch:
        """A portion's samples: the prefetched ones, if they match."""
        wanted = epoch, start, stop
        if self._gathered is None or self._gathered[0] != wanted:
            self._gather_ahead(*wanted)
        assert self._gathered is not None
        _, batch = self._gathered
        return batch.result() if isinstance(batch, Future) else batch

    def _gather_ahead(self, epoch: int, start: int, stop: int) -> None:
        self._gathered = (epoch, start, stop), self._helper.submit(next(self._gather), epoch, start, stop)

    def _ask_ahead(self, turn: int) -> _Prefetched:
        bundle = self._reporter.next_bundle(turn, self.holds)
        if bundle is None:
            return None, None
        if self._tensor is not None:
            try:
                return bundle, self._touch(bundle)
            except Rejected:  # shards go back to a set, for example: the bundle is reported as failed where it begins
                return bundle, None
        start, stop = next(_portions(bundle))
        return bundle, next(self._gather)(bundle.epoch, start, stop)

    def _touch(self, bundle: wire.Bundle) -> FetchedNumbers:
        """Gather a bundle's samples, and fetch the numbers of the trial that they touch."""
        assert self._tensor is not None
        batches = [owned(next(self._gather)(bundle.epoch, *portion)) for portion in _portions(bundle)]
        touched = touched_by(batches, self._part, self._tensor)
        self._parameters.locate(bundle.placement_epoch)
        return FetchedNumbers(touched, self._parameters.pull_at(touched.positions, TRIAL))

    # -- shards ------------------------------------------------------------------------------------------

    def _fetch(self, placement_epoch: int) -> None:
        self._parameters.locate(placement_epoch)
        self._parameters.pull(self._trial.host, self._trial.versions, vector=TRIAL)
        self._trial.to_device()

    def _push(self, slot: GradientBuffer) -> PushResult:
        packed = self._tensor is not None
        push = Push(
            self._pusher,
            0,
            samples=slot.samples,
            vector=ACCRUED,
            clock=slot.clock,
            bundle=slot.sequence,
            packed=packed,
        )
        if packed:
            return self._parameters.push_at(slot.sent, slot.gradient, slot.versions, push)
        return self._parameters.push(slot.sent, slot.versions, push)

    def _acknowledged(self, slot: GradientBuffer, _: PushResult) -> None:
        """Report a bundle that every segment has received; runs on the push thread."""
        turn, number = slot.clock, slot.sequence
        self._reporter.done(
            wire.BundleDone(
                pass_number=turn,
                bundle=number,
                loss_sum=slot.loss_sum,
                samples=slot.samples,
                seconds=self._holds[turn, number],
            )
        )
        del self._holds[turn, number]

    def flush(self) -> None:
        """Wait until every segment has received all bundles; raise the error of a failed push."""
        self._sender.flush()

    def check(self) -> None:
        """Raise the error of a failed push; otherwise the replica would wait for work that is never assigned."""
        self._sender.check()

    def close(self) -> None:
        """End both threads; computed bundles are pushed first."""
        self._helper.shutdown()
        self._sender.close()


def _portions(bundle: wire.Bundle) -> Iterator[tuple[int, int]]:
    """First sample and one past the last, of each portion."""
    for start in range(bundle.start, bundle.stop, bundle.portion):
        yield start, min(start + bundle.portion, bundle.stop)
