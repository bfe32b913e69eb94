"""What lies around a part of a block-local layer: other blocks, which see some of the same, and pool with its own.

A layer that is whole has nothing around it. Of one that is cut, a part computes a rectangle of blocks, and asks for the
three things that cross its edges: W^T z where blocks elsewhere see the same tiles, activations that its pooling windows
see, and the transpose of that.
"""

from __future__ import annotations

from typing import Protocol

from dbelief.nn.kernels import Blocks
from dbelief.nn.model import Array


class Around(Protocol):
    """The rest of a layer, for the part that calls it.

    Attributes
    ----------
    blocks
        Of the part, with the tiles that they see.
    counted
        Index of those tiles whose error is counted here, and nowhere else.
    seen
        Rows and columns of neurons that the part's pooling windows see; 0 and 0 where it has no window.
    """

    @property
    def blocks(self) -> Blocks: ...  # noqa: D102

    @property
    def counted(self) -> tuple[slice, slice]: ...  # noqa: D102

    @property
    def seen(self) -> tuple[int, int]: ...  # noqa: D102

    def complete(self, rebuilt: Array) -> None:
        """Add to W^T z of the part, on its tiles [rows][columns][q][M], what blocks elsewhere give to them."""
        ...

    def gather(self, maps: Array, seen: Array) -> None:
        """Write into `seen` what the pooling windows see of all parts' maps [rows][columns][maps M]."""
        ...

    def scatter_add(self, seen: Array, maps: Array) -> None:
        """Write into `maps` the sums of all that pooling windows, here and elsewhere, have for these neurons."""
        ...


class Alone:
    """Nothing: the layer is whole. What its pooling windows see are its own maps, in the same memory."""

    def __init__(self, blocks: Blocks, seen: tuple[int, int]) -> None:
        self.blocks = blocks
        self.counted = slice(None), slice(None)
        self.seen = seen

    def complete(self, rebuilt: Array) -> None:
        """Nothing is missing."""

    def gather(self, maps: Array, seen: Array) -> None:
        """All is there."""

    def scatter_add(self, seen: Array, maps: Array) -> None:
        """All was written there."""
