"""What the ranks of a replica send each other in one mini-batch: known before there is any rank.

`worker.partition` makes its distributed arrays of what is declared here; which of them go which way in a step is in
`network_step` and `autoencoder_step`, and a test holds these to what an engine counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from .blocks import BlockParts
from .cut import Part
from .declared import Declared, Pairs, summed
from .window import Window

Way = Literal["forward", "backward"]


@dataclass(frozen=True)
class Passage:
    """One exchange of a step.

    Attributes
    ----------
    what
        What goes: a layer's inputs, a tensor, a sum.
    way
        In which half of the step.
    numbers
        How many go from each rank to each other one.
    itemsize
        Bytes of a number.
    """

    what: str
    way: Way
    numbers: Pairs
    itemsize: int = 4

    @property
    def messages(self) -> Pairs:
        """One for each ordered pair of ranks between which something goes."""
        return (self.numbers > 0).astype(np.int64)

    @property
    def sent_bytes(self) -> Pairs:
        """By (from, to)."""
        return self.numbers * self.itemsize


@dataclass(frozen=True)
class NetworkArrays:
    """What the ranks of a network exchange, for mini-batches of one length.

    Attributes
    ----------
    between
        By layer, what brings its inputs; None where every rank has them already.
    last
        What brings the network's outputs to all.
    shared
        By name of a tensor that all ranks use.
    """

    between: tuple[Declared | None, ...]
    last: Declared
    shared: dict[str, Declared]

    @classmethod
    def of(cls, parts: Sequence[Part], length: int) -> NetworkArrays:
        """Of a network that is cut."""
        ranks = len(parts[-1].outputs)
        between: list[Declared | None] = [None]
        for before, part in pairwise(parts):
            here = before.outputs == part.inputs
            shape = (length, *part.stage.inputs)
            between.append(None if here else Declared(shape, before.outputs, part.inputs, first_axis=1))
        stage, outputs = parts[-1].stage, parts[-1].outputs
        everything = (Window.whole(stage.outputs[: len(outputs[0].start)]),) * ranks
        last = Declared((length, *stage.outputs), outputs, everything, first_axis=1)
        tensors = [tensor for part in parts if part.shares for tensor in part.tensors]
        return cls(tuple(between), last, {name: Declared.from_owner(shape, ranks) for name, shape in tensors})


def network_step(parts: Sequence[Part], arrays: NetworkArrays, itemsize: int = 4) -> list[Passage]:
    """The exchanges of one step of a network, in their order."""
    there = [Passage(name, "forward", array.ways[0], itemsize) for name, array in arrays.shared.items()]
    for part, array in zip(parts, arrays.between, strict=True):
        if array is not None:
            there.append(Passage(f"inputs of {part.stage.name}", "forward", array.ways[0], itemsize))
    there.append(Passage("outputs, for the loss", "forward", arrays.last.ways[0], itemsize))
    first = next(place for place, part in enumerate(parts) if part.stage.parameters)
    back: list[Passage] = []
    for place in reversed(range(first, len(parts))):
        stage, array = parts[place].stage, arrays.between[place]
        shared = [name for name in stage.parameters if name in arrays.shared]
        back += [Passage(f"gradient of {name}", "backward", arrays.shared[name].ways[1], itemsize) for name in shared]
        if place > first and array is not None:
            back.append(Passage(f"slopes in the inputs of {stage.name}", "backward", array.ways[1], itemsize))
    return there + back


def autoencoder_step(parts: BlockParts, maps: int, samples: int, itemsize: int = 4) -> list[Passage]:
    """The exchanges of one step of a sparse autoencoder of so many maps, in their order."""
    tiles, neurons, ranks = parts.tile_array(samples), parts.neuron_array(maps * samples), len(parts.blocks)
    alpha = Declared.from_owner((1,), ranks)
    to_sum, sums = summed(2, ranks)
    return [
        Passage("alpha", "forward", alpha.ways[0], itemsize),
        Passage("W^T z, to be summed", "forward", tiles.ways[1], itemsize),
        Passage("W^T z, summed", "forward", tiles.ways[0], itemsize),
        Passage("activations, for pooling", "forward", neurons.ways[0], itemsize),
        Passage("slopes in activations", "backward", neurons.ways[1], itemsize),
        Passage("loss and alpha's slope, to be summed", "backward", to_sum, itemsize=8),
        Passage("loss and alpha's slope, summed", "backward", sums, itemsize=8),
    ]
