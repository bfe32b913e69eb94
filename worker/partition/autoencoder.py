"""A sparse autoencoder cut over the ranks of one replica: the same numbers as on one, each rank with its own blocks.

Every rank has the whole mini-batch, and makes tiles of the pixels that its blocks see. To them it is a
`SparseAutoencoder` of those blocks alone, but for what lies around (`Around`), which two distributed arrays bring:

    tiles      W^T z of each rank on the tiles it sees; what several of them see is summed with the rank that counts its
               error, and goes back to all, so that e is whole there before it is multiplied by W again
    neurons    squares of activations that pooling windows across an edge see, and back what these windows have for them

alpha goes from its owner to all; its gradient and the loss are summed over the ranks, in their order. What a rank needs
of memory and time goes with its blocks, but for the mini-batch itself.

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
    """The other ranks, as what is around this one's blocks (`Around`)."""

    def __init__(self, comm: Communicator, parts: BlockParts) -> None:
        rank = comm.rank
        self._parts, self._rank = parts, rank
        rows, columns = parts.counted[rank].within(parts.tiles[rank])
        self.counted = rows, columns
        down, across = parts.seen[rank].shape
        self.seen = down, across

        @lru_cache(maxsize=4)  # a lease's last batch is shorter, evaluation has its own
        def tiles(m: int, dtype: np.dtype) -> DistributedArray:
            return declared(comm, parts.tile_array(m), dtype)

        @lru_cache(maxsize=4)
        def neurons(n: int, dtype: np.dtype) -> DistributedArray:
            return declared(comm, parts.neuron_array(n), dtype)

        self._tiles, self._neurons = tiles, neurons

    @property
    def blocks(self) -> Blocks:
        """This rank's."""
        return self._parts.part(self._rank)

    def complete(self, rebuilt: Array) -> None:
        """Sum where tiles are counted, and bring that to all who see them."""
        tiles = self._tiles(rebuilt.shape[-1], rebuilt.dtype)
        rebuilt[...] = tiles.gather(tiles.scatter_add(rebuilt))

    def gather(self, maps: Array, seen: Array) -> None:
        """Bring the neurons beyond this rank's last ones."""
        seen[...] = self._neurons(maps.shape[-1], maps.dtype).gather(maps)

    def scatter_add(self, seen: Array, maps: Array) -> None:
        """Bring back what pooling windows have for them."""
        maps[...] = self._neurons(maps.shape[-1], maps.dtype).scatter_add(seen)


class EmptyRank:
    """The layer of a rank without blocks, which takes part in what the others exchange; see `SparseAutoencoder`."""

    def __init__(self, ranks: _Ranks, depth: int, maps: int, comm: Communicator) -> None:
        self._ranks, self._depth, self._maps, self._xp = ranks, depth, maps, comm.xp

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        """No loss."""
        self.forward(views, batch.inputs)
        self.backward(views, len(batch), out)
        return 0.0

    def evaluate(self, views: Mapping[str, Array], batch: Batch) -> tuple[float, None]:
        """No loss."""
        for first in range(0, len(batch), EVALUATED):
            self.forward(views, batch.inputs[first : first + EVALUATED])
        return 0.0, None

    def forward(self, views: Mapping[str, Array], inputs: Array) -> float:
        """No loss."""
        m, dtype = len(inputs), views["alpha"].dtype
        self._ranks.complete(self._xp.empty((0, 0, self._depth, m), dtype))
        nothing = self._nothing(m, dtype)
        self._ranks.gather(nothing, nothing)
        return 0.0

    def encode(self, views: Mapping[str, Array], inputs: Array, out: Array) -> None:
        """No z."""

    def activations(self, views: Mapping[str, Array], m: int, out: Array) -> None:
        """No z."""

    def backward(
        self,
        views: Mapping[str, Array],
        m: int,
        out: Mapping[str, Array],
        above: Array | None = None,
        below: Array | None = None,
    ) -> None:
        """No gradient."""
        nothing = self._nothing(m, views["alpha"].dtype)
        self._ranks.scatter_add(nothing, nothing)
        out["alpha"].fill(0)

    def give_back(self, views: Mapping[str, Array], dz: Array, out: Array) -> None:
        """No gradient."""

    def _nothing(self, m: int, dtype: np.dtype) -> Array:
        """The maps."""
        return self._xp.empty((0, 0, self._maps * m), dtype)


def local_blocks(parts: BlockParts, eq1: Eq1, backend: Backend, comm: Communicator) -> SparseAutoencoder | EmptyRank:
    """This rank's blocks as a layer of their own, which sees the pixels of `parts`; all ranks ask for it together."""
    ranks, pixels, depth = _Ranks(comm, parts), parts.pixels(comm.rank), parts.whole.depth
    if not pixels.size:
        return EmptyRank(ranks, depth, eq1.maps, comm)
    height, width = pixels.shape
    return SparseAutoencoder((height, width, depth // eq1.block**2), eq1, backend, ranks)


class PartitionedAutoencoder:
    """One rank's part of a sparse autoencoder, as a model; all ranks call it together, with the same batches.

    Its views are those of the rank's boxes (`layout`); a rank without blocks has none, or alpha alone.

    Parameters
    ----------
    model
        The autoencoder as it is on one rank.

    Raises
    ------
    ValueError
        The grid has not as many ranks as there are.
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
        """Draw the initial values of the whole autoencoder: the same bits on every rank, and for every grid."""
        return self._model.parameters(rng)

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        """Give the mean loss, the same on every rank, and write the gradient of the rank's boxes into `out`.

        Raises
        ------
        RankDied, Unreachable
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
        """Give the sum of the losses, the same on every rank; no answer is right or wrong."""
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
