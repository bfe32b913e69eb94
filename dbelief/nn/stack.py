"""One stack of the network of Coates et al. 2013, section 3: filters, pooling, local contrast normalisation.

    z = alpha W x               filters of their own at each place (`autoencoder.py`): what is trained
    p = sqrt(eps + sum z^2)     over pool x pool neurons of a map, one place after the other
    y = LCN(p)                  what the next stack sees

All windows lie inside their image. With n = (w - f) / b + 1 blocks a side on images of w pixels, maps have r = b n
neurons a side, and y has r - (pool - 1) - 2 (size - 1): r - 12 in the paper's network, where both are 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dbelief.backend import Backend
from dbelief.errors import ModelError

from .autoencoder import Eq1, SparseAutoencoder, fitting, map_sides
from .contrast import Lcn
from .kernels import Blocks
from .layers import Shape
from .model import Array
from .pooling import L2Pool
from .workspace import Workspace


@dataclass(frozen=True)
class Sizes:
    """Of one stack, without the batch.

    Attributes
    ----------
    image : (height, width, channels)
        What it sees.
    blocks
        Of its filters: `blocks.w_shape` is the shape of W.
    maps, pooled : (rows, columns, maps)
        Of z and p.
    output : (rows, columns, maps)
        Of y; None where the two windows of LCN do not fit, as they need not in the last stack.
    """

    image: tuple[int, int, int]
    blocks: Blocks
    maps: Shape
    pooled: Shape
    output: tuple[int, int, int] | None


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
        found.append(Sizes(image, blocks, maps, pooled, output))
        if output is not None:
            image = output
    return found


class Stack:
    """The filters of one stack as a model of their own (`layer`), and the way up and down past them.

    What it gives are buffers of its own, until it is asked again. One thread at a time.

    Parameters
    ----------
    sizes : Sizes
        As `sizes_of` has found them.
    """

    def __init__(self, sizes: Sizes, eq1: Eq1, lcn: Lcn, backend: Backend) -> None:
        self.sizes = sizes
        self.layer = SparseAutoencoder(sizes.image, eq1, backend)
        self._pool, self._lcn = L2Pool(eq1.pool, eps=eq1.eps), lcn
        self._own, self._in_pool, self._in_lcn = (Workspace(backend) for _ in range(3))

    def filters(self, views: Mapping[str, Array], images: Array) -> Array:
        """Give z (m, *maps) of images (m, *image), by the layer's parameters."""
        z = self._array("z", len(images), self.sizes.maps, images.dtype)
        self.layer.encode(views, images, z)
        return z

    def encode(self, views: Mapping[str, Array], images: Array) -> Array:
        """Give y (m, *output) of images (m, *image), by the layer's parameters."""
        return self._normalised(self.pooled(self.filters(views, images)))

    def output(self, views: Mapping[str, Array], m: int) -> Array:
        """Give y (m, *output) of what the layer's `forward` has just seen."""
        z = self._array("z", m, self.sizes.maps, views["weight"].dtype)
        self.layer.activations(views, m, z)
        return self._normalised(self.pooled(z))

    def pooled(self, z: Array) -> Array:
        """Give p (m, *pooled) of what `filters` has given."""
        p = self._array("p", len(z), self.sizes.pooled, z.dtype)
        self._pool.forward(self._in_pool, z, (), p)
        return p

    def backward(
        self, views: Mapping[str, Array], m: int, out: Mapping[str, Array], dy: Array | None, down: bool
    ) -> Array | None:
        """Write the gradient of the mean of J, and of what lies above, after the layer's `forward`.

        Parameters
        ----------
        dy : (m, *output), or None
            What lies above has for a gradient in y; it needs `output` before.
        down
            Whether to give the gradient in the images, (m, *image); else None is given.
        """
        dz = None if dy is None else self.through_pooling(self.through_contrast(dy))
        dx = self._array("dx", m, self.sizes.image, views["weight"].dtype) if down else None
        self.layer.backward(views, m, out, dz, dx)
        return dx

    def through_contrast(self, dy: Array) -> Array:
        """Give dL/dp, after `encode` or `output`."""
        assert self.sizes.output is not None, f"nothing is above a stack of {self.sizes}"
        m, kind = len(dy), dy.dtype
        p, y = self._array("p", m, self.sizes.pooled, kind), self._array("y", m, self.sizes.output, kind)
        dp = self._array("dp", m, self.sizes.pooled, kind)
        self._lcn.give_back(self._in_lcn, p, y, dy, dp)
        return dp

    def through_pooling(self, dp: Array) -> Array:
        """Give dL/dz, after `pooled`, `encode` or `output`."""
        m, kind = len(dp), dp.dtype
        z, p = self._array("z", m, self.sizes.maps, kind), self._array("p", m, self.sizes.pooled, kind)
        dz = self._array("dz", m, self.sizes.maps, kind)
        self._pool.give_back(self._in_pool, z, p, dp, dz)
        return dz

    def through_filters(self, views: Mapping[str, Array], dz: Array) -> Array:
        """Give alpha W^T dz, which is dL/dx where only z counts, after `filters` or `encode`."""
        dx = self._array("dx", len(dz), self.sizes.image, dz.dtype)
        self.layer.give_back(views, dz, dx)
        return dx

    def _normalised(self, p: Array) -> Array:
        assert self.sizes.output is not None, f"nothing is above a stack of {self.sizes}"
        y = self._array("y", len(p), self.sizes.output, p.dtype)
        self._lcn.forward(self._in_lcn, p, (), y)
        return y

    def _array(self, name: str, m: int, shape: Shape, kind: object) -> Array:
        return self._own.array(name, (m, *shape), kind)  # type: ignore[arg-type]
