"""Stacks of sparse autoencoders partitioned over the ranks of one replica: the values of one rank, blocks on each rank.

Every rank has the complete mini-batch. Of each stack it has its own blocks (`local_blocks`), and its windows of p and y
(`StackParts`). The ranks exchange, in the forward and then in the backward pass,

    of each stack but the last       z, p and y from the ranks that compute them to those that read them; gradients
                                     back, summed
    of each stack that is trained    what a single layer exchanges (`autoencoder.py`)
    in all, once                     alphas that are trained, from their owner; the sums of loss and alphas' gradients

The gradient of a rank's blocks with respect to the pixels that they see is one summand. It is summed on the way to the
ranks that have normalised these pixels.

Source: COTS HPC, sections 3, 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from dbelief.core.layout import Layout
from dbelief.nn import Array, Batch
from dbelief.nn.stack import Stack
from dbelief.nn.stack_chain import Chain
from dbelief.nn.stacks import Stacks, own_tensors, tensor_name
from dbelief.partition import Grid, Window
from dbelief.partition.stacks import StackParts

from ..comm import Communicator
from .autoencoder import local_blocks
from .distributed_array import DistributedArray, declared


class _StackBoundary:
    """Transfer of maps from the ranks that compute them to those that read them (`Crossing`)."""

    def __init__(self, comm: Communicator, parts: StackParts, place: int, which: int) -> None:
        @lru_cache(maxsize=4)  # a lease's last batch is shorter, evaluation has its own length
        def array(m: int, dtype: np.dtype) -> DistributedArray:
            return declared(comm, parts.between(place, m)[which], dtype)

        self._array = array

    def gather(self, made: Array) -> Array:
        """Receive the values that this rank reads."""
        return self._array(len(made), made.dtype).gather(made)

    def scatter_add(self, slopes: Array) -> Array:
        """Send the gradient back to the ranks that computed the values, and sum it there."""
        return self._array(len(slopes), slopes.dtype).scatter_add(slopes)


class PartitionedStacks:
    """One rank's part of stacks, as a model; calls are collective, with the same batches on all ranks.

    Its views are those of the rank's boxes (`layout`); a rank without blocks in trained stacks has none, or alphas
    alone. Of stacks that are not trained it keeps the tensors of its own blocks.

    Parameters
    ----------
    model
        The complete stacks, as on one rank.

    Raises
    ------
    ValueError
        The size of the grid differs from the number of ranks.
    """

    def __init__(self, model: Stacks, comm: Communicator, grid: Grid) -> None:
        if grid.size != comm.size:
            raise ValueError(f"a grid of {grid.size} ranks for {comm.size}")
        self._comm = comm
        parts = StackParts(model.sizes, model.stacks, model.first, grid)
        self.layout: Layout = parts.layout
        self._pixels = parts.parts[0].pixels(comm.rank)
        places = range(1, len(model.stacks) + 1)
        self._chain = Chain(
            [_stack(model, comm, parts, place) for place in places],
            [_given(model, comm.rank, parts, place) for place in places[: model.first - 1]],
        )
        self._model = model.without_below()
        self._alphas = [tensor_name(place, "alpha") for place in places[model.first - 1 :]]

        @lru_cache(maxsize=2)
        def shared(dtype: np.dtype) -> DistributedArray:
            return declared(comm, parts.alphas(), dtype)

        self._shared = shared

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw the initial values of the complete stacks: the same bits on every rank, and for every grid."""
        return self._model.parameters(rng)

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        """Return the mean loss, the same on every rank, and write the gradient of the rank's boxes into `out`.

        Raises
        ------
        RankFailure, Unavailable
            Another rank failed, or did not answer.
        Others
            As `Stacks.loss_and_gradient`.
        """
        seen, own, kind = self._seen(views, batch)
        slopes = self._comm.xp.empty(len(own), kind)
        mine = self._with_alphas(out, slopes)
        loss = self._chain.forward(own, seen) / len(batch)
        self._chain.backward(own, len(batch), mine)
        sums = self._comm.xp.empty(1 + len(slopes), np.float64)
        sums[0], sums[1:] = loss, slopes
        self._comm.allreduce(sums)
        for name, slope in zip(self._alphas, sums[1:], strict=True):
            if name in out:
                out[name][...] = slope
        return float(sums[0])

    def evaluate(self, views: Mapping[str, Array], batch: Batch) -> tuple[float, None]:
        """Return the sum of the losses, the same on every rank, and None: there is no accuracy."""
        seen, own, _ = self._seen(views, batch)
        return self._comm.total(self._chain.evaluate(own, seen)), None

    def _seen(self, views: Mapping[str, Array], batch: Batch) -> tuple[Array, Sequence[Mapping[str, Array]], np.dtype]:
        """The pixels that this rank's lowest blocks see; its tensors of trained stacks, with alphas; their dtype."""
        kind = next((values.dtype for values in views.values()), batch.inputs.dtype)  # a rank may have no parameters
        images = self._model.checked_inputs(kind, batch.inputs)
        seen = images[self._pixels.along(images.shape, 1).within(Window.whole(images.shape))]
        shared = self._shared(kind)
        mine = self._comm.xp.empty(shared.output.shape, kind)
        for i in range(len(mine)):
            mine[i : i + 1] = views[self._alphas[i]]
        return seen, self._with_alphas(views, shared.gather(mine)), kind

    def _with_alphas(self, views: Mapping[str, Array], alphas: Array) -> list[dict[str, Array]]:
        """The tensors of each trained stack under its layer's names, with these values for alpha."""
        found = self._model.trained_tensors(views)
        return [{**own, "alpha": alphas[i : i + 1]} for i, own in enumerate(found)]


def _stack(model: Stacks, comm: Communicator, parts: StackParts, place: int) -> Stack:
    """This rank's part of one stack; `place` counts from 1."""
    eq1, lcn = model.stacks[place - 1]
    own = local_blocks(parts.parts[place - 1], eq1, model.backend, comm)
    shapes = parts.shapes(place, comm.rank)
    if place == len(parts.parts):
        return Stack(shapes, eq1, lcn, model.backend, own)
    crossings = [_StackBoundary(comm, parts, place, which) for which in range(3)]
    return Stack(shapes, eq1, lcn, model.backend, own, crossings)


def _given(model: Stacks, rank: int, parts: StackParts, place: int) -> dict[str, Array]:
    """Tensors of a rank's blocks of a stack that is not trained, and alpha, which all ranks have."""
    tensors = own_tensors(model.given, place)
    weight, to_device = tensors["weight"], model.backend.to_device
    blocks = parts.parts[place - 1].blocks[rank].along(weight.shape, 0)
    mine = weight[blocks.within(Window.whole(weight.shape))].copy()  # a view would keep the complete array alive
    return {"weight": to_device(mine), "alpha": to_device(tensors["alpha"])}
