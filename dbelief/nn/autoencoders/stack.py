"""One stack of the network of Coates et al. 2013, section 3: filters, pooling, local contrast normalisation.

    z = alpha W x               filters of their own at each place (`autoencoder.py`): what is trained
    p = sqrt(eps + sum z^2)     over pool x pool neurons of a map, one place after the other
    y = LCN(p)                  what the next stack sees

All windows lie inside their image. With n = (w - f) / b + 1 blocks a side on images of w pixels, maps have r = b n
neurons a side, and y has r - (pool - 1) - 2 (size - 1): r - 12 in the paper's network, where both are 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.errors import ModelError
from dbelief.nn.kernels import Blocks
from dbelief.nn.layers.layer import Shape
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.layers.pooling import L2Pool
from dbelief.nn.model import Array, Tensors
from dbelief.nn.workspace import Workspace

from .autoencoder import Eq1, SparseAutoencoder, fitting, map_sides


@dataclass(frozen=True)
class Shapes:
    """What one stack, or a part of it, takes and gives, without the batch.

    Attributes
    ----------
    image : (height, width, channels)
        What it sees.
    maps, pooled : (rows, columns, maps)
        Of z and p.
    output : (rows, columns, maps)
        Of y; None where the two windows of LCN do not fit, as they need not in the last stack.
    """

    image: tuple[int, int, int]
    maps: Shape
    pooled: Shape
    output: tuple[int, int, int] | None


@dataclass(frozen=True)
class Sizes(Shapes):
    """Of one stack that is whole.

    Attributes
    ----------
    blocks
        Of its filters: `blocks.w_shape` is the shape of W.
    """

    blocks: Blocks


def sizes_of(image: tuple[int, int, int], stacks: Sequence[tuple[Eq1, Lcn]]) -> list[Sizes]:
    """Sizes of stacks that lie one on the other, the lowest first.

    Raises
    ------
    ModelError
        One does not fit on what it sees; names it by its place, from 1.
    """
    found: list[Sizes] = []
    for place, (eq1, lcn) in enumerate(stacks, start=1):
        try:
            blocks = fitting(image, eq1)
            maps = (*map_sides(blocks, eq1), eq1.maps)
            pooled = L2Pool(eq1.pool).outputs(maps)
            output = None
            if place < len(stacks) or min(pooled[:2]) >= 2 * lcn.size - 1:
                height, width, channels = lcn.outputs(pooled)
                output = (height, width, channels)
        except ModelError as error:
            raise ModelError(f"stack {place}: {str(error).removeprefix('autoencoder: ')}") from error
        found.append(Sizes(image, maps, pooled, output, blocks))
        if output is not None:
            image = output
    return found


class Filters(Protocol):
    """What a stack asks of its filters: those of a `SparseAutoencoder`, whose methods these are."""

    def forward(self, views: Tensors, inputs: Array) -> float: ...  # noqa: D102

    def encode(self, views: Tensors, inputs: Array, out: Array) -> None: ...  # noqa: D102

    def activations(self, views: Tensors, m: int, out: Array) -> None: ...  # noqa: D102

    def backward(  # noqa: D102
        self, views: Tensors, m: int, out: Tensors, above: Array | None = None, below: Array | None = None
    ) -> None: ...

    def give_back(self, views: Tensors, dz: Array, out: Array) -> None: ...  # noqa: D102


class Crossing(Protocol):
    """The way of images (m, rows, columns, maps) from where they are made to where they are seen."""

    def gather(self, made: Array) -> Array:
        """What is seen here of what is made everywhere."""
        ...

    def scatter_add(self, slopes: Array) -> Array:
        """Sums of what those who see what is made here, everywhere, have for a gradient in it."""
        ...


class Here:
    """No way: a whole stack sees what it makes."""

    def gather(self, made: Array) -> Array:
        """Itself."""
        return made

    def scatter_add(self, slopes: Array) -> Array:
        """Itself."""
        return slopes


class Stack:
    """The filters of one stack as a model of their own (`layer`), and the way up and down past them.

    What it gives are buffers of its own, until it is asked again. One thread at a time.

    Parameters
    ----------
    sizes : Shapes
        As `sizes_of` has found them, or those of a part.
    layer, crossings : optional
        Of a stack that is cut: the filters that are here, and the ways of z to pooling, of p to LCN and of y to the
        next stack.
    """

    def __init__(
        self,
        sizes: Shapes,
        eq1: Eq1,
        lcn: Lcn,
        backend: Backend,
        layer: Filters | None = None,
        crossings: Sequence[Crossing] = (Here(), Here(), Here()),
    ) -> None:
        self.sizes = sizes
        self.layer = SparseAutoencoder(sizes.image, eq1, backend) if layer is None else layer
        self._to_pool, self._to_contrast, self._to_next = crossings
        self._pool, self._lcn = L2Pool(eq1.pool, eps=eq1.eps), lcn
        self._own, self._in_pool, self._in_lcn = (Workspace(backend) for _ in range(3))
        self._pools: Array = None  # of z and p what is seen here: what backward goes by
        self._normalises: Array = None

    def filters(self, views: Tensors, images: Array) -> Array:
        """Give z (m, *maps) of images (m, *image), by the layer's parameters."""
        z = self._array("z", len(images), self.sizes.maps, images.dtype)
        self.layer.encode(views, images, z)
        return z

    def encode(self, views: Tensors, images: Array) -> Array:
        """Give y (m, *output) of images (m, *image), by the layer's parameters."""
        return self._normalised(self.pooled(self.filters(views, images)))

    def output(self, views: Tensors, m: int) -> Array:
        """Give y (m, *output) of what the layer's `forward` has just seen."""
        z = self._array("z", m, self.sizes.maps, views["alpha"].dtype)
        self.layer.activations(views, m, z)
        return self._normalised(self.pooled(z))

    def pooled(self, z: Array) -> Array:
        """Give p (m, *pooled) of what `filters` has given."""
        self._pools = self._to_pool.gather(z)
        p = self._array("p", len(z), self.sizes.pooled, z.dtype)
        self._pool.forward(self._in_pool, self._pools, (), p)
        return p

    def backward(self, views: Tensors, m: int, out: Tensors, dy: Array | None, down: bool) -> Array | None:
        """Write the gradient of the mean of J, and of what lies above, after the layer's `forward`.

        Parameters
        ----------
        dy : (m, *output), or None
            What lies above has for a gradient in y; it needs `output` before.
        down
            Whether to give the gradient in the images, (m, *image); else None is given.
        """
        dz = None if dy is None else self.through_pooling(self.through_contrast(dy))
        dx = self._array("dx", m, self.sizes.image, views["alpha"].dtype) if down else None
        self.layer.backward(views, m, out, dz, dx)
        return dx

    def through_contrast(self, dy: Array) -> Array:
        """Give dL/dp, after `encode` or `output`."""
        assert self.sizes.output is not None, f"nothing is above a stack of {self.sizes}"
        made, p = self._to_next.scatter_add(dy), self._normalises
        y = self._array("y", len(dy), self.sizes.output, dy.dtype)
        dp = self._array("dp", len(dy), p.shape[1:], dy.dtype)
        if y.size:
            self._lcn.give_back(self._in_lcn, p, y, made, dp)
        return self._to_contrast.scatter_add(dp)

    def through_pooling(self, dp: Array) -> Array:
        """Give dL/dz, after `pooled`, `encode` or `output`."""
        z, p = self._pools, self._array("p", len(dp), self.sizes.pooled, dp.dtype)
        dz = self._array("dz", len(dp), z.shape[1:], dp.dtype)
        self._pool.give_back(self._in_pool, z, p, dp, dz)
        return self._to_pool.scatter_add(dz)

    def through_filters(self, views: Tensors, dz: Array) -> Array:
        """Give alpha W^T dz, which is dL/dx where only z counts, after `filters` or `encode`."""
        dx = self._array("dx", len(dz), self.sizes.image, dz.dtype)
        self.layer.give_back(views, dz, dx)
        return dx

    def _normalised(self, p: Array) -> Array:
        assert self.sizes.output is not None, f"nothing is above a stack of {self.sizes}"
        self._normalises = self._to_contrast.gather(p)
        y = self._array("y", len(p), self.sizes.output, p.dtype)
        if y.size:
            self._lcn.forward(self._in_lcn, self._normalises, (), y)
        return self._to_next.gather(y)

    def _array(self, name: str, m: int, shape: Shape, kind: np.dtype) -> Array:
        return self._own.array(name, (m, *shape), kind)
