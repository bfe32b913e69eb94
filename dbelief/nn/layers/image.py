"""The same numbers as an image: for layers of images on data whose samples are rows of numbers."""

import math
from dataclasses import dataclass
from typing import ClassVar

from dbelief.errors import ModelError
from dbelief.nn.model import Array
from dbelief.nn.workspace import Workspace

from .layer import Arrays, Fixed, Shape, at_least


@dataclass(frozen=True)
class Image(Fixed):
    """Any shape as (height, width, channels), in C order: channels next to each other, then rows from left to right."""

    height: int
    width: int
    channels: int = 1
    kind: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        at_least(1, height=self.height, width=self.width, channels=self.channels)

    def outputs(self, inputs: Shape) -> Shape:
        """(height, width, channels), if that is as many numbers as there are."""
        shape, n = (self.height, self.width, self.channels), math.prod(inputs)
        if math.prod(shape) != n:
            raise ModelError(f"takes {' x '.join(map(str, shape))} = {math.prod(shape)} numbers per sample, gets {n}")
        return shape

    def sees(self, start: int, stop: int) -> tuple[int, int] | None:
        """Everything: a row of numbers has no height and width to cut."""
        return None

    def forward(self, work: Workspace, x: Array, parameters: Arrays, y: Array) -> None:
        """Copy x."""
        work.xp.copyto(y, x.reshape(y.shape))

    def give_back(self, work: Workspace, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """Copy dy."""
        work.xp.copyto(dx, dy.reshape(dx.shape))


def image_shape(inputs: Shape) -> tuple[int, int, int]:
    """Height, width and channels of what a layer of images gets.

    Raises
    ------
    ModelError
        It gets no images.
    """
    if len(inputs) != 3:
        raise ModelError(
            f"takes images, but gets {' x '.join(map(str, inputs))} numbers per sample; a layer "
            "{image: {height: ..., width: ..., channels: ...}} before it says how they lie"
        )
    height, width, channels = inputs
    return height, width, channels
