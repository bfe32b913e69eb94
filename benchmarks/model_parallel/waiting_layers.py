"""Layers that wait as long as a machine of a given speed would compute, for measurements of communication.

Only products count: 2 flop for each weight of the neuron behind an output, forward; as much for the weights' gradient,
and for the inputs'. Outputs and gradients of inputs are 0; those of parameters are left alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from dbelief.nn import Array
from dbelief.nn.layers.layer import Layer, Shape
from dbelief.nn.workspace import Workspace
from dbelief.process.clock import Clock

_NEVER = threading.Event()


def product_flop(outputs: int, parameters: Sequence[Shape]) -> int:
    """Of one product for so many outputs; `parameters` are the shapes of a layer's weights and biases, or none."""
    if not parameters:
        return 0
    weights, biases = map(math.prod, parameters)
    return 2 * outputs * weights // biases


def waiting(layer: Layer, flop_per_s: float, clock: Clock) -> Any:
    """The same layer, of a class derived from its own, that waits."""

    def take(products: int, y: Array, parameters: Sequence[Array], zeros: Iterable[Array]) -> None:
        flop = products * product_flop(y.size, [values.shape for values in parameters])
        until_s = clock.now() + flop / flop_per_s
        for array in zeros:
            array.fill(0)
        clock.wait(_NEVER, max(0.0, until_s - clock.now()))

    def forward(_: Layer, work: Workspace, x: Array, parameters: Sequence[Array], y: Array) -> None:
        take(1, y, parameters, [y])

    def backward(
        _: Layer,
        work: Workspace,
        x: Array,
        y: Array,
        dy: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
        dx: Array | None,
    ) -> None:
        take(bool(gradients) + (dx is not None), y, parameters, [] if dx is None else [dx])

    kind = type(layer)
    return type(f"Waiting{kind.__name__}", (kind,), {"forward": forward, "backward": backward})(**vars(layer))


class NoLoss:
    """A loss of 0 that takes no time."""

    name = "none"

    def outputs(self, classes: int) -> int:
        return classes

    def by_class(self, work: Workspace, outputs: Array) -> Array:
        return outputs

    def check(self, outputs: int, targets: Array) -> None:
        pass

    def forward(self, work: Workspace, outputs: Array, targets: Array, slope: Array) -> float:
        return 0.0

    def backward(self, work: Workspace, targets: Array, slope: Array) -> None:
        pass

    def right(self, work: Workspace, outputs: Array, targets: Array) -> int:
        return 0

    def log_probabilities(self, work: Workspace, outputs: Array) -> Array:
        raise ValueError("there are no classes")
