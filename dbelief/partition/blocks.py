"""How a sparse autoencoder is cut over the ranks of a replica (COTS HPC, section 4.3): what of it a rank has and sees.

The grid cuts the blocks. With a block's neurons lie their weights; alpha, which all share, lies with its owner. In the
layer's tiles and neurons, along each axis, a rank of the blocks [a, b) of n, with b > a,

    sees the tiles        [a, b + g - 1)
    counts the error of   [a, b), and where b = n of the g - 1 tiles after these
    has the neurons       [a s, b s)
    pools in windows that begin there, and for that sees the pool - 1 neurons after them, unless the map ends before

so that each tile and each pooling window counts once, and with the rank that has its first corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dbelief.core.layout import Box, Layout
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.kernels import Blocks

from .cut import OWNER
from .declared import Declared
from .grid import Grid
from .window import Window

NOTHING = Window.nothing(2)


@dataclass(frozen=True)
class BlockParts:
    """A layer's windows, by rank; a rank without blocks has empty ones.

    Attributes
    ----------
    whole
        The layer.
    block, pool
        Sides of a block and of a pooling window, neurons of a map.
    blocks
        What each rank computes.
    """

    whole: Blocks
    block: int
    pool: int
    blocks: tuple[Window, ...]

    @classmethod
    def of(cls, blocks: Blocks, eq1: Eq1, grid: Grid) -> BlockParts:
        """Cut a layer over a grid."""
        windows = grid.windows(blocks.nr, blocks.nc)
        return cls(blocks, eq1.block, eq1.pool, tuple(one if one.size else NOTHING for one in windows))

    @cached_property
    def tiles(self) -> tuple[Window, ...]:
        """What each rank's blocks see."""
        more = self.whole.window - 1
        return tuple(_stretched(window, more) for window in self.blocks)

    @cached_property
    def counted(self) -> tuple[Window, ...]:
        """The tiles whose error each rank counts: a partition of all."""
        last = self.whole.nr, self.whole.nc
        sides = self.whole.rows, self.whole.columns
        return tuple(
            Window(w.start, tuple(n if b == end else b for b, end, n in zip(w.stop, last, sides, strict=True)))
            for w in self.blocks
        )

    @cached_property
    def neurons(self) -> tuple[Window, ...]:
        """Each rank's places of a map: a partition of all."""
        return tuple(_times(window, self.block) for window in self.blocks)

    @cached_property
    def seen(self) -> tuple[Window, ...]:
        """The places of a map that each rank's pooling windows see."""
        pooled = Window.whole(self.pooled)
        return tuple(_stretched(w & pooled, self.pool - 1) for w in self.neurons)

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of neurons in a map."""
        return self.whole.nr * self.block, self.whole.nc * self.block

    @property
    def pooled(self) -> tuple[int, int]:
        """Rows and columns of pooling windows."""
        rows, columns = self.sides
        return rows - self.pool + 1, columns - self.pool + 1

    def pixels(self, rank: int) -> Window:
        """What of an image a rank's blocks see."""
        return _times(self.tiles[rank], self.block)

    def part(self, rank: int) -> Blocks:
        """A rank's blocks as a layer of their own.

        Raises
        ------
        ValueError
            It has none.
        """
        rows, columns = self.tiles[rank].shape
        return Blocks(rows, columns, self.whole.window, self.whole.depth, self.whole.neurons)

    def tile_array(self, samples: int) -> Declared:
        """Tiles of `samples` images: written where their error is counted, read where blocks see them."""
        return Declared(self.whole.x_shape(samples), self.counted, self.tiles)

    def neuron_array(self, maps: int) -> Declared:
        """So many maps, of all samples together: written where a neuron is, read where pooling windows see it."""
        return Declared((*self.sides, maps), self.neurons, self.seen)

    def boxes(self, rank: int, prefix: str = "") -> list[Box]:
        """Of `weight` and `alpha`, so called after a prefix, what one rank holds."""
        shape, window, boxes = self.whole.w_shape, self.blocks[rank], []
        if window.size:
            weights = window.along(shape, 0)
            boxes.append(Box(f"{prefix}weight", shape, rank, weights.start, weights.stop))
        if rank == OWNER:
            boxes.append(Box(f"{prefix}alpha", (1,), rank, (0,), (1,)))
        return boxes

    @property
    def layout(self) -> Layout:
        """Where each rank's boxes of `weight` and `alpha` lie in the flat vector."""
        return Layout(tuple(box for rank in range(len(self.blocks)) for box in self.boxes(rank)))


def _times(window: Window, factor: int) -> Window:
    return Window(tuple(a * factor for a in window.start), tuple(b * factor for b in window.stop))


def _stretched(window: Window, more: int) -> Window:
    """The window, so much longer along each axis; nothing stays nothing."""
    return Window(window.start, tuple(b + more for b in window.stop)) if window.size else NOTHING
