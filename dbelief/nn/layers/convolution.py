"""A convolution as one matrix product: each window is a row of numbers, the filters are columns.

    y[., i, j, f] = b_f + sum over v, u, c of W[v, u, c, f] x[., stride i + v, stride j + u, c]

(no mirror image of the filter: what is called a cross-correlation elsewhere). Windows are copied into rows of a buffer
for some samples at a time, and copied again in the backward pass: the buffer stays in the processor's cache, and memory
does not grow with the kernel. Costs of m samples, with n windows of p = kernel^2 channels pixels: 2 m n p maps flop
forward, twice that backward (once without dL/dx), and a copy of m n p numbers each way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Shape, at_least, uniform_limit
from .sliding_windows import bordered, inside, seen, taps, windows

HOST_BYTES = 2**20
"""Rows at a time on a processor: few enough to lie in a cache when they are multiplied."""

DEVICE_BYTES = 2**28
"""Rows at a time on a device, where each piece costs several launches."""


@dataclass(frozen=True)
class Conv:
    """A convolution with square kernels, on windows that lie inside the image with its border, `padding` zeros wide.

    W is (kernel, kernel, channels, maps), b (maps,). dL/dW = rows^T dy, dL/db = sum of dy over samples and windows,
    dL/dx = dy W^T, each pixel summing what all its windows say.

    Initial values as of `Dense`, with kernel^2 channels inputs and kernel^2 maps outputs.
    """

    maps: int
    kernel: int
    stride: int = 1
    padding: int = 0
    kind: ClassVar[str] = "conv"
    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __post_init__(self) -> None:
        at_least(1, maps=self.maps, kernel=self.kernel, stride=self.stride)
        at_least(0, padding=self.padding)

    def outputs(self, inputs: Shape) -> Shape:
        """(windows down, windows across, maps)."""
        return (*windows(inputs, self.kernel, self.stride, self.padding), self.maps)

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """What the kernels cover."""
        return seen(start, stop, self.kernel, self.stride)

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Of weight and bias."""
        return (self.kernel, self.kernel, inputs[2], self.maps), (self.maps,)

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """As above."""
        area = self.kernel**2
        return uniform_limit(area * inputs[2], area * self.maps, before_relu)

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""
        weight, bias = parameters
        filters = weight.reshape(-1, self.maps)
        of_a_row = work.array("bias", y.shape[2:], y.dtype)  # many numbers on end are added faster than a few
        work.xp.copyto(of_a_row, bias)
        for some, rows, _ in self._rows(work, self._bordered(work, x, y.shape), y.shape):
            made = y[some]
            work.xp.matmul(rows, filters, out=made.reshape(-1, self.maps))
            made += of_a_row  # one array: of two views of the same numbers CuPy copies what it reads

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write dL/dW and dL/db, and dL/dx, where they are asked for."""
        xp, filters = work.xp, parameters[0].reshape(-1, self.maps)
        image = self._bordered(work, x, y.shape)
        d_image = dx if dx is None or image is x else work.array("d_bordered", image.shape, dx.dtype)
        if d_image is not None:
            d_image.fill(0)
        for some, rows, pixels in self._rows(work, image, y.shape, filled=bool(gradients)):
            d_some = dy[some].reshape(-1, self.maps)
            if gradients:
                d_filters = gradients[0].reshape(-1, self.maps)
                if some.start == 0:
                    xp.matmul(rows.T, d_some, out=d_filters)
                else:
                    part = work.array("d_filters", d_filters.shape, d_filters.dtype)
                    xp.add(d_filters, xp.matmul(rows.T, d_some, out=part), out=d_filters)
            if d_image is not None:
                xp.matmul(d_some, filters.T, out=rows)
                self._spread(pixels, d_image[some])
        if dx is not None and d_image is not dx:
            xp.copyto(dx, inside(d_image, self.padding, dx.shape))
        if gradients:
            # Samples first: two long sums in place of one of very many short terms, which is slow and rounds more.
            summed = work.array("d_bias", dy.shape[1:], dy.dtype)
            xp.sum(dy, axis=0, out=summed)
            xp.sum(summed.reshape(-1, self.maps), axis=0, out=gradients[1])

    def _bordered(self, work: Workspace, x: Array, shape: Shape) -> Array:
        return bordered(work, x, self.kernel, self.stride, self.padding, shape, 0.0)

    def _rows(
        self, work: Workspace, x: Array, shape: Shape, filled: bool = True
    ) -> Iterator[tuple[slice, Array, Array]]:
        """Give windows as rows (windows, kernel kernel channels) of some samples at a time, each in the same buffer.

        And the same numbers as (samples, down, across, kernel, kernel channels). Unless `filled`, they are anything.
        """
        (m, down, across, _), k, channels = shape, self.kernel, x.shape[3]
        run = k * channels  # a window's row of pixels is so many numbers of x on end
        width = k * run
        some = (HOST_BYTES if work.xp is np else DEVICE_BYTES) // (down * across * width * x.itemsize)
        some = min(m, max(1, some))
        sample, row, column, number = x.strides
        buffer = work.array("rows", (some * down * across * width,), x.dtype)
        for start in range(0, m, some):
            n = min(some, m - start)
            lying = buffer[: n * down * across * width]
            if channels == 1 and work.xp is np:  # columns on end: copying runs so short costs more than multiplying
                rows = lying.reshape(width, -1).T
                pixels = lying.reshape(k, run, n, down, across).transpose(2, 3, 4, 0, 1)
            else:
                rows = lying.reshape(-1, width)
                pixels = lying.reshape(n, down, across, k, run)
            if filled:
                found = work.xp.lib.stride_tricks.as_strided(
                    x[start : start + n],
                    pixels.shape,
                    (sample, row * self.stride, column * self.stride, row, number),
                )
                work.xp.copyto(pixels, found)
            yield slice(start, start + n), rows, pixels

    def _spread(self, pixels: Array, dx: Array) -> None:
        """Add each of the rows' numbers to the pixel that it was copied from."""
        channels = dx.shape[3]
        for place, there in enumerate(taps(dx, self.kernel, self.stride, (*pixels.shape[:3], channels))):
            v, u = divmod(place, self.kernel)
            there += pixels[:, :, :, v, u * channels : (u + 1) * channels]
