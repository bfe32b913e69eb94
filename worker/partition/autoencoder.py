"""Sparse autoencoder partitioned over the ranks of one replica: the values of one rank, with blocks on each rank.

Every rank has the complete mini-batch, and makes tiles of the pixels that its blocks see. It runs a `SparseAutoencoder`
of its own blocks alone. Two distributed arrays connect it with the other ranks' blocks (`Around`):

    tiles      W^T z of each rank on the tiles it sees. Values of tiles that several ranks see are summed on the rank
               that counts their error, and sent back to all, so that e is complete before it is multiplied by W again
    neurons    squares of activations that pooling windows across an edge see, and in return the gradients of these
               windows

The owner sends alpha to all ranks; its gradient and the loss are summed over the ranks, in rank order. A rank's memory
and time are proportional to its blocks, except for the mini-batch itself.

Source: COTS HPC, sections 4.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.core.layout import Layout
from dbelief.nn import Array, Batch, SparseAutoencoder
from dbelief.nn.autoencoder import EVALUATED, Eq1
from dbelief.nn.kernels import Blocks
from dbelief.partition import Grid, Window
from dbelief.partition.blocks import BlockParts
from dbelief.partition.declared import Declared

from ..comm import Communicator
from .distributed_array import DistributedArray, declared


class _Ranks:
    """The other ranks' blocks as the surroundings (`Around`) of this rank's blocks."""

    def __init__(self, comm: Communicator, parts: BlockParts) -> None:
        rank = comm.rank
        self._parts, self._rank = parts, rank
        rows, columns = parts.counted[rank].within(parts.tiles[rank])
        self.counted = rows, columns
        down, across = parts.seen[rank].shape
        self.seen = down, across

        @lru_cache(maxsize=4)  # a lease's last batch is shorter, evaluation has its own length
        def tiles(m: int, dtype: np.dtype) -> DistributedArray:
            return declared(comm, parts.tile_array(m), dtype)

        @lru_cache(maxsize=4)
        def neurons(n: int, dtype: np.dtype) -> DistributedArray:
            return declared(comm, parts.neuron_array(n), dtype)

        self._tiles, self._neurons = tiles, neurons

    @property
    def blocks(self) -> Blocks:
        """Blocks of this rank."""
        return self._parts.part(self._rank)

    def complete(self, rebuilt: Array) -> None:
        """Sum each tile on the rank that counts it, and send the sum to all ranks that see it."""
        tiles = self._tiles(rebuilt.shape[-1], rebuilt.dtype)
        rebuilt[...] = tiles.gather(tiles.scatter_add(rebuilt))

    def gather(self, maps: Array, seen: Array) -> None:
        """Receive the neurons beyond this rank's edge that its pooling windows see."""
        seen[...] = self._neurons(maps.shape[-1], maps.dtype).gather(maps)

    def scatter_add(self, seen: Array, maps: Array) -> None:
        """Sum the pooling windows' values for each neuron on the rank that has it."""
        maps[...] = self._neurons(maps.shape[-1], maps.dtype).scatter_add(seen)


class EmptyRank:
    """Layer of a rank without blocks, which only participates in the exchanges; see `SparseAutoencoder`."""

    def __init__(self, ranks: _Ranks, depth: int, maps: int, comm: Communicator) -> None:
        self._ranks, self._depth, self._maps, self._xp = ranks, depth, maps, comm.xp

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        """Take part in the exchanges; no loss."""
        self.forward(views, batch.inputs)
        self.backward(views, len(batch), out)
        return 0.0

    def evaluate(self, views: Mapping[str, Array], batch: Batch) -> tuple[float, None]:
        """Take part in the exchanges; no loss."""
        for first in range(0, len(batch), EVALUATED):
            self.forward(views, batch.inputs[first : first + EVALUATED])
        return 0.0, None

    def forward(self, views: Mapping[str, Array], inputs: Array) -> float:
        """Take part in the exchanges; no loss."""
        m, dtype = len(inputs), views["alpha"].dtype
        self._ranks.complete(self._xp.empty((0, 0, self._depth, m), dtype))
        nothing = self._nothing(m, dtype)
        self._ranks.gather(nothing, nothing)
        return 0.0

    def encode(self, views: Mapping[str, Array], inputs: Array, out: Array) -> None:
        """Do nothing: there is no z."""

    def activations(self, views: Mapping[str, Array], m: int, out: Array) -> None:
        """Do nothing: there is no z."""

    def backward(
        self,
        views: Mapping[str, Array],
        m: int,
        out: Mapping[str, Array],
        above: Array | None = None,
        below: Array | None = None,
    ) -> None:
        """Take part in the exchange; no gradient."""
        nothing = self._nothing(m, views["alpha"].dtype)
        self._ranks.scatter_add(nothing, nothing)
        out["alpha"].fill(0)

    def give_back(self, views: Mapping[str, Array], dz: Array, out: Array) -> None:
        """Do nothing: there is no gradient."""

    def _nothing(self, m: int, dtype: np.dtype) -> Array:
        """Empty array of maps."""
        return self._xp.empty((0, 0, self._maps * m), dtype)


