"""How stacks of sparse autoencoders are cut over a grid: the blocks of each, and what lies between two stacks.

Each stack is cut as a layer alone is (`blocks.py`); its pooled and its normalised maps, p and y, are images, cut evenly
by the grid. Between two stacks three arrays go, written where they are made and read where they are seen:

    z    where a neuron is                 by the pooling windows of a rank's p
    p    a rank's part of the image        by the windows of LCN of its y
    y    a rank's part of the image        by its blocks of the next stack

What ranks have for them as slopes goes back by the same arrays.

Source: COTS HPC, sections 3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dbelief.core.layout import Layout
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.stack import Shapes, Sizes
from dbelief.nn.autoencoders.stacks import tensor_name
from dbelief.nn.layers.layer import Shape
from dbelief.nn.layers.lcn import Lcn
from dbelief.nn.layers.pooling import L2Pool

from .blocks import NOTHING, BlockParts
from .declared import Declared
from .grid import Grid
from .traffic import Passage, layer_step
from .window import Window

Windows = tuple[Window, ...]
"""By rank."""


class StackParts:
    """The parts of all stacks up to the highest that is trained.

    Parameters
    ----------
    first
        The lowest stack that is trained, from 1.

    Attributes
    ----------
    parts, stacks
        Of each stack, the lowest first.
    """

    def __init__(self, sizes: Sequence[Sizes], stacks: Sequence[tuple[Eq1, Lcn]], first: int, grid: Grid) -> None:
        self._sizes, self.stacks, self._first, self._grid = sizes, list(stacks)[: len(sizes)], first, grid
        self.parts = [BlockParts.of(one.blocks, eq1, grid) for one, (eq1, _) in zip(sizes, self.stacks, strict=True)]

    @property
    def layout(self) -> Layout:
        """Where each rank's boxes of what is trained lie in the flat vector: rank after rank, stack after stack."""
        trained = list(enumerate(self.parts, start=1))[self._first - 1 :]
        ranks = range(self._grid.size)
        return Layout(
            tuple(box for r in ranks for place, parts in trained for box in parts.boxes(r, tensor_name(place, "")))
        )

    def frozen(self, rank: int) -> int:
        """Numbers that a rank holds of the stacks below."""
        return sum(box.size for parts in self.parts[: self._first - 1] for box in parts.boxes(rank))

    def alphas(self) -> Declared:
        """Those of all stacks that are trained, together."""
        return Declared.from_owner((len(self.parts) - self._first + 1,), self._grid.size)

    def between(self, place: int, samples: int) -> tuple[Declared, Declared, Declared]:
        """z, p and y of a stack, from 1, that is not the highest."""
        (eq1, lcn), sizes = self.stacks[place - 1], self._sizes[place - 1]
        pooled, output = self._pooled(place), self._output(place)
        assert sizes.output is not None, f"another stack is above one of {sizes}"
        neurons = self.parts[place - 1].neurons
        pixels = tuple(self.parts[place].pixels(rank) for rank in range(self._grid.size))
        return (
            Declared((samples, *sizes.maps), neurons, _under(L2Pool(eq1.pool), pooled), first_axis=1),
            Declared((samples, *sizes.pooled), pooled, _under(lcn, output), first_axis=1),
            Declared((samples, *sizes.output), output, pixels, first_axis=1),
        )

    def shapes(self, place: int, rank: int) -> Shapes:
        """What a rank's part of a stack, from 1, takes and makes; the highest has neither p nor y."""
        parts, maps, channels = self.parts[place - 1], self.stacks[place - 1][0].maps, self._sizes[place - 1].image[2]
        above = place < len(self.parts)
        pooled, output = (self._pooled(place)[rank], self._output(place)[rank]) if above else (NOTHING, NOTHING)
        (height, width), (rows, columns) = parts.pixels(rank).shape, output.shape
        return Shapes(
            image=(height, width, channels),
            maps=(*parts.neurons[rank].shape, maps),
            pooled=(*pooled.shape, maps),
            output=(rows, columns, maps),
        )

    def carried(self, rank: int) -> int:
        """Numbers of a sample that a rank has between stacks: z, p and y as it makes them, and as it sees them."""
        arrays = [array for place in range(1, len(self.parts)) for array in self.between(place, 1)]
        seen = sum(array.held[0][rank] for array in arrays) if self._grid.size > 1 else 0
        return seen + sum(array.held[1][rank] for array in arrays)

    def step(self, samples: int, itemsize: int = 4) -> list[Passage]:
        """The exchanges of one step, in their order."""
        alphas = self.alphas()
        there = [Passage.there("alphas", alphas, itemsize)]
        back = Passage.sums("loss and alphas' slopes", 1 + alphas.shape[0], self._grid.size)
        for place, ((eq1, _), parts) in enumerate(zip(self.stacks, self.parts, strict=True), start=1):
            trained = place >= self._first
            if trained:
                own = layer_step(parts, eq1.maps, samples, itemsize)
                there += [_named(place, passage) for passage in own if passage.way == "forward"]
                back = [_named(place, passage) for passage in own if passage.way == "backward"] + back
            arrays = zip("zpy", self.between(place, samples), strict=True) if place < len(self.parts) else ()
            for name, array in arrays:
                there.append(Passage.there(f"stack {place}: {name}", array, itemsize))
                if trained:
                    back.insert(0, Passage.back(f"stack {place}: slopes in {name}", array, itemsize))
        return there + back

    def _pooled(self, place: int) -> Windows:
        return self._cut(self._sizes[place - 1].pooled)

    def _output(self, place: int) -> Windows:
        return self._cut(self._sizes[place - 1].output or (0, 0))

    def _cut(self, sides: Shape) -> Windows:
        """By rank, its part of an image."""
        return tuple(window if window.size else NOTHING for window in self._grid.windows(sides[0], sides[1]))


def _under(layer: L2Pool | Lcn, outputs: Windows) -> Windows:
    """What windows of a layer's outputs see; nothing of nothing."""
    return tuple(_seen(layer, window) if window.size else NOTHING for window in outputs)


def _seen(layer: L2Pool | Lcn, window: Window) -> Window:
    ranges = [layer.sees(a, b) or (a, b) for a, b in zip(window.start, window.stop, strict=True)]
    return Window(tuple(a for a, _ in ranges), tuple(b for _, b in ranges))


def _named(place: int, passage: Passage) -> Passage:
    return replace(passage, what=f"stack {place}: {passage.what}")
