"""The sparse autoencoder of Coates et al. 2013, Eq. 1: one block-local layer that must rebuild what it sees.

For one sample x, with unit rows W_k = W~_k / |W~_k| that have weights in their receptive fields only:

    z = alpha W x                           activations
    e = W^T z - x                           error of the reconstruction: the decoder has no alpha
    p_j = sqrt(eps + sum_k V_jk z_k^2)      pooled: V_jk = 1 where map k's place is in the square window j
    J = |e|^2 + lambda sum_j p_j

Its gradient, with G = dJ/dW:

    delta = dJ/dz = 2 W e + lambda z o V^T (1 / p)
    G = alpha delta x^T + 2 z e^T
    dJ/dalpha = delta . W x
    dJ/dW~_k = (G_k - (G_k . W_k) W_k) / |W~_k|

* W is never made: |W~_k| divides what goes in or comes out of a product with W~.
* G . W needs no pass over G: G_k . W_k = alpha (delta_k + 2 (W e)_k) (W x)_k, since z = alpha W x.
* Both terms of G are one product over twice the batch, [alpha delta, 2 z] [x, e]^T.

So a step is ten floating point operations for each weight and sample. The gradient is at right angles to W~_k, and J
the same for any length of it: plain SGD makes |W~_k| grow and its own steps shorter. The paper prints no eps, which is
for the root's slope at 0. Its block of neurons is as wide as the step between two blocks, 4 pixels, so that the
activations of a map are one even grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dbelief.arrays.backend import Backend
from dbelief.errors import ModelError
from dbelief.nn.kernels import Blocks, Kernels, depth_to_space, space_to_depth
from dbelief.nn.layers.sliding_windows import window_spread, window_sum
from dbelief.nn.model import Array, Batch, Drawn, Tensors
from dbelief.nn.workspace import Workspace

from .halo import Alone, Around
from .initializers import initial, initial_rows, tensor_shapes

EVALUATED = 100
"""Samples of one forward pass where there is no gradient: memory goes with it."""


@dataclass(frozen=True)
class Eq1:
    """What Eq. 1 leaves open.

    Attributes
    ----------
    window
        Side of a receptive field, pixels; a multiple of `block`.
    block
        Side of a block of neurons, and the step from one block to the next, pixels.
    maps
        Neurons at each place of a block.
    pool
        Side of a pooling window, neurons of a map.
    sparsity
        lambda.
    eps
        Under the root of a pooled activation.
    """

    window: int = 20
    block: int = 4
    maps: int = 8
    pool: int = 5
    sparsity: float = 0.1
    eps: float = 1e-3


@dataclass
class _Arrays:
    """What one step computes; `xe` holds x and e side by side, `dz` delta and z."""

    xe: Array
    dz: Array
    wx: Array
    products: Array
    errors: Array
    maps: Array
    seen: Array
    pooled: Array
    inverse: Array


class SparseAutoencoder:
    """Eq. 1 as a model (`Model` and `Evaluates`); targets are not looked at.

    Its tensors are `weight` (nr, nc, F, g, g, q), which is W~ in tiles (`kernels/blocks.py`), and `alpha` (1,). Loss
    and gradient are means over the samples of a batch, of sums over pixels and pooling windows. It keeps buffers: one
    thread at a time.

    Parameters
    ----------
    image : (height, width, channels)
        Of a sample; height and width multiples of `block`. Inputs of other axes are read as (m, *image).
    eq1 : Eq1
    backend : Backend
        Where views, batches and gradients live.
    around : Around, optional
        Where this is a part of a larger layer, of whose images it is given its `image`: the rest. Its losses and
        gradients are then the part's share of the sums.

    Raises
    ------
    ModelError
        The layer does not fit the images.
    """

    def __init__(self, image: tuple[int, int, int], eq1: Eq1, backend: Backend, around: Around | None = None) -> None:
        self.image, self.eq1, self.backend = image, eq1, backend
        if around is None:
            blocks = fitting(image, eq1)
            around = Alone(blocks, map_sides(blocks, eq1))
        self.blocks, self._around = around.blocks, around
        self._xp = backend.xp
        self._work = Workspace(backend)

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw what `initial` gives."""
        return initial(self.blocks, rng)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the tensors by name, in their order; nothing is drawn."""
        return tensor_shapes(self.blocks)

    def drawn(self, rng: np.random.Generator) -> Drawn:
        """Draw the same, a row of blocks at a time."""
        return initial_rows(self.blocks, rng)

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Give the mean of J over the batch, and write its gradient into `out`.

        Raises
        ------
        ModelError
            The batch holds other images than this layer sees.
        """
        loss = self.forward(views, batch.inputs)
        self.backward(views, len(batch), out)
        return loss / len(batch)

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, None]:
        """Give the sum of J over the batch; no answer is right or wrong."""
        firsts = range(0, len(batch), EVALUATED)
        return math.fsum(self.forward(views, batch.inputs[first : first + EVALUATED]) for first in firsts), None

    def forward(self, views: Tensors, inputs: Array) -> float:
        """Give the sum of J over inputs (m, *image), and keep what `activations` and `backward` need."""
        images, w, alpha = self.checked_inputs(views["weight"].dtype, inputs), views["weight"], views["alpha"]
        with np.errstate(all="ignore"):  # what is not finite is for the caller to name
            kernels, arrays = self._room(len(images), w.dtype)
            self._filter(kernels, arrays, w, images)
            return self._objective(kernels, arrays, w, alpha)

    def encode(self, views: Tensors, inputs: Array, out: Array) -> None:
        """Write z of inputs (m, *image) as `activations` does, without J: nothing for `backward`."""
        images, w = self.checked_inputs(views["weight"].dtype, inputs), views["weight"]
        with np.errstate(all="ignore"):
            self._filter(*self._room(len(images), w.dtype), w, images)
        self.activations(views, len(images), out)

    def activations(self, views: Tensors, m: int, out: Array) -> None:
        """Write z of the last m samples as images (m, rows, columns, maps)."""
        arrays = self._arrays(m, views["weight"].dtype)
        self._xp.multiply(arrays.wx, views["alpha"], out=arrays.products)
        depth_to_space(arrays.products, self.eq1.block, out)

    def backward(
        self, views: Tensors, m: int, out: Tensors, above: Array | None = None, below: Array | None = None
    ) -> None:
        """Write the gradient of the mean of J over the m samples of the last `forward`.

        Parameters
        ----------
        above : (m, rows, columns, maps), optional
            What the mean loss of layers above has for a gradient in z: it is added.
        below : (m, *image), optional
            Where to write the gradient in the images.
        """
        w = views["weight"]
        with np.errstate(all="ignore"):
            kernels, arrays = self._room(m, w.dtype)
            self._backward(kernels, arrays, w, views["alpha"], out, above)
            if below is not None:
                self._input_gradient(kernels, arrays, w, below)

    def give_back(self, views: Tensors, dz: Array, out: Array) -> None:
        """Write alpha W^T dz, (m, *image), for dz as `activations` are, after `encode` or `forward` of so many."""
        w, m = views["weight"], len(dz)
        arrays = self._arrays(m, w.dtype)
        space_to_depth(dz, self.eq1.block, arrays.products)
        arrays.products *= arrays.inverse[..., None] * views["alpha"]
        self._work.kernels(self.blocks, m, w.dtype).backward_data(w, arrays.products, arrays.errors)
        depth_to_space(arrays.errors, self.eq1.block, out)

    def _filter(self, kernels: Kernels, arrays: _Arrays, w: Array, images: Array) -> None:
        """Leave x, W x and 1 / |W~|."""
        space_to_depth(images, self.eq1.block, arrays.xe[..., : len(images)])
        kernels.row_norms(w, arrays.inverse)
        self._xp.reciprocal(arrays.inverse, out=arrays.inverse)
        kernels.forward(w, arrays.xe[..., : len(images)], arrays.wx)
        arrays.wx *= arrays.inverse[..., None]

    def _objective(self, kernels: Kernels, arrays: _Arrays, w: Array, alpha: Array) -> float:
        """Give the sum of J; leave e, z / |W~| and p."""
        xp, m = self._xp, arrays.wx.shape[-1]
        x, e, z, inverse = arrays.xe[..., :m], arrays.xe[..., m:], arrays.dz[..., m:], arrays.inverse
        xp.multiply(arrays.wx, inverse[..., None], out=z)
        z *= alpha
        kernels.backward_data(w, z, e)
        self._around.complete(e)
        xp.copyto(arrays.errors, x)  # x and e interleave, and CuPy copies what seems to overlap, into new memory
        e -= arrays.errors
        counted, errors = e[self._around.counted], arrays.errors[self._around.counted]
        xp.multiply(counted, counted, out=errors)
        xp.multiply(arrays.wx, alpha, out=arrays.products)
        xp.square(arrays.products, out=arrays.products)
        as_maps = self._in_maps(arrays.maps, m)
        as_maps[...] = arrays.products.reshape(as_maps.shape)
        self._around.gather(arrays.maps, arrays.seen)
        window_sum(self._work, "pool", arrays.seen[None], [1] * self.eq1.pool, 1, arrays.pooled[None])
        arrays.pooled += self.eq1.eps
        xp.sqrt(arrays.pooled, out=arrays.pooled)
        squares, pooled = (values.sum(dtype=np.float64) for values in (errors, arrays.pooled))
        return float(squares + self.eq1.sparsity * pooled)

    def _backward(
        self, kernels: Kernels, arrays: _Arrays, w: Array, alpha: Array, out: Tensors, above: Array | None
    ) -> None:
        """Write the mean gradient, from what the forward pass left."""
        xp, inverse, wx, products = self._xp, arrays.inverse, arrays.wx, arrays.products
        m = wx.shape[-1]
        delta, z = arrays.dz[..., :m], arrays.dz[..., m:]
        xp.reciprocal(arrays.pooled, out=arrays.pooled)
        window_spread(self._work, "pool", arrays.pooled[None], [1] * self.eq1.pool, 1, arrays.seen[None])
        self._around.scatter_add(arrays.seen, arrays.maps)
        kernels.forward(w, arrays.xe[..., m:], delta)
        delta *= 2 * inverse[..., None]
        xp.multiply(wx, delta, out=products)
        along = products.sum(axis=-1)  # 2 (W e) . (W x), a number for each neuron
        as_maps = self._in_maps(arrays.maps, m)
        xp.multiply(wx.reshape(as_maps.shape), as_maps, out=products.reshape(as_maps.shape))
        products *= self.eq1.sparsity * alpha
        delta += products
        if above is not None:
            space_to_depth(above, self.eq1.block, products)
            products *= m
            delta += products
        xp.multiply(wx, delta, out=products)
        slope = products.sum(axis=-1)
        out["alpha"][...] = slope.sum() / m
        along += slope
        along *= alpha * inverse * inverse / m  # G . W / |W~|^2
        delta *= alpha * inverse[..., None] / m
        z *= 2 / m
        kernels.backward_weight(arrays.dz, arrays.xe, out["weight"])
        self._project(along, w, out["weight"])

    def _input_gradient(self, kernels: Kernels, arrays: _Arrays, w: Array, out: Array) -> None:
        """Write the mean of dJ/dx = alpha W^T delta - 2 e, from what `_backward` left: delta alpha / (|W~| m).

        Of a part it is what its own blocks and the error that it counts have for that: a share of the sum.
        """
        m, counted = arrays.wx.shape[-1], self._around.counted
        e, gradient = arrays.xe[..., m:], arrays.errors
        kernels.backward_data(w, arrays.dz[..., :m], gradient)
        e *= 2 / m
        gradient[counted] -= e[counted]
        depth_to_space(gradient, self.eq1.block, out)

    def _project(self, along: Array, w: Array, gradient: Array) -> None:
        """Take from each neuron's gradient its part along the weights; block by block, which stays in the cache."""
        blocks = self.blocks
        part = self._work.array("part", (blocks.neurons * blocks.fan_in,), w.dtype).reshape(w.shape[2:])
        for i in range(blocks.nr):
            for j in range(blocks.nc):
                self._xp.multiply(w[i, j], along[i, j, :, None, None, None], out=part)
                gradient[i, j] -= part

    def _in_maps(self, maps: Array, m: int) -> Array:
        """Maps [nr b][nc b][maps M] as neurons lie in y: [nr][nc][b][b][maps M]."""
        blocks, b = self.blocks, self.eq1.block
        return maps.reshape(blocks.nr, b, blocks.nc, b, self.eq1.maps * m).swapaxes(1, 2)

    def _room(self, m: int, dtype: np.dtype) -> tuple[Kernels, _Arrays]:
        return self._work.kernels(self.blocks, m, dtype), self._arrays(m, dtype)

    def _arrays(self, m: int, dtype: np.dtype) -> _Arrays:
        """Buffers for m samples; their memory is that of the largest batch so far."""
        seen = self._around.seen
        shapes = step_shapes(self.blocks, self.eq1, m, seen)
        # A shorter batch gets the beginning of each buffer: its arrays, too, are in one piece.
        room = {"seen": "maps"} if shapes["seen"] == shapes["maps"] else {}
        flat = {n: self._work.array(room.get(n, n), (math.prod(shape),), dtype) for n, shape in shapes.items()}
        return _Arrays(**{name: flat[name].reshape(shape) for name, shape in shapes.items()})

    def checked_inputs(self, kind: np.dtype, inputs: Array) -> Array:
        """Give the inputs as images, once they are known to be of this layer's size and of this type."""
        return shaped("autoencoder", self.image, kind, inputs)


