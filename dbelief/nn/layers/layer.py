"""Layers: a formula forward, a formula backward, both written into arrays that are given.

With x of shape (m, *inputs), y of shape (m, *outputs) and dy = dL/dy, `backward` writes dL/dparameters, unless no
gradients are given, and dL/dx, unless dx is None. Images are (m, height, width, channels). A layer keeps no state: its
parameters are views into the flat vector, and what it needs besides, also from `forward` to the `backward` after it,
lies in buffers of a workspace that is its own. `dx` never overlaps `dy`, `x` or `y`. All arrays are C-contiguous, but
for the parameters that `forward` gets: they may be windows of larger ones.

Each layer also reports which part of its input a part of its output sees (`sees`), so that a network can be cut
over machines.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dbelief.nn.kernels import sparse
from dbelief.nn.model import Array
from dbelief.nn.sparse_rows import SparseRows
from dbelief.nn.workspace import Workspace

Shape = tuple[int, ...]
"""Of one sample: (n,) numbers, or (height, width, channels) of an image."""

Arrays = Sequence[Array]
"""Of a layer's parameters, or of their gradients, in the order of its `tensors`."""


class Layer(Protocol):
    """What a network asks of a layer."""

    @property
    def kind(self) -> str:
        """Its name in a job file."""
        ...

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of its parameters, in the order in which it takes them; empty where it has none."""
        ...

    def outputs(self, inputs: Shape) -> Shape:
        """Shape of a sample's outputs, given that of its inputs.

        Raises
        ------
        ModelError
            It cannot take such inputs; the message begins with a verb, for the network puts the layer's name before it.
        """
        ...

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """Which inputs [first, last) of a spatial axis the outputs [start, stop) of that axis see; None: all inputs.

        Takes start < stop.
        """
        ...

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Shapes of its parameters, in the order of `tensors`."""
        ...

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """Limit of the uniform distribution of its first tensor's initial values; all others begin with 0."""
        ...

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y; `parameters` in the order of `tensors`."""
        ...

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write the gradients unless they are (), and dx unless it is None."""
        ...


@dataclass(frozen=True)
class Dense:
    """y = x W + b, with W of shape (inputs, units) and b of shape (units,); x is read as (m, inputs).

    As a network's first layer on the host, it takes x as `SparseRows` too.

    dL/dW = x^T dy, dL/db = sum over the batch of dy, dL/dx = dy W^T.
    Each output sees its whole input.

    Initial values: b = 0; W uniform in ±sqrt(6 / inputs) before a ReLU (He et al. 2015, eq. 10 for a uniform
    distribution), else in ±sqrt(6 / (inputs + units)) (Glorot and Bengio 2010, eq. 16).
    """

    units: int
    kind: ClassVar[str] = "dense"
    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __post_init__(self) -> None:
        at_least(1, units=self.units)

    def outputs(self, inputs: Shape) -> Shape:
        """(units,), whatever the inputs."""
        return (self.units,)

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """Everything."""
        return None

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """Of weight and bias."""
        return (math.prod(inputs), self.units), (self.units,)

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """As above."""
        return uniform_limit(math.prod(inputs), self.units, before_relu)

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y = x W + b."""
        xp, (weight, bias) = work.xp, parameters
        if isinstance(x, SparseRows):
            sparse.times(x, weight, y)
        else:
            xp.matmul(x.reshape(len(x), -1), weight, out=y)
        xp.add(y, bias, out=y)

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write dL/dW and dL/db straight into the gradient vector, and dL/dx, where they are asked for."""
        xp = work.xp
        if gradients:
            d_weight, d_bias = gradients
            if isinstance(x, SparseRows):
                sparse.transposed_times(x, dy, d_weight)
            else:
                xp.matmul(x.reshape(len(x), -1).T, dy, out=d_weight)
            xp.sum(dy, axis=0, out=d_bias)
        if dx is not None:
            xp.matmul(dy, parameters[0].T, out=dx.reshape(len(x), -1))


def at_least(least: int, **counts: int) -> None:
    """Refuse a lower count."""
    for name, value in counts.items():
        if value < least:
            raise ValueError(f"{name} is {value}, must be {least} or more")


def above_zero(**numbers: float) -> None:
    """Refuse a number that is not above 0."""
    for name, value in numbers.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, must be above 0")


def uniform_limit(fan_in: int, fan_out: int, before_relu: bool) -> float:
    """Limit that `Dense` draws its weights within, for so many inputs and outputs of a neuron."""
    limit: float = (6.0 / (fan_in if before_relu else fan_in + fan_out)) ** 0.5
    return limit


class Fixed(ABC):
    """A layer without parameters: what it gives back depends on its inputs alone."""

    tensors: ClassVar[tuple[str, ...]] = ()

    def shapes(self, inputs: Shape) -> tuple[Shape, ...]:
        """It has no parameters."""
        return ()

    def limit(self, inputs: Shape, before_relu: bool) -> float:
        """Nothing is drawn."""
        return 0.0

    def backward(
        self, work: Workspace, x: Array, y: Array, dy: Array, parameters: Arrays, gradients: Arrays, dx: Array | None
    ) -> None:
        """Write dL/dx where it is asked for."""
        if dx is not None:
            self.give_back(work, x, y, dy, dx)

    @abstractmethod
    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx."""


class Elementwise(Fixed):
    """No parameters, and each output sees its own input only."""

    def outputs(self, inputs: Shape) -> Shape:
        """As the inputs."""
        return inputs

    def sees(self, start: int, stop: int) -> tuple[int, int]:
        """Their own."""
        return start, stop


class Pointwise(Elementwise):
    """y = f(x) element by element; dL/dx = f'(x) dy, with f' written as a function of y = f(x), which is available."""

    kind: ClassVar[str]

    @abstractmethod
    def slope(self, work: Workspace, y: Array, out: Array) -> None:
        """Write f' at the x that gave y."""

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Write dL/dx = f' dy."""
        self.slope(work, y, dx)
        work.xp.multiply(dx, dy, out=dx)


class ReLU(Pointwise):
    """f(x) = max(x, 0); f' = 1 where y > 0, else 0 (also at x = 0)."""

    kind: ClassVar[str] = "relu"

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y = max(x, 0)."""
        work.xp.maximum(x, 0, out=y)

    def slope(self, work: Workspace, y: Array, out: Array) -> None:
        """Write sign(y), which is 1 where y > 0, else 0: y is never negative."""
        # greater(y, 0) would be a bool, and its conversion allocates a buffer at every step.
        work.xp.sign(y, out=out)


class Sigmoid(Pointwise):
    """f(x) = 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2; f' = y (1 - y).

    The form with tanh overflows nowhere.
    """

    kind: ClassVar[str] = "sigmoid"

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y = (1 + tanh(x / 2)) / 2."""
        xp = work.xp
        xp.multiply(x, 0.5, out=y)
        xp.tanh(y, out=y)
        xp.add(y, 1.0, out=y)
        xp.multiply(y, 0.5, out=y)

    def slope(self, work: Workspace, y: Array, out: Array) -> None:
        """Write y (1 - y)."""
        work.xp.subtract(1.0, y, out=out)
        work.xp.multiply(out, y, out=out)


class Tanh(Pointwise):
    """f(x) = tanh(x); f' = 1 - y^2."""

    kind: ClassVar[str] = "tanh"

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Write y = tanh(x)."""
        work.xp.tanh(x, out=y)

    def slope(self, work: Workspace, y: Array, out: Array) -> None:
        """Write 1 - y^2."""
        work.xp.multiply(y, y, out=out)
        work.xp.subtract(1.0, out, out=out)
