"""Layer of a sparse autoencoder partitioned over the ranks of one replica: the blocks of one rank.

A rank makes tiles of the pixels that its blocks see, and runs a `SparseAutoencoder` of its own blocks alone. Two
distributed arrays connect it with the other ranks' blocks (`Around`):

    tiles      W^T z of each rank on the tiles it sees. Values of tiles that several ranks see are summed on the rank
               that counts their error, and sent back to all, so that e is complete before it is multiplied by W again
    neurons    squares of activations that pooling windows across an edge see, and in return the gradients of these
               windows

A rank's memory and time are proportional to its blocks.

Source: COTS HPC, sections 4.2 and 4.3.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.nn import Array, SparseAutoencoder
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.kernels import Blocks
from dbelief.nn.model import Tensors
from dbelief.partition.blocks import BlockParts

from ..comm import Communicator
from .distributed_array import declared


class _Ranks:
    """The other ranks' blocks as the surroundings (`Around`) of this rank's blocks."""

    def __init__(self, comm: Communicator, parts: BlockParts) -> None:
        rank = comm.rank
        self._parts, self._rank = parts, rank
        rows, columns = parts.counted[rank].within(parts.tiles[rank])
        self.counted = rows, columns
        down, across = parts.seen[rank].shape
        self.seen = down, across
        few = lru_cache(maxsize=4)  # a lease's last batch is shorter, evaluation has its own length
        self._tiles = few(lambda m, dtype: declared(comm, parts.tile_array(m), dtype))
        self._neurons = few(lambda n, dtype: declared(comm, parts.neuron_array(n), dtype))

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

    def forward(self, views: Tensors, inputs: Array) -> float:
        """Take part in the exchanges; no loss."""
        m, dtype = len(inputs), views["alpha"].dtype
        self._ranks.complete(self._xp.empty((0, 0, self._depth, m), dtype))
        nothing = self._nothing(m, dtype)
        self._ranks.gather(nothing, nothing)
        return 0.0

    def encode(self, views: Tensors, inputs: Array, out: Array) -> None:
        """Do nothing: there is no z."""

    def activations(self, views: Tensors, m: int, out: Array) -> None:
        """Do nothing: there is no z."""

    def backward(
        self, views: Tensors, m: int, out: Tensors, above: Array | None = None, below: Array | None = None
    ) -> None:
        """Take part in the exchange; no gradient."""
        nothing = self._nothing(m, views["alpha"].dtype)
        self._ranks.scatter_add(nothing, nothing)
        out["alpha"].fill(0)

    def give_back(self, views: Tensors, dz: Array, out: Array) -> None:
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