def shaped(model: str, image: tuple[int, int, int], kind: np.dtype, inputs: Array) -> Array:
    """Give the inputs of a kind of model as images, once they are known to be of this size and of this type.

    Raises
    ------
    ModelError
        They are not; names the model.
    """
    size, own = math.prod(inputs.shape[1:]), math.prod(image)
    if size != own:
        raise ModelError(f"{model}: got {size} numbers per sample, expected {own} of images {image}")
    if inputs.dtype != kind:
        raise ModelError(f"{model}: got inputs of {inputs.dtype}, expected {kind} as its parameters")
    return inputs.reshape(len(inputs), *image)


def fitting(image: tuple[int, int, int], eq1: Eq1) -> Blocks:
    """The blocks that see images of this height, width and channels.

    Raises
    ------
    ModelError
        Sides do not divide, or a window is larger than what it is laid on.
    """
    height, width, channels = image
    b = eq1.block
    if eq1.window % b:
        raise ModelError(f"autoencoder: window is {eq1.window} pixels, must be a multiple of block, {b}")
    if height % b or width % b:
        raise ModelError(f"autoencoder: images of {height} x {width} pixels do not divide into blocks of {b} x {b}")
    if eq1.window > min(height, width):
        raise ModelError(f"autoencoder: window is {eq1.window} pixels, images are {height} x {width}")
    blocks = Blocks(height // b, width // b, eq1.window // b, b * b * channels, b * b * eq1.maps)
    rows, columns = map_sides(blocks, eq1)
    if eq1.pool > min(rows, columns):
        raise ModelError(f"autoencoder: pool is {eq1.pool} neurons, maps are {rows} x {columns}")
    return blocks


def step_shapes(blocks: Blocks, eq1: Eq1, m: int, seen: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """Shapes of what a step on m samples keeps; `seen` lies in the memory of `maps` where their shapes are the same.

    Parameters
    ----------
    seen
        Rows and columns of neurons that pooling windows see.
    """
    n = eq1.maps * m
    high, wide = (max(0, side - eq1.pool + 1) for side in seen)
    return {
        "xe": blocks.x_shape(2 * m),
        "dz": blocks.y_shape(2 * m),
        "wx": blocks.y_shape(m),
        "products": blocks.y_shape(m),
        "errors": blocks.x_shape(m),
        "maps": (*map_sides(blocks, eq1), n),
        "seen": (*seen, n),
        "pooled": (high, wide, n),
        "inverse": blocks.norms_shape,
    }


def map_sides(blocks: Blocks, eq1: Eq1) -> tuple[int, int]:
    """Rows and columns of neurons in a map."""
    return blocks.nr * eq1.block, blocks.nc * eq1.block
