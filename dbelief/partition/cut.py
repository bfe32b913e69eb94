"""How a network is cut over the ranks of a replica: what of each layer a rank computes, and what it reads for that.

An image is cut in its height and width by the grid, row by row; numbers in a row, into as many parts as there are
ranks. A rank that computes a window of a layer's outputs reads the window of the inputs that these see (DistBelief,
section 3; COTS HPC, section 4.3). Weights lie with the outputs that they make, where each output has its own: the
columns of a dense layer, the blocks of a locally connected one, whose image is therefore cut between blocks. Weights
that all positions share, as a convolution's, belong to one rank, the first: it gives them to the others, and adds up
what they find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dbelief.core.layout import Box, Layout
from dbelief.errors import ModelError
from dbelief.nn import Cross, Dense, Elementwise, Embedding, Image, Local, Shape, Stage

from .grid import Grid
from .window import Window, split

OWNER = 0
"""The rank that holds what all share."""


@dataclass(frozen=True)
class Part:
    """A layer's windows, by rank: over height and width of an image, else over the numbers.

    Attributes
    ----------
    whole
        Whether every rank has all inputs: they are the batch itself, or an image made of it.
    """

    stage: Stage
    outputs: tuple[Window, ...]
    inputs: tuple[Window, ...]
    whole: bool

    def shape(self, rank: int) -> Shape:
        """Of a sample's outputs on one rank."""
        return (*self.outputs[rank].shape, *self.stage.outputs[2:])

    @property
    def shares(self) -> bool:
        """Whether its parameters are used by all ranks, and held by the owner."""
        return not isinstance(self.stage.layer, Dense | Local)

    @property
    def tensors(self) -> list[tuple[str, Shape]]:
        """Names and shapes of its parameters, whole."""
        shapes = self.stage.layer.shapes(self.stage.inputs)
        return list(zip(self.stage.parameters, shapes, strict=True))

    def boxes(self, rank: int) -> list[Box]:
        """Of its parameters, those on one rank."""
        if self.shares and rank != OWNER:
            return []
        made = [(name, shape, self.needed(self.outputs[rank], shape)) for name, shape in self.tensors]
        return [Box(name, shape, rank, window.start, window.stop) for name, shape, window in made if window.size]

    def needed(self, outputs: Window, shape: Shape) -> Window:
        """Which window of a parameter of this shape makes a window of the outputs."""
        layer = self.stage.layer
        if isinstance(layer, Dense):
            return outputs.along(shape, len(shape) - 1)
        if isinstance(layer, Local):
            start, stop = (tuple(n // layer.block for n in corner) for corner in (outputs.start, outputs.stop))
            return Window(start, stop).along(shape, 0)
        return Window.whole(shape)


def cut(stages: Sequence[Stage], grid: Grid) -> list[Part]:
    """Cut every layer.

    Raises
    ------
    ModelError
        A layer cannot be cut; names it.
    """
    parts: list[Part] = []
    whole = True
    for stage in stages:
        if isinstance(stage.layer, Image):
            if not whole:
                raise ModelError(f"layer {stage.name}: cannot be cut over ranks: it may only come first")
            continue
        if isinstance(stage.layer, Embedding):
            raise ModelError(f"layer {stage.name}: cannot be cut over ranks: an embedding is for one rank")
        if isinstance(stage.layer, Cross):
            raise ModelError(f"layer {stage.name}: cannot be cut over ranks: each output needs all inputs, and is one")
        if getattr(stage.layer, "padding", 0) or getattr(stage.layer, "ceil_mode", False):
            raise ModelError(f"layer {stage.name}: cannot be cut over ranks: padding and ceil_mode are for one rank")
        # Element by element, each rank has what it needs, however the layer before was cut.
        as_before = parts and isinstance(stage.layer, Elementwise)
        outputs = parts[-1].outputs if as_before else tuple(_windows(stage, grid))
        inputs = tuple(seen(stage, window) for window in outputs)
        parts.append(Part(stage, outputs, inputs, whole))
        whole = False
    return parts


def layout(parts: Sequence[Part], grid: Grid) -> Layout:
    """Where each rank's boxes lie in the flat vector: rank after rank, each in the order of the layers."""
    return Layout(tuple(box for rank in range(grid.size) for part in parts for box in part.boxes(rank)))


def _axes(shape: Shape) -> Shape:
    """The axes that are cut."""
    return shape[:2] if len(shape) == 3 else shape


def _windows(stage: Stage, grid: Grid) -> list[Window]:
    shape, layer = stage.outputs, stage.layer
    if len(shape) == 3:
        return grid.windows(shape[0], shape[1], layer.block if isinstance(layer, Local) else 1)
    (length,) = shape
    return [Window((start,), (stop,)) for start, stop in split(length, grid.size)]


def seen(stage: Stage, outputs: Window) -> Window:
    """What a window of a layer's outputs sees of its inputs."""
    axes = _axes(stage.inputs)
    if not outputs.size:
        return Window.nothing(len(axes))
    found = [stage.layer.sees(start, stop) for start, stop in zip(outputs.start, outputs.stop, strict=True)]
    if len(found) != len(axes) or None in found:
        return Window.whole(axes)
    ranges = [one for one in found if one is not None]
    return Window(tuple(start for start, _ in ranges), tuple(stop for _, stop in ranges))
