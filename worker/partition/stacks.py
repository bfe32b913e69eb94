"""Sparse autoencoders, one or stacks of them, partitioned over the ranks of one replica: the values of one rank.

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

from dbelief.arrays.backend import Backend
from dbelief.core.layout import Layout
from dbelief.nn import Array, Batch, SparseAutoencoder
from dbelief.nn.autoencoders.stack import Stack, sizes_of
from dbelief.nn.autoencoders.stack_chain import Chain
from dbelief.nn.autoencoders.stacks import Stacks, own_tensors, tensor_name
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.model import Tensors
from dbelief.partition import Grid
from dbelief.partition.stacks import StackParts

from ..comm import Communicator
from .autoencoder import local_blocks
from .distributed_array import declared


class _StackBoundary:
    """Transfer of maps from the ranks that compute them to those that read them (`Crossing`)."""

    def __init__(self, comm: Communicator, parts: StackParts, place: int, which: int) -> None:
        few = lru_cache(maxsize=4)  # a lease's last batch is shorter, evaluation has its own length
        self._array = few(lambda m, dtype: declared(comm, parts.between(place, m)[which], dtype))

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
        The complete model, as on one rank.
    prefixes
        Of the names of the trained stacks' tensors.
    below
        Tensors of this rank's blocks of the stacks that are not trained.
    """

    def __init__(
        self,
        model: Stacks | SparseAutoencoder,
        comm: Communicator,
        parts: StackParts,
        layout: Layout,
        prefixes: Sequence[str],
        below: Sequence[Tensors] = (),
    ) -> None:
        self._model, self._comm, self.layout, self._prefixes = model, comm, layout, prefixes
        self._pixels = parts.parts[0].pixels(comm.rank)
        places = range(1, len(parts.parts) + 1)
        self._chain = Chain([_stack(model.backend, comm, parts, place) for place in places], below)
        self._shared = lru_cache(maxsize=2)(lambda dtype: declared(comm, parts.alphas(), dtype))

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw the initial values of the complete model: the same bits on every rank, and for every grid."""
        return self._model.parameters(rng)

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Return the mean loss, the same on every rank, and write the gradient of the rank's boxes into `out`.

        Raises
        ------
        RankFailure, Unavailable
            Another rank failed, or did not answer.
        Others
            As the complete model's.
        """
        seen, own, kind = self._seen(views, batch)
        slopes = self._comm.xp.empty(len(own), kind)
        mine = self._with_alphas(out, slopes)
        loss = self._chain.forward(own, seen) / len(batch)
        self._chain.backward(own, len(batch), mine)
        sums = self._comm.xp.empty(1 + len(slopes), np.float64)
        sums[0], sums[1:] = loss, slopes
        self._comm.allreduce(sums)
        for prefix, slope in zip(self._prefixes, sums[1:], strict=True):
            if f"{prefix}alpha" in out:
                out[f"{prefix}alpha"][...] = slope
        return float(sums[0])

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, None]:
        """Return the sum of the losses, the same on every rank, and None: there is no accuracy."""
        seen, own, _ = self._seen(views, batch)
        return self._comm.total(self._chain.evaluate(own, seen)), None

    def _seen(self, views: Tensors, batch: Batch) -> tuple[Array, Sequence[Tensors], np.dtype]:
        """The pixels that this rank's lowest blocks see; its tensors of trained stacks, with alphas; their dtype."""
        kind = next((values.dtype for values in views.values()), batch.inputs.dtype)  # a rank may have no parameters
        seen = self._pixels.select(self._model.checked_inputs(kind, batch.inputs), 1)
        shared = self._shared(kind)
        mine = self._comm.xp.empty(shared.output.shape, kind)
        for i in range(len(mine)):
            mine[i : i + 1] = views[f"{self._prefixes[i]}alpha"]
        return seen, self._with_alphas(views, shared.gather(mine)), kind

    def _with_alphas(self, views: Tensors, alphas: Array) -> list[dict[str, Array]]:
        """The tensors of each trained stack under its layer's names, with these values for alpha."""
        names = [f"{prefix}weight" for prefix in self._prefixes]
        weights = [{"weight": views[name]} if name in views else {} for name in names]
        return [{**own, "alpha": alphas[i : i + 1]} for i, own in enumerate(weights)]


def partitioned_autoencoder(model: SparseAutoencoder, comm: Communicator, grid: Grid) -> PartitionedStacks:
    """One layer as a single stack, above which nothing is pooled or normalised."""
    stacks = [(model.eq1, Lcn())]
    parts = StackParts(sizes_of(model.image, stacks), stacks, 1, grid)
    return PartitionedStacks(model, comm, parts, parts.parts[0].layout, [""])


def partitioned_stacks(model: Stacks, comm: Communicator, grid: Grid) -> PartitionedStacks:
    """All stacks up to the highest that is trained."""
    parts = StackParts(model.sizes, model.stacks, model.first, grid)
    below = [_given(model, comm.rank, parts, place) for place in range(1, model.first)]
    prefixes = [tensor_name(place, "") for place in range(model.first, len(model.stacks) + 1)]
    return PartitionedStacks(model.without_below(), comm, parts, parts.layout, prefixes, below)


def _stack(backend: Backend, comm: Communicator, parts: StackParts, place: int) -> Stack:
    """This rank's part of one stack; `place` counts from 1."""
    eq1, lcn = parts.stacks[place - 1]
    own = local_blocks(parts.parts[place - 1], eq1, backend, comm)
    shapes = parts.shapes(place, comm.rank)
    if place == len(parts.parts):
        return Stack(shapes, eq1, lcn, backend, own)
    crossings = [_StackBoundary(comm, parts, place, which) for which in range(3)]
    return Stack(shapes, eq1, lcn, backend, own, crossings)


def _given(model: Stacks, rank: int, parts: StackParts, place: int) -> dict[str, Array]:
    """Tensors of a rank's blocks of a stack that is not trained, and alpha, which all ranks have."""
    tensors = own_tensors(model.given, place)
    to_device = model.backend.to_device
    mine = parts.parts[place - 1].blocks[rank].select(tensors["weight"], 0).copy()  # a view would keep all of it alive
    return {"weight": to_device(mine), "alpha": to_device(tensors["alpha"])}
