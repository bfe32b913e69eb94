"""Stacks one on the other: up through those that are given, J of those that are trained, and its gradient.

The stacks may be whole, or one rank's parts of them; what they take and give is then that rank's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dbelief.nn.model import Array, Tensors

from .autoencoder import EVALUATED
from .stack import Stack


class Chain:
    """The lowest stacks with tensors that stay as they are (`below`), the others with such as are given to each call.

    What is not finite is for the caller to name.
    """

    def __init__(self, stacks: Sequence[Stack], below: Sequence[Tensors]) -> None:
        self._frozen, self._trained = stacks[: len(below)], stacks[len(below) :]
        self._below = below

    def seen(self, images: Array) -> Array:
        """What the lowest stack that is trained sees of images: a buffer until called again."""
        with np.errstate(all="ignore"):
            for stack, own in zip(self._frozen, self._below, strict=True):
                images = stack.encode(own, images)
        return images

    def forward(self, own: Sequence[Tensors], images: Array) -> float:
        """Give the sum of the objectives over images, by tensors of the trained stacks; leave what `backward` needs."""
        x, loss = self.seen(images), 0.0
        with np.errstate(all="ignore"):
            for i, stack in enumerate(self._trained):
                loss += stack.layer.forward(own[i], x)
                if i + 1 < len(self._trained):
                    x = stack.output(own[i], len(x))
        return loss

    def evaluate(self, own: Sequence[Tensors], images: Array) -> float:
        """Give the sum of the objectives over any number of images."""
        firsts = range(0, len(images), EVALUATED)
        return math.fsum(self.forward(own, images[first : first + EVALUATED]) for first in firsts)

    def backward(self, own: Sequence[Tensors], m: int, out: Sequence[Tensors]) -> None:
        """Write the gradient of the mean objective over the m images of the last `forward`, for each trained stack."""
        dy: Array | None = None
        with np.errstate(all="ignore"):
            for i in reversed(range(len(self._trained))):
                dy = self._trained[i].backward(own[i], m, out[i], dy, down=i > 0)
