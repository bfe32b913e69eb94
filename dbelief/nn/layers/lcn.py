"""Local contrast normalisation, subtractive then divisive (Jarrett et al. 2009, section 2; Le et al. 2012).

    g_c(p) = h_c(p) - sum over c', q of G(q) h_c'(p + q)
    s(p) = sqrt(sum over c', q of G(q) g_c'(p + q)^2)
    y_c(p) = g_c(p) / max(c0, s(p))

G is a Gaussian window of size x size pixels, centred on p, whose sum over all maps and pixels is 1. Both windows lie
inside the image: it loses (size - 1) / 2 pixels twice at each border.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Fixed, Shape, above_zero, at_least
from .sliding_windows import seen, window_spread, window_sum, windows


@dataclass(frozen=True)
class Lcn(Fixed):
    """Local contrast normalisation.

    With q = max(c0, s) and a(p) = sum over c of dy_c y_c / q^2 where s > c0, else 0:
    dL/dg = dy / q - g (G * a), and dL/dh = dL/dg - G * (sum over c of dL/dg), where G * is the window's transpose, and
    a term counts 0 at pixels where it is not defined.

    Parameters
    ----------
    size : int
        Odd, in pixels.
    sigma : float
        Of the Gaussian, in pixels. The papers give none for 5 x 5 pixels: a quarter of the size is a choice.
    c0 : float
        0.01 in Le et al.; contrast below it is not raised to 1.
    """

    size: int = 5
    sigma: float = 1.25
    c0: float = 0.01
    kind: ClassVar[str] = "lcn"

    def __post_init__(self) -> None:
        at_least(1, size=self.size)
        if self.size % 2 == 0:
            raise ValueError(f"size is {self.size}, must be odd")
        above_zero(sigma=self.sigma, c0=self.c0)

    def outputs(self, inputs: Shape) -> Shape:
        """What two windows leave of the image."""
        return (*windows(inputs, 2 * self.size - 1, 1), inputs[2])

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """What two windows, one after the other, cover."""
        return seen(start, stop, 2 * self.size - 1, 1)

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y."""
        xp = work.xp
        g, q = self._g_and_q(work, y)
        mean = work.array("mean", (*g.shape[:3], 1), g.dtype)
        window_sum(work, "mean", _over_maps(work, "of x", x), self._weights(x), 1, mean)
        xp.subtract(self._inner(x), mean, out=g)
        squares = work.array("squares", g.shape, g.dtype)
        xp.multiply(g, g, out=squares)
        window_sum(work, "contrast", _over_maps(work, "of g", squares), self._weights(x), 1, q)
        xp.sqrt(q, out=q)
        xp.maximum(q, self.c0, out=q)
        xp.divide(self._inner(g), q, out=y)

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx = dL/dh, from the g and q that `forward` left."""
        xp = work.xp
        g, q = self._g_and_q(work, y)
        part = work.array("part", y.shape, y.dtype)
        xp.multiply(dy, y, out=part)
        a = _over_maps(work, "of y", part)
        above = work.array("above", q.shape, np.dtype(bool))
        xp.greater(q, self.c0, out=above)
        xp.divide(a, q, out=a)
        xp.divide(a, q, out=a)
        xp.multiply(a, above, out=a)
        spread = work.array("spread", (*g.shape[:3], 1), g.dtype)
        window_spread(work, "contrast", a, self._weights(x), 1, spread)
        xp.negative(spread, out=spread)
        dg = work.array("dg", g.shape, g.dtype)
        xp.multiply(g, spread, out=dg)
        xp.divide(dy, q, out=part)
        inner = self._inner(dg)
        xp.add(inner, part, out=inner)
        d_mean = work.array("d_mean", (*x.shape[:3], 1), x.dtype)
        window_spread(work, "mean", _over_maps(work, "of g", dg), self._weights(x), 1, d_mean)
        xp.negative(d_mean, out=d_mean)
        xp.copyto(dx, d_mean)
        inner = self._inner(dx)
        xp.add(inner, dg, out=inner)

    def _g_and_q(self, work: Workspace, y: Array) -> tuple[Array, Array]:
        """What `forward` leaves for `backward`; q is (m, height, width, 1), as y."""
        m, height, width, channels = y.shape
        g = work.array("g", (m, height + self.size - 1, width + self.size - 1, channels), y.dtype)
        return g, work.array("q", (m, height, width, 1), y.dtype)

    def _weights(self, x: Array) -> tuple[float, ...]:
        """The Gaussian along one axis: its square sums to 1 over both axes and all maps."""
        reach = self.size // 2
        heights = [math.exp(-((v / self.sigma) ** 2) / 2) for v in range(-reach, reach + 1)]
        total = math.fsum(heights) * math.sqrt(x.shape[3])
        return tuple(height / total for height in heights)

    def _inner(self, x: Array) -> Array:
        """View without the border that one window takes."""
        border = self.size // 2
        return x[:, border : x.shape[1] - border, border : x.shape[2] - border]


def _over_maps(work: Workspace, name: str, x: Array) -> Array:
    """Sum over the maps, (m, height, width, 1): a product with ones, several times as fast as a sum of short runs."""
    channels = x.shape[3]
    ones = work.array("ones", (channels, 1), x.dtype)
    ones.fill(1)
    total = work.array(f"sum {name}", (*x.shape[:3], 1), x.dtype)
    work.xp.matmul(x.reshape(-1, channels), ones, out=total.reshape(-1, 1))
    return total
