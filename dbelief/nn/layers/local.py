"""Locally connected layers: blocks of neurons that share a receptive field, but no weights (Coates et al. 2013, 4.1).

Block (i, j) is block x block places of `maps` neurons each; all of them see the same window x window pixels, from pixel
(stride i, stride j) on. With k = (dy block + dx) maps + f counting the neurons of a block,

    y[., block i + dy, block j + dx, f] = b[i, j, k] + sum over v, u, c of
                                          W[i, j, k, v, u, c] x[., stride i + v, stride j + u, c]

Nothing is tied: each neuron has weights and a bias of its own. Blocks of 1 with a stride of 1 are the locally connected
layer known from elsewhere; the paper's blocks are as wide as their stride, 4 pixels.

The work is that of the block-local kernels (`kernels/`), on images cut into tiles of stride x stride pixels with the
batch innermost. Costs of m samples, with n blocks of F = block^2 maps neurons that see p = window^2 channels pixels:
2 m n F p flop forward, twice that backward (once without dL/dx), and a copy of x and of y each way.
"""

from dataclasses import dataclass
from typing import ClassVar

from dbelief.errors import ModelError
from dbelief.nn.kernels import Blocks, depth_to_space, space_to_depth
from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .image import image_shape
from .layer import Arrays, Shape, at_least, uniform_limit
from .sliding_windows import seen, windows


@dataclass(frozen=True)
class Local:
    """A locally connected layer, on windows that lie inside the image.

    W is (nr, nc, F, g, g, q) for nr x nc blocks, as in `Blocks`: a window is g x g tiles of q = stride^2 channels
    numbers. b is (nr, nc, F). With images as tiles, dL/dW = dy x^T where W has weights, dL/db = sum of dy over samples,
    dL/dx = W^T dy.

    Initial values as of `Dense`, with g g q inputs and g g F outputs, which is how many see a pixel inside the image.

    Parameters
    ----------
    window : int
        Side of a receptive field, in pixels: a multiple of the stride.
    block : int
        Side of a block, in neurons of a map.
    maps : int
        Neurons at each place of a block.
    stride : int or None
        Pixels from one block's window to the next; None: as block. Height and width of images are multiples of it.
    """

    window: int
    block: int
    maps: int
    stride: int | None = None
    kind: ClassVar[str] = "local"
    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __post_init__(self) -> None:
        at_least(1, window=self.window, block=self.block, maps=self.maps, stride=self.step)
        if self.window % self.step:
            raise ValueError(f"window is {self.window}, must be a multiple of the stride, {self.step}")

    @property
    def step(self) -> int:
        """The stride, or the block."""
        return self.block if self.stride is None else self.stride

    def outputs(self, inputs: Shape) -> Shape:
        """(blocks down times block, blocks across times block, maps)."""
        blocks = self.blocks(inputs)
        return blocks.nr * self.block, blocks.nc * self.block, self.maps

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """What the windows of their blocks cover."""
        return seen(start // self.block, -(-stop // self.block), self.window, self.step)

    def blocks(self, inputs: Shape) -> Blocks:
        """Tiles of an image and the blocks that see them.

        Raises
        ------
        ModelError
            There are no images, a window is larger than they are, or their sides are not multiples of the stride.
        """
        height, width, channels = image_shape(inputs)
        windows(inputs, self.window, self.step)
        s = self.step
        if height % s or width % s:
            raise ModelError(f"has a stride of {s} pixels, but gets images of {height} x {width}, not multiples of it")
        return Blocks(height // s, width // s, self.window // s, s * s * channels, self.block**2 * self.maps)

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Of weight and bias."""
        blocks = self.blocks(inputs)
        return blocks.w_shape, blocks.norms_shape

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """As above."""
        blocks = self.blocks(inputs)
        return uniform_limit(blocks.fan_in, blocks.window**2 * blocks.neurons, before_relu)

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""
        xp, (weight, bias), blocks = work.xp, parameters, self.blocks(x.shape[1:])
        made = work.array("y tiles", blocks.y_shape(len(x)), y.dtype)
        work.kernels(blocks, len(x), x.dtype).forward(weight, self._tiles(work, blocks, x), made)
        xp.add(made, bias[..., None], out=made)
        depth_to_space(made, self.block, y)

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write dL/dW and dL/db, and dL/dx, where they are asked for."""
        blocks = self.blocks(x.shape[1:])
        kernels = work.kernels(blocks, len(x), x.dtype)
        slope = space_to_depth(dy, self.block, work.array("y tiles", blocks.y_shape(len(x)), y.dtype))
        if gradients:
            kernels.backward_weight(slope, self._tiles(work, blocks, x), gradients[0])
            work.xp.sum(slope, axis=-1, out=gradients[1])
        if dx is not None:
            tiles = work.array("x tiles", blocks.x_shape(len(x)), x.dtype)
            kernels.backward_data(parameters[0], slope, tiles)
            depth_to_space(tiles, self.step, dx)

    def _tiles(self, work: Workspace, blocks: Blocks, x: Array) -> Array:
        """Images as tiles, in a buffer."""
        return space_to_depth(x, self.step, work.array("x tiles", blocks.x_shape(len(x)), x.dtype))
