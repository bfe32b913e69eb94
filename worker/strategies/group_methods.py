"""Step of a group of workers: sum the gradients, or move towards the mean of all weights.

After a step all workers have the same bits of the job's parameters. The first worker writes them to the shards; an
up-to-date worker sends them to those that join later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dbelief import job
from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.arrays.vector_kernels import compiled
from dbelief.core.absent import Missed, of_tensors
from dbelief.core.layout import RankPart
from dbelief.core.reduction_tree import named
from dbelief.nn import Batch, LeavesOut, Model, absent_of
from dbelief.optim import apply_present, apply_rule, counts_steps, make_rule
from dbelief.optim.gradients import check_finite, clip_by_norm
from dbelief.optim.rules.elastic import ElasticMove
from dbelief.process.runtime import runtime
from dbelief.training.elastic_weights import ElasticWeights

from ..comm import Communicator
from ..comm.collectives import Allreduce, RingAllreduce, TreeAllreduce


class GroupMethod(Protocol):
    """Interface of a method by which a group makes a step from its mini-batches.

    Attributes
    ----------
    result
        (N,) float32 on the host, the same bits in all workers after each step: the job's parameters.
    """

    result: np.ndarray

    def join(self, comm: Communicator) -> None:
        """Sum over these ranks from now on."""

    def begin(self) -> None:
        """Start from `result`, which has been read or received."""

    def state(self) -> list[np.ndarray]:
        """Arrays of the last step that a worker needs that has not made it, on the host; to be sent, or received into.

        `result` is not included.
        """

    def take(self, missed: int | None) -> None:
        """Continue from the received `state` and `result`, after `missed` steps of the group; None: all."""

    def step(self, batch: Batch | None, weight: float, rate: float, summed: Callable[[], None]) -> float:
        """Make a step from this worker's mini-batch and those of the others; return the mini-batch's mean loss.

        Parameters
        ----------
        batch
            None if this worker's data is used up: it adds nothing, but takes part in the sum.
        weight
            The mini-batch's share of the step's samples.
        summed
            Called when the gradient is complete, and only the sum is waited for.

        Raises
        ------
        RankFailure, Unavailable
            The sum did not complete: the step is not made.
        NonFinite
            A summed value is not finite; names the tensor.
        """

    def close(self) -> None:
        """End the method's threads, if any."""


