"""Layers as numbers: tensors, and the cost of a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dbelief.nn import Conv, Embedding, Stage

Shape = tuple[int, ...]
State = Literal["trained", "frozen", "later"]

FORWARD, PRODUCTS, REBUILDING = 2, 3, 5
"""Operations of a weight that is used once: a product and a sum. Products with all weights in a step: forward, the
gradient in weights, the gradient in inputs (FireCaffe counts all three for the first layer too, section 7); for an
autoencoder's layer W x, W^T z, W dL/dz, and the two terms of its gradient (Coates et al. 2013, section 4.1)."""


@dataclass(frozen=True)
class PlannedLayer:
    """One layer, or one stack.

    Attributes
    ----------
    outputs
        Shape of a sample's outputs.
    tensors
        Shapes of its parameters by name.
    multiplied
        Numbers of a sample that are multiplied with its weights: its inputs; 0 where it has no weights.
    flop
        Floating-point operations with its weights in a step, of a sample.
    state
        Whether this job trains it, uses it frozen, or does not use it yet.
    """

    name: str
    outputs: Shape
    tensors: Mapping[str, Shape]
    multiplied: int = 0
    flop: int = 0
    state: State = "trained"

    @property
    def parameters(self) -> int:
        """Number of values in its tensors."""
        return sum(math.prod(shape) for shape in self.tensors.values())


def planned_layers(stages: Iterable[Stage]) -> list[PlannedLayer]:
    """The layers of a network: a convolution uses its weights at each position, an embedding multiplies with none, and
    all other layers use theirs once.
    """
    found = []
    for stage in stages:
        shapes = stage.layer.shapes(stage.inputs)
        tensors = dict(zip(stage.parameters, shapes, strict=True))
        multiplies = bool(shapes) and not isinstance(stage.layer, Embedding)
        weights = math.prod(shapes[0]) if multiplies else 0
        times = math.prod(stage.outputs[:2]) if isinstance(stage.layer, Conv) else 1
        multiplied = math.prod(stage.inputs) if multiplies else 0
        found.append(PlannedLayer(stage.name, stage.outputs, tensors, multiplied, PRODUCTS * FORWARD * times * weights))
    return found


def reading_sparse(layers: Sequence[PlannedLayer], numbers: int) -> list[PlannedLayer]:
    """The same layers, where the first multiplies only so many numbers of a sample with its weights."""
    first, *others = layers
    return [replace(first, multiplied=numbers, flop=first.flop * numbers // max(1, first.multiplied)), *others]
