"""Cross layers of the deep and cross network (Wang et al. 2017, "Deep & Cross Network for Ad Click Predictions")."""

import math
from dataclasses import dataclass
from typing import ClassVar

from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Shape, at_least, uniform_limit


@dataclass(frozen=True)
class Cross:
    """x_{l+1} = x_0 <w_l, x_l> + b_l + x_l for each of the layers (equation 3); y is the last x, of the shape of x_0.

    With g = dL/dx_{l+1} and t = <x_0, g>, of each sample: dL/dw_l = sum of t x_l, dL/db_l = sum of g over the batch,
    dL/dx_l = g + t w_l; and <w_l, x_l> g is added to dL/dx_0. Tensors have a row for each layer.

    Initial values: b = 0; w as of `Dense` with one output.
    """

    layers: int
    kind: ClassVar[str] = "cross"
    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __post_init__(self) -> None:
        at_least(1, layers=self.layers)

    def outputs(self, inputs: Shape) -> Shape:
        """As the inputs."""
        return inputs

    def sees(self, start: int, stop: int) -> None:
        """Everything: it is not cut over ranks."""
        return

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Of weight and bias."""
        shape = self.layers, math.prod(inputs)
        return shape, shape

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """As above."""
        return uniform_limit(math.prod(inputs), 1, False)

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y; leave each layer's x_l and <w_l, x_l>."""
        xp, (weight, bias), (m, d) = work.xp, parameters, (len(x), parameters[0].shape[1])
        first, last = x.reshape(m, d), y.reshape(m, d)
        xp.copyto(last, first)
        for number in range(self.layers):
            before, product = self._kept(work, number, m, d, y)
            xp.copyto(before, last)
            xp.matmul(before, weight[number][:, None], out=product)
            xp.multiply(first, product, out=last)
            xp.add(last, bias[number], out=last)
            xp.add(last, before, out=last)

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write dL/dw and dL/db, and dL/dx, where they are asked for."""
        xp, weight, (m, d) = work.xp, parameters[0], (len(x), parameters[0].shape[1])
        first = x.reshape(m, d)
        slope, part, to_first = (work.array(name, (m, d), dy.dtype) for name in ("slope", "part", "to the first"))
        along = work.array("along", (m, 1), dy.dtype)
        xp.copyto(slope, dy.reshape(m, d))
        to_first.fill(0)
        for number in reversed(range(self.layers)):
            before, product = self._kept(work, number, m, d, dy)
            xp.multiply(first, slope, out=part)
            xp.sum(part, axis=1, keepdims=True, out=along)
            if gradients:
                xp.matmul(along.T, before, out=gradients[0][number : number + 1])
                xp.sum(slope, axis=0, out=gradients[1][number])
            if dx is not None:
                xp.multiply(slope, product, out=part)
                xp.add(to_first, part, out=to_first)
            xp.multiply(along, weight[number], out=part)
            xp.add(slope, part, out=slope)
        if dx is not None:
            xp.add(slope, to_first, out=dx.reshape(m, d))

    def _kept(self, work: Workspace, number: int, m: int, d: int, like: Array) -> tuple[Array, Array]:
        """Buffers of a layer's x_l, (m, d), and <w_l, x_l>, (m, 1)."""
        return work.array(f"x{number}", (m, d), like.dtype), work.array(f"product{number}", (m, 1), like.dtype)
