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
    held
        By rank, how many the array has that is there after it.
    itemsize
        Bytes of a number.
    """

    what: str
    way: Way
    numbers: Pairs
    held: tuple[int, ...]
    itemsize: int = 4

    @classmethod
    def there(cls, what: str, array: Declared, itemsize: int = 4, way: Way = "forward") -> Passage:
        """To where an array is read."""
        return cls(what, way, array.ways[0], array.held[0], itemsize)

    @classmethod
    def back(cls, what: str, array: Declared, itemsize: int = 4, way: Way = "backward") -> Passage:
        """To where an array is written, and summed there."""
        return cls(what, way, array.ways[1], array.held[1], itemsize)

    @classmethod
    def sums(cls, what: str, count: int, ranks: int) -> list[Passage]:
        """Of `count` float64 numbers over all ranks, to all; see `summed`."""
        to_sum, sums = summed(count, ranks)
        held = (count,) * ranks
        return [
            cls(f"{what}, to sum", "backward", to_sum, held, 8),
            cls(f"{what}, summed", "backward", sums, held, 8),
        ]

    @property
    def messages(self) -> Pairs:
        """One for each ordered pair of ranks between which something goes."""
        return (self.numbers > 0).astype(np.int64)

    @property
    def sent_bytes(self) -> Pairs:
        """By (from, to)."""
        return self.numbers * self.itemsize

    def seconds(self, alpha_s: float, beta_s: float) -> float:
        """Time that it takes, by the model alpha + beta n: that of the rank with the most to do.

        A rank's messages go one after the other, `alpha_s` seconds for each and `beta_s` for each of their bytes; what
        it sends and what it receives go at the same time.
        """
        taken = alpha_s * self.messages + beta_s * self.sent_bytes
        return float(max(taken.sum(axis=0).max(), taken.sum(axis=1).max()))


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
    steps = [Passage.there(name, array, itemsize) for name, array in arrays.shared.items()]
    for part, array in zip(parts, arrays.between, strict=True):
        if array is not None:
            steps.append(Passage.there(f"inputs of {part.stage.name}", array, itemsize))
    steps.append(Passage.there("outputs, for the loss", arrays.last, itemsize))
    first = next(place for place, part in enumerate(parts) if part.stage.parameters)
    for place in reversed(range(first, len(parts))):
        stage, array = parts[place].stage, arrays.between[place]
        shared = [name for name in stage.parameters if name in arrays.shared]
        steps += [Passage.back(f"gradient of {name}", arrays.shared[name], itemsize) for name in shared]
        if place > first and array is not None:
            steps.append(Passage.back(f"slopes in the inputs of {stage.name}", array, itemsize))
    return steps


def autoencoder_step(parts: BlockParts, maps: int, samples: int, itemsize: int = 4) -> list[Passage]:
    """The exchanges of one step of a sparse autoencoder of so many maps, in their order."""
    ranks = len(parts.blocks)
    return [
        Passage.there("alpha", Declared.from_owner((1,), ranks), itemsize),
        *layer_step(parts, maps, samples, itemsize),
        *Passage.sums("loss and alpha's slope", 2, ranks),
    ]


def layer_step(parts: BlockParts, maps: int, samples: int, itemsize: int = 4) -> list[Passage]:
    """Those that its blocks need, without alpha and what is summed over all ranks."""
    tiles, neurons = parts.tile_array(samples), parts.neuron_array(maps * samples)
    return [
        Passage.back("W^T z, to sum", tiles, itemsize, "forward"),
        Passage.there("W^T z, summed", tiles, itemsize),
        Passage.there("activations, for pooling", neurons, itemsize),
        Passage.back("slopes in activations", neurons, itemsize),
    ]
