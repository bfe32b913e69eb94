"""Pooling: one number for each window of each channel; nothing to train.

L2 pooling is that of Le et al. 2012 and Coates et al. 2013, section 3.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Fixed, Shape, above_zero, at_least
from .sliding_windows import bordered, inside, seen, taps, window_max, window_spread, window_sum, windows


class Pool(Fixed):
    """Windows of size x size pixels, `stride` apart or side by side, inside the image; each channel for itself."""

    size: int
    stride: int | None  # None: the size

    def __post_init__(self) -> None:
        at_least(1, size=self.size, stride=self.step)

    @property
    def step(self) -> int:
        """Pixels from one window to the next: the stride, or the size."""
        return self.size if self.stride is None else self.stride

    def outputs(self, inputs: Shape) -> Shape:
        """(windows down, windows across, channels)."""
        return (*windows(inputs, self.size, self.step), inputs[2])

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """What the windows cover."""
        return seen(start, stop, self.size, self.step)

    @abstractmethod
    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""


@dataclass(frozen=True)
class L2Pool(Pool):
    """y = sqrt(eps + sum over the window of x^2); dL/dx = x times the sum of dy / y over the windows that see it.

    eps > 0 keeps the slope at 0 where a window is all zero.
    """

    size: int
    stride: int = 1
    eps: float = 1e-8
    kind: ClassVar[str] = "l2_pool"

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(eps=self.eps)

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""
        xp = work.xp
        squares = work.array("squares", x.shape, x.dtype)
        xp.multiply(x, x, out=squares)
        window_sum(work, "sum", squares, (1.0,) * self.size, self.stride, y)
        xp.add(y, self.eps, out=y)
        xp.sqrt(y, out=y)

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx."""
        xp = work.xp
        ratio = work.array("ratio", y.shape, y.dtype)
        xp.divide(dy, y, out=ratio)
        window_spread(work, "sum", ratio, (1.0,) * self.size, self.stride, dx)
        xp.multiply(dx, x, out=dx)


@dataclass(frozen=True)
class MaxPool(Pool):
    """y = the largest x of the window; dL/dx = the sum of dy over the windows whose largest it is.

    Of equal ones the first has it: the uppermost, then the leftmost. A border, `padding` pixels wide, and what is
    beyond the far edges in `ceil_mode`, is never the largest (Caffe's pooling is that of `ceil_mode`).
    """

    size: int
    stride: int | None = None
    padding: int = 0
    ceil_mode: bool = False
    kind: ClassVar[str] = "max_pool"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, padding=self.padding)
        if self.padding >= self.size:
            raise ValueError(f"padding is {self.padding}, must be less than size, {self.size}")

    def outputs(self, inputs: Shape) -> Shape:
        """(windows down, windows across, channels)."""
        return (*windows(inputs, self.size, self.step, self.padding, self.ceil_mode), inputs[2])

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""
        window_max(work, "max", self._bordered(work, x, y), self.size, self.step, y)

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx."""
        xp = work.xp
        here, free = (work.array(name, y.shape, np.dtype(bool)) for name in ("here", "free"))
        image = self._bordered(work, x, y)
        d_image = dx if image is x else work.array("d_bordered", image.shape, dx.dtype)
        alone = self.step >= self.size  # each pixel is in one window at most
        if not alone or any(n * self.size != m for n, m in zip(y.shape[1:3], image.shape[1:3], strict=True)):
            d_image.fill(0)  # else each pixel is written to
        free.fill(True)  # windows whose largest is still to be found
        pairs = zip(*(taps(one, self.size, self.step, y.shape) for one in (image, d_image)), strict=True)
        for tap, there in pairs:
            xp.equal(tap, y, out=here)
            xp.logical_and(here, free, out=here)
            xp.logical_xor(free, here, out=free)
            if alone:
                xp.multiply(dy, here, out=there)
            else:
                part = work.array("part", y.shape, y.dtype)
                xp.add(there, xp.multiply(dy, here, out=part), out=there)
        if d_image is not dx:
            xp.copyto(dx, inside(d_image, self.padding, dx.shape))

    def _bordered(self, work: Workspace, x: Array, y: Array) -> Array:
        return bordered(work, x, self.size, self.step, self.padding, y.shape, -np.inf)


@dataclass(frozen=True)
class AveragePool(Pool):
    """y = the mean of the window; dL/dx = the sum of dy / size^2 over the windows that see it."""

    size: int
    stride: int | None = None
    kind: ClassVar[str] = "average_pool"

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""
        window_sum(work, "sum", x, (1.0,) * self.size, self.step, y)
        work.xp.divide(y, self.size**2, out=y)

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx."""
        window_spread(work, "sum", dy, (1.0,) * self.size, self.step, dx)
        work.xp.divide(dx, self.size**2, out=dx)
