"""What a definition is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Name = Literal["lenet", "alexnet", "nin", "googlenet", "vgg19", "speech"]
Loss = Literal["softmax_cross_entropy"]

Words: TypeAlias = str | Mapping[str, Any]
"""A layer as a job file writes it: "relu", {"dense": 10}, {"conv": {"maps": 20, "kernel": 5}}."""


@dataclass(frozen=True)
class Branches:
    """Paths of layers side by side, which all see the same images; what they give is joined channel by channel."""

    paths: Sequence[Sequence[Words]]


@dataclass(frozen=True)
class Head:
    """Layers that lead from here to a loss of their own, beside the ones that follow; used in training only."""

    layers: Sequence[Words]


@dataclass(frozen=True)
class Network:
    """A network by its name.

    Attributes
    ----------
    about
        Whose it is, and what of it is left out here, in a sentence.
    layers
        From input to output; the first says the image.
    """

    name: Name
    about: str
    layers: Sequence[Words | Branches | Head]
    loss: Loss = "softmax_cross_entropy"

    @property
    def chain(self) -> Sequence[Words] | None:
        """Its layers where one follows the other, as in a job file; None where it has branches or heads."""
        plain = [layer for layer in self.layers if not isinstance(layer, Branches | Head)]
        return plain if len(plain) == len(self.layers) else None
