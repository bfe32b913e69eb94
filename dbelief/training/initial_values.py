"""Initial values of a job's model: its layout, for which nothing is drawn, and what a push of them reads.

A model of dbelief's declares the shapes of its tensors. Only the replica that pushes its initial values draws them,
while they are sent: those of layers where they are read, so that no array holds them all; those of autoencoders in
their one order. A model of the user's has its layout from the tensors that it draws, so every replica draws them, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.arrays.push_source import PushSource
from dbelief.core.layout import Kind, Layout, Range
from dbelief.errors import ModelError
from dbelief.job import Asynchronous, Downpour, Job, PythonModel, SyncSgd
from dbelief.nn import HasBuffers, Model, Network, SharesTensors, SparseAutoencoder
from dbelief.nn.autoencoders.stacks import Stacks
from dbelief.nn.model import Drawn
from dbelief.process.runtime import runtime
from dbelief.process.terminal.console import format_error


@dataclass(frozen=True)
class InitialValues:
    """Initial values of a model on one rank, not drawn yet where it is one of dbelief's.

    Attributes
    ----------
    source
        Makes what a push of them reads; each call begins anew.
    """

    layout: Layout
    source: Callable[[], PushSource]

    @classmethod
    def of(cls, job: Job, model: Model) -> InitialValues:
        """Those that the job's seed gives: same job, same bits.

        Cost: nothing for a model of dbelief's; a model of the user's draws and keeps them.

        Raises
        ------
        ModelError
            The user's model cannot draw them, or its tensors are not float32 arrays.
        """
        if not isinstance(job.model, PythonModel):
            if isinstance(model, Network):
                return cls(Layout.whole(model.shapes), lambda: model.initial_values(job.seed))
            if isinstance(model, SparseAutoencoder | Stacks):
                layout = Layout.whole(model.shapes)
                return cls(layout, lambda: DrawnInOrder(layout, model.drawn(np.random.default_rng(job.seed))))
        tensors = _drawn_by(model, job.seed)
        buffers = model.buffers if isinstance(model, HasBuffers) else {}
        _check_buffers(job, buffers)
        kinds = dict.fromkeys(buffers, Kind.SUMMED)
        layout = Layout.of(tensors, model.also if isinstance(model, SharesTensors) else None, kinds, buffers)
        held = HeldTensors(layout, tensors)
        return cls(layout, lambda: held)

    def flat(self) -> np.ndarray:
        """All values as one (N,) float32 vector."""
        (values,) = self.source().blocks([(0, self.layout.size)])
        return values


def _check_buffers(job: Job, buffers: Mapping[str, str]) -> None:
    """Refuse buffers where a step is made of anything but one mini-batch's gradient, as it was computed.

    Raises
    ------
    ModelError
        The job's strategy has them clipped, accumulated, averaged as weights, or replayed.
    """
    strategy = job.strategy
    travel = isinstance(strategy, Downpour | Asynchronous | SyncSgd) and (
        not strategy.grouped and (strategy.n_push, strategy.n_fetch, strategy.clip_norm) == (1, 1, None)
    )
    if buffers and not travel:
        raise ModelError(
            f"the model keeps {next(iter(buffers))!r} beside its parameters ({len(buffers)} buffers), whose changes "
            "travel only with downpour, async-sgd, async-msgd, and sync-sgd in the form shards, at n_push 1 and "
            "n_fetch 1, without clip_norm; a script may have them with any strategy: see dbelief help pytorch_state"
        )
    if buffers and job.record:
        raise ModelError("record: must be false where the model has buffers: a replay knows gradients alone")


def _drawn_by(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Tensors by name, as the model draws them.

    Raises
    ------
    ModelError
        It cannot, or they are not float32 arrays.
    """
    try:
        drawn = {name: np.asarray(values) for name, values in model.parameters(np.random.default_rng(seed)).items()}
    except Exception as error:  # any exception of a user's model code
        raise ModelError(f"parameters(rng): {format_error(error)}") from error
    for name, values in drawn.items():
        if values.dtype != np.float32:
            raise ModelError(f"parameters(rng): {name!r} is {values.dtype}, wanted float32")
    return drawn


class HeldTensors:
    """Complete tensors in the order of a layout on one rank, copied where they are read (`PushSource`)."""

    def __init__(self, layout: Layout, tensors: Mapping[str, np.ndarray]) -> None:
        self._starts = layout.starts
        self._tensors = [np.ascontiguousarray(tensors[box.name]).reshape(-1) for box in layout.boxes]

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """See `PushSource`. Memory of the longest range."""
        buffer = aligned(max((stop - start for start, stop in ranges), default=0), np.float32)
        for start, stop in ranges:
            for first, tensor in zip(self._starts, self._tensors, strict=True):
                begin, end = max(start, first), min(stop, first + len(tensor))
                if begin < end:
                    buffer[begin - start : end - start] = tensor[begin - first : end - first]
            yield buffer[: stop - start]


class DrawnInOrder:
    """Values that can be drawn in one order only, each drawn when it, or a later one, is first read (`PushSource`).

    Parameters
    ----------
    layout
        On one rank.
    drawn
        All tensors in the layout's order, each in its order of rows.

    Notes
    -----
    Memory: all values, as far as they are drawn, and one piece of `drawn`. Reading a range waits until it is drawn, by
    whichever thread; what is drawn already does not wait for the rest. The shard of the last segments receives
    nothing until those before are drawn, at some 12 ns each; the deadline of a push bounds that time too.
    """

    def __init__(self, layout: Layout, drawn: Drawn) -> None:
        self._starts = dict(zip((box.name for box in layout.boxes), layout.starts, strict=True))
        self._values = aligned(layout.size, np.float32)
        self._drawn = drawn
        self._done = 0
        self._lock = runtime.lock()

    def blocks(self, ranges: Sequence[Range]) -> Iterator[np.ndarray]:
        """See `PushSource`; the blocks are views."""
        for start, stop in ranges:
            while self._done < stop:
                with self._lock:
                    if self._done < stop:
                        self._draw()
            yield self._values[start:stop]

    def _draw(self) -> None:
        """Draw the next piece; the lock is held."""
        name, first, rows = next(self._drawn)
        begin = self._starts[name] + first * (rows.size // len(rows) if rows.ndim else 0)
        self._values[begin : begin + rows.size] = rows.reshape(-1)
        self._done = begin + rows.size
