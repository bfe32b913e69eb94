"""Layers: a formula forward, a formula backward, both written into arrays that are given.

With x of shape (m, inputs), y of shape (m, outputs) and dy = dL/dy, `backward` writes dL/dparameters and,
unless dx is None, dL/dx. A layer keeps no state: its parameters are views into the flat vector, its buffers
belong to the network. `dx` never overlaps `dy`, `x` or `y`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from .model import Array


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

    def outputs(self, inputs: int) -> int:
        """Number of outputs per sample, given the number of inputs."""
        ...

    def initial(self, inputs: int, rng: np.random.Generator, before_relu: bool) -> tuple[np.ndarray, ...]:
        """Draw its parameters as float32 arrays, one for each of `tensors`."""
        ...

    def forward(self, xp: Any, x: Array, parameters: Sequence[Array], y: Array) -> None:
        """Write y; `parameters` in the order of `tensors`."""
        ...

    def backward(
        self,
        xp: Any,
        x: Array,
        y: Array,
        dy: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        dx: Array | None,
    ) -> None:
        """Write the gradients, and dx unless it is None."""
        ...


@dataclass(frozen=True)
class Dense:
    """y = x W + b, with W of shape (inputs, units) and b of shape (units,).

    dL/dW = x^T dy, dL/db = sum over the batch of dy, dL/dx = dy W^T.
    Each output sees its whole input.

    Initial values: b = 0; W uniform in ±sqrt(6 / inputs) before a ReLU (He et al. 2015, eq. 10 for a uniform
    distribution), else in ±sqrt(6 / (inputs + units)) (Glorot and Bengio 2010, eq. 16).
    """

    units: int
    kind: ClassVar[str] = "dense"
    tensors: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"units is {self.units}, must be 1 or more")

    def outputs(self, inputs: int) -> int:
        """Number of units, whatever the inputs."""
        return self.units

    def initial(self, inputs: int, rng: np.random.Generator, before_relu: bool) -> tuple[np.ndarray, ...]:
        """Draw weight and bias."""
        limit = (6.0 / inputs) ** 0.5 if before_relu else (6.0 / (inputs + self.units)) ** 0.5
        weight = rng.random((inputs, self.units), dtype=np.float32)
        weight *= 2.0 * limit
        weight -= limit
        return weight, np.zeros(self.units, np.float32)

    def forward(self, xp: Any, x: Array, parameters: Sequence[Array], y: Array) -> None:
        """Write y = x W + b."""
        weight, bias = parameters
        xp.matmul(x, weight, out=y)
        xp.add(y, bias, out=y)

    def backward(
        self,
        xp: Any,
        x: Array,
        y: Array,
        dy: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        dx: Array | None,
    ) -> None:
        """Write dL/dW and dL/db straight into the gradient vector, and dL/dx where it is asked for."""
        d_weight, d_bias = gradients
        xp.matmul(x.T, dy, out=d_weight)
        xp.sum(dy, axis=0, out=d_bias)
        if dx is not None:
            xp.matmul(dy, parameters[0].T, out=dx)


class Pointwise(ABC):
    """y = f(x) element by element: no parameters, and each output sees its own input only.

    dL/dx = f'(x) dy, with f' written as a function of y = f(x), which is at hand.
    """

    kind: ClassVar[str]
    tensors: ClassVar[tuple[str, ...]] = ()

    def outputs(self, inputs: int) -> int:
        """As many as inputs."""
        return inputs

    def initial(self, inputs: int, rng: np.random.Generator, before_relu: bool) -> tuple[np.ndarray, ...]:
        """Nothing to draw."""
        return ()

    @abstractmethod
    def forward(self, xp: Any, x: Array, parameters: Sequence[Array], y: Array) -> None:
        """Write y = f(x)."""

    @abstractmethod
    def slope(self, xp: Any, y: Array, out: Array) -> None:
        """Write f' at the x that gave y."""

    def backward(
        self,
        xp: Any,
        x: Array,
        y: Array,
        dy: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        dx: Array | None,
    ) -> None:
        """Write dL/dx = f' dy."""
        if dx is not None:
            self.slope(xp, y, dx)
            xp.multiply(dx, dy, out=dx)


class ReLU(Pointwise):
    """f(x) = max(x, 0); f' = 1 where y > 0, else 0 (also at x = 0)."""

    kind: ClassVar[str] = "relu"

    def forward(self, xp: Any, x: Array, parameters: Sequence[Array], y: Array) -> None:
        """Write y = max(x, 0)."""
        xp.maximum(x, 0, out=y)

    def slope(self, xp: Any, y: Array, out: Array) -> None:
        """Write sign(y), which is 1 where y > 0, else 0: y is never negative."""
        # greater(y, 0) would be a bool, and its conversion allocates a buffer at every step.
        xp.sign(y, out=out)


class Sigmoid(Pointwise):
    """f(x) = 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2; f' = y (1 - y).

    The form with tanh overflows nowhere.
    """

    kind: ClassVar[str] = "sigmoid"

    def forward(self, xp: Any, x: Array, parameters: Sequence[Array], y: Array) -> None:
        """Write y = (1 + tanh(x / 2)) / 2."""
        xp.multiply(x, 0.5, out=y)
        xp.tanh(y, out=y)
        xp.add(y, 1.0, out=y)
        xp.multiply(y, 0.5, out=y)

    def slope(self, xp: Any, y: Array, out: Array) -> None:
        """Write y (1 - y)."""
        xp.subtract(1.0, y, out=out)
        xp.multiply(out, y, out=out)


class Tanh(Pointwise):
    """f(x) = tanh(x); f' = 1 - y^2."""

    kind: ClassVar[str] = "tanh"

    def forward(self, xp: Any, x: Array, parameters: Sequence[Array], y: Array) -> None:
        """Write y = tanh(x)."""
        xp.tanh(x, out=y)

    def slope(self, xp: Any, y: Array, out: Array) -> None:
        """Write 1 - y^2."""
        xp.multiply(y, y, out=out)
        xp.subtract(1.0, out, out=out)
