"""How stacks of sparse autoencoders would be cut over a grid: the blocks of each, and what lies between two stacks.

Each stack is cut as a layer alone is (`blocks.py`). A rank pools and normalises what its own blocks of the next stack
see, so that between two stacks one array goes: activations, written where a neuron is, read where the pooling windows
under the next stack's pixels see it. What a rank has for them as slopes goes back by the same array.

Source: COTS HPC, sections 3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dbelief.layout import Layout
from dbelief.nn.autoencoder import Eq1
from dbelief.nn.contrast import Lcn
from dbelief.nn.pooling import L2Pool
from dbelief.nn.stack import Sizes
from dbelief.nn.stacks import tensor_name

from .blocks import NOTHING, BlockParts
from .declared import Declared
from .grid import Grid
from .traffic import Passage, autoencoder_step
from .window import Window


class StackParts:
    """The parts of all stacks up to the highest that is trained.

    Parameters
    ----------
    first
        The lowest stack that is trained, from 1.
    """

    def __init__(self, sizes: Sequence[Sizes], stacks: Sequence[tuple[Eq1, Lcn]], first: int, grid: Grid) -> None:
        self._stacks, self._first, self._grid = list(stacks)[: len(sizes)], first, grid
        self.parts = [BlockParts.of(one.blocks, eq1, grid) for one, (eq1, _) in zip(sizes, self._stacks, strict=True)]

    @property
    def layout(self) -> Layout:
        """Where each rank's boxes of what is trained lie in the flat vector."""
        trained = list(enumerate(self.parts, start=1))[self._first - 1 :]
        ranks = range(self._grid.size)
        return Layout(
            tuple(box for r in ranks for place, parts in trained for box in parts.boxes(r, tensor_name(place, "")))
        )

    def frozen(self, rank: int) -> int:
        """Numbers that a rank holds of the stacks below."""
        return sum(box.size for parts in self.parts[: self._first - 1] for box in parts.boxes(rank))

    def between(self, place: int, samples: int) -> Declared:
        """Activations of a stack, from 1, where they are and where the next one needs them."""
        eq1, here = self._stacks[place - 1][0], self.parts[place - 1]
        inputs = tuple(self._seen(place, rank)[0] for rank in range(self._grid.size))
        return Declared((*here.sides, eq1.maps * samples), here.neurons, inputs)

    def carried(self, rank: int) -> int:
        """Numbers of a sample that a rank has between stacks: activations it pools, pooled, normalised."""
        found = 0
        for place in range(1, len(self.parts)):
            found += self._stacks[place - 1][0].maps * sum(window.size for window in self._seen(place, rank))
        return found

    def _seen(self, place: int, rank: int) -> tuple[Window, Window, Window]:
        """What of a stack's activations, pooled and normalised maps is under a rank's blocks of the next stack."""
        (eq1, lcn), pixels = self._stacks[place - 1], self.parts[place].pixels(rank)
        if not pixels.size:
            return NOTHING, NOTHING, NOTHING
        pooled = _under(lcn, pixels)
        return _under(L2Pool(eq1.pool), pooled), pooled, pixels

    def step(self, samples: int) -> list[Passage]:
        """What the ranks would exchange in one step."""
        there: list[Passage] = []
        back: list[Passage] = []
        for place, ((eq1, _), parts) in enumerate(zip(self._stacks, self.parts, strict=True), start=1):
            trained = place >= self._first
            if trained:
                own = autoencoder_step(parts, eq1.maps, samples)
                there += [_named(place, passage) for passage in own if passage.way == "forward"]
                back = [_named(place, passage) for passage in own if passage.way == "backward"] + back
            if place < len(self.parts):
                array = self.between(place, samples)
                there.append(Passage.there(f"stack {place + 1}: inputs", array))
                if trained:
                    back.insert(0, Passage.back(f"stack {place + 1}: slopes in the inputs", array))
        return there + back


def _under(layer: L2Pool | Lcn, outputs: Window) -> Window:
    """What a window of a layer's outputs sees."""
    ranges = [layer.sees(a, b) or (a, b) for a, b in zip(outputs.start, outputs.stop, strict=True)]
    return Window(tuple(a for a, _ in ranges), tuple(b for _, b in ranges))


def _named(place: int, passage: Passage) -> Passage:
    return replace(passage, what=f"stack {place}: {passage.what}")