def local_blocks(parts: BlockParts, eq1: Eq1, backend: Backend, comm: Communicator) -> SparseAutoencoder | EmptyRank:
    """Create a layer of this rank's blocks, which sees the pixels of `parts`; collective."""
    ranks, pixels, depth = _Ranks(comm, parts), parts.pixels(comm.rank), parts.whole.depth
    if not pixels.size:
        return EmptyRank(ranks, depth, eq1.maps, comm)
    height, width = pixels.shape
    return SparseAutoencoder((height, width, depth // eq1.block**2), eq1, backend, ranks)


class PartitionedAutoencoder:
    """One rank's part of a sparse autoencoder, as a model; calls are collective, with the same batches on all ranks.

    Its views are those of the rank's boxes (`layout`); a rank without blocks has none, or alpha alone.

    Parameters
    ----------
    model
        The complete autoencoder, as on one rank.

    Raises
    ------
    ValueError
        The size of the grid differs from the number of ranks.
    """

    def __init__(self, model: SparseAutoencoder, comm: Communicator, grid: Grid) -> None:
        if grid.size != comm.size:
            raise ValueError(f"a grid of {grid.size} ranks for {comm.size}")
        self._model, self._comm = model, comm
        parts = BlockParts.of(model.blocks, model.eq1, grid)
        self.layout: Layout = parts.layout
        self._pixels = parts.pixels(comm.rank)
        self._own = local_blocks(parts, model.eq1, model.backend, comm)

        @lru_cache(maxsize=2)
        def shared(dtype: np.dtype) -> DistributedArray:
            return declared(comm, Declared.from_owner((1,), comm.size), dtype)

        self._shared = shared

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw the initial values of the complete autoencoder: the same bits on every rank, and for every grid."""
        return self._model.parameters(rng)

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        """Return the mean loss, the same on every rank, and write the gradient of the rank's boxes into `out`.

        Raises
        ------
        RankFailure, Unavailable
            Another rank failed, or did not answer.
        Others
            As `SparseAutoencoder.loss_and_gradient`.
        """
        seen, own = self._seen(views, batch)
        slope = self._comm.xp.empty(1, own["alpha"].dtype)
        loss = self._own.loss_and_gradient(own, seen, {**out, "alpha": slope})
        sums = self._comm.xp.empty(2, np.float64)
        sums[0], sums[1:] = loss, slope
        self._comm.allreduce(sums)
        if "alpha" in out:
            out["alpha"][...] = sums[1:]
        return float(sums[0])

    def evaluate(self, views: Mapping[str, Array], batch: Batch) -> tuple[float, None]:
        """Return the sum of the losses, the same on every rank, and None: there is no accuracy."""
        seen, own = self._seen(views, batch)
        return self._comm.total(self._own.evaluate(own, seen)[0]), None

    def _seen(self, views: Mapping[str, Array], batch: Batch) -> tuple[Batch, dict[str, Array]]:
        """The pixels that this rank's blocks see, and its parameters, with alpha."""
        kind = next((values.dtype for values in views.values()), batch.inputs.dtype)  # a rank may have no parameters
        images = self._model.checked_inputs(kind, batch)
        seen = images[self._pixels.along(images.shape, 1).within(Window.whole(images.shape))]
        alpha = self._shared(kind)
        mine = views.get("alpha", self._comm.xp.empty(alpha.output.shape, kind))
        return Batch(seen, batch.targets), {**views, "alpha": alpha.gather(mine)}