class AllreduceSgd:
    """Synchronous SGD: every worker applies one rule to one sum of gradients (FireCaffe, section 6).

    Where the model may leave out parameters, the summed vector has a number for each tensor after the gradient: 1
    where it took part. A parameter that took part in no worker is left as it is, and counts no step.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        strategy: job.SyncSgd,
        allocate: Allocate = aligned_float32,
    ) -> None:
        self._model, self._part, self._backend, self._strategy = model, part, backend, strategy
        self._rule = make_rule(strategy.rule.name, strategy.rule.model_dump(exclude={"name", "rate"}))
        self.result = allocate(part.size)
        self._states = tuple(aligned_float32(part.size) for _ in self._rule.state)
        self._steps = np.zeros(len(part.boxes), np.int64)  # by tensor
        self._exchanged = aligned_float32(part.size + len(part.boxes) * isinstance(model, LeavesOut))
        self._summed, self._took = np.split(self._exchanged, [part.size])
        self._weights = backend.to_device(self.result)
        self._gradient = backend.to_device(self._summed)

    def join(self, comm: Communicator) -> None:
        """See `GroupMethod`."""
        self._reduce = make_allreduce(comm, self._strategy.reduction, self._exchanged.size)

    def begin(self) -> None:
        """See `GroupMethod`."""
        for values, initial in zip(self._states, self._rule.state.values(), strict=True):
            values[:] = initial
        self._steps[:] = 0
        self._to_device()

    def state(self) -> list[np.ndarray]:
        """See `GroupMethod`."""
        return [*self._states, self._steps]

    def take(self, missed: int | None) -> None:
        """See `GroupMethod`."""
        self._to_device()

    def step(self, batch: Batch | None, weight: float, rate: float, summed: Callable[[], None]) -> float:
        """See `GroupMethod`."""
        gradient, loss = self._gradient, 0.0
        with np.errstate(all="ignore"):  # values that are not finite are reported below
            self._took[:] = 0
            if batch is None:
                gradient[:] = 0
            else:
                views = self._part.views(self._weights), self._part.views(gradient)
                loss = float(self._model.loss_and_gradient(views[0], batch, views[1]))
                if self._strategy.gives == "mean":
                    gradient *= np.float32(weight)
                if self._took.size:
                    left_out = absent_of(self._model)
                    self._took[:] = [box.name not in left_out for box in self._part.boxes]
            if gradient is not self._summed:
                self._summed[:] = gradient.get()
            summed()
            self._reduce(self._exchanged)
            check_finite(self._summed, self._part)
            # All workers clip this sum. With BLAS, norms would differ in the last bit, and so would the copies.
            clip_by_norm(
                np, self._summed, self._strategy.clip_norm, lambda squares: compiled("dot")(self._summed, self._summed)
            )
        self._apply(np.float32(rate))
        self._to_device()
        return loss

    def _apply(self, rate: np.float32) -> None:
        """Apply the rule to the parameters that took part in some worker."""
        took = self._took > 0 if self._took.size else np.ones(self._steps.size, bool)
        made, arrays = int(self._steps.max()), (self.result, self._summed, self._states)
        missed = self._missed(made)
        if took.all() and not missed:
            apply_rule(self._rule, *arrays, rate, made + 1)
        else:
            left_out = [box.name for box, here in zip(self._part.boxes, took, strict=True) if not here]
            apply_present(self._rule, *arrays, rate, made, of_tensors(self._part, left_out), missed)
        self._steps += took

    def _missed(self, made: int) -> Missed:
        if not counts_steps(self._rule):
            return ()
        boxes = zip(self._part.boxes, self._part.starts, self._steps.tolist(), strict=True)
        return tuple((start, start + box.size, made - steps) for box, start, steps in boxes if steps < made)

    def _to_device(self) -> None:
        if self._weights is not self.result:
            self._weights.set(self.result)

    def close(self) -> None:
        """See `GroupMethod`: there are no threads."""


class AllreduceEasgd:
    """Synchronous elastic averaging among the workers (You et al. 2017, algorithm 3 and section 6.1.3).

    Each worker has the centre C and its own weights W_i. In a step the weights of all workers, before their update, are
    summed, and

        W_i <- W_i - eta g_i - a (W_i - C),    C <- C + a (sum of W_i - P C)

    The sum needs no gradient. In form 3 it overlaps with the computation of the gradient, and the step takes the longer
    of the two times, not both. In form 2 it follows the computation, with the same bits.

    Parameters
    ----------
    moving_rate
        a, by eta.
    """

    def __init__(
        self,
        model: Model,
        part: RankPart,
        backend: Backend,
        strategy: job.Elastic,
        moving_rate: Callable[[float], float],
        allocate: Allocate = aligned_float32,
    ) -> None:
        self._part, self._backend, self._strategy, self._moving_rate = part, backend, strategy, moving_rate
        self._own = ElasticWeights(model, part, backend, clip_norm=strategy.clip_norm)
        self.result = allocate(part.size)  # the centre
        self._sum, self._used = aligned_float32(part.size), aligned_float32(part.size)
        self._missing: tuple[float, float] | None = None  # rates of a step whose sum did not complete
        self._helper = runtime.executor(1, "sum") if strategy.form == 3 else None

    def join(self, comm: Communicator) -> None:
        """See `GroupMethod`."""
        self._ranks = comm.size
        self._reduce = make_allreduce(comm, self._strategy.reduction, self._sum.size)

    def begin(self) -> None:
        """See `GroupMethod`."""
        self._missing = None
        self._own.begin(self.result)

    def state(self) -> list[np.ndarray]:
        """See `GroupMethod`: no worker needs another one's weights."""
        return []

    def take(self, missed: int | None) -> None:
        """See `GroupMethod`.

        A worker that missed one step makes its own half of it here, with the previous centre, which it kept.
        """
        if missed is None:
            self.begin()
        elif missed == 1 and self._missing is not None:
            self._own.step(*self._missing, self._used)
        self._missing = None

    def step(self, batch: Batch | None, weight: float, rate: float, summed: Callable[[], None]) -> float:
        """See `GroupMethod`."""
        moving_rate = self._moving_rate(rate)
        check_finite(self._own.values, self._part, "weights")
        self._sum[:] = self._own.values if self._backend.name == "numpy" else self._own.values.get()
        self._used[:] = self.result
        under_way = self._helper.submit(self._reduce, self._sum) if self._helper is not None else None
        loss = 0.0
        if batch is None:
            self._own.zero_gradient()
        else:
            loss = self._own.compute(batch)
        summed()
        self._missing = rate, moving_rate
        if under_way is None:
            self._reduce(self._sum)
        else:
            under_way.result()
        self._missing = None
        self._own.step(rate, moving_rate, self._used)
        with np.errstate(all="ignore"):
            ElasticMove.move(self.result, self._sum, self._ranks, moving_rate)
        return loss

    def close(self) -> None:
        """See `GroupMethod`."""
        if self._helper is not None:
            self._helper.shutdown()


def make_allreduce(comm: Communicator, reduction: job.Reduction, size: int) -> Allreduce:
    """Create the allreduce that a job requests, for (size,) float32 vectors of a group."""
    options: Mapping[str, Any] = {"wire": reduction.wire, "chunk": reduction.chunk}
    if reduction.way == "ring":
        return RingAllreduce(comm, size, np.float32, **options)
    tree = named(reduction.way, comm.size, reduction.arity)
    return TreeAllreduce(comm, size, np.float32, tree, **options)
