"""Network partitioned over the ranks of one replica: the same values as on one rank, each rank with its own part.

Every rank has the complete mini-batch, computes its windows of every layer (`cut`), and has the windows of all ranks.
Between two layers a distributed array transfers what each rank reads. In the backward pass the same array sums the
ranks' gradients of each activation. A rank computes meanwhile: outputs that depend on no other rank (`interior`), and
gradients of its parameters. The last layer's outputs are sent to all ranks, each of which computes the loss.
Parameters that all positions share are sent from their owner to all ranks before a step, and their gradients back to
it, by arrays of the same kind.

Source: DistBelief, section 3 and Fig. 1 (a boundary activation goes once to each machine that needs it); COTS HPC,
section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dbelief.core.layout import Layout
from dbelief.nn import Array, Batch, Dropout, Network, batch_key, step_settings
from dbelief.nn.model import Tensors
from dbelief.nn.workspace import Workspace
from dbelief.partition import Grid, Window
from dbelief.partition.cut import OWNER, Part, cut, layout
from dbelief.partition.traffic import NetworkArrays

from ..comm import Communicator
from .distributed_array import declared
from .overlap import compute, interior


class _Arrays:
    """Distributed arrays of one step, for mini-batches of one length; see `NetworkArrays`.

    Attributes
    ----------
    inside
        By layer, the window of its outputs that is computed before the other ranks' inputs arrive.
    """

    def __init__(self, comm: Communicator, parts: list[Part], length: int, dtype: np.dtype, overlaps: bool) -> None:
        arrays = NetworkArrays.of(parts, length)
        self.between = [None if array is None else declared(comm, array, dtype) for array in arrays.between]
        self.last = declared(comm, arrays.last, dtype)
        self.shared = {name: declared(comm, array, dtype) for name, array in arrays.shared.items()}
        self.inside: list[Window] = []
        for part, array in zip(parts, self.between, strict=True):
            nothing = Window.nothing(len(part.outputs[comm.rank].start))
            self.inside.append(interior(part, comm.rank, array.gather.ready) if array and overlaps else nothing)


class PartitionedNetwork:
    """One rank's part of a network, as a model; calls are collective, with the same batches on all ranks.

    Its views are those of the rank's boxes (`layout`).

    Parameters
    ----------
    network
        The complete network, as on one rank.
    overlaps
        Whether communication overlaps with computation; False: they alternate, to measure the cost.
    """

    def __init__(self, network: Network, comm: Communicator, grid: Grid, overlaps: bool = True) -> None:
        self._network = network
        self._comm = comm
        self._parts = cut(network.stages, grid)
        for part in self._parts:
            whole = Window.whole(part.stage.outputs[: len(part.outputs[0].start)])
            part.stage.work.part = part.stage.outputs, part.outputs[comm.rank].within(whole)
        self.layout: Layout = layout(self._parts, grid)
        self._first = next(place for place, part in enumerate(self._parts) if part.stage.parameters)
        self._overlaps = overlaps
        self._arrays: dict[tuple[int, np.dtype], _Arrays] = {}
        self._used: dict[str, Array] = {}

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Draw the initial values of the complete network: the same bits on every rank, and for every grid."""
        return self._network.parameters(rng)

    def loss_and_gradient(self, views: Tensors, batch: Batch, out: Tensors) -> float:
        """Return the mean loss, the same on every rank, and write the gradient of the rank's boxes into `out`.

        Raises
        ------
        RankFailure, Unavailable
            Another rank failed, or did not answer.
        Others
            As `Network.loss_and_gradient`.
        """
        with step_settings():
            arrays, activations = self._forward(views, batch, training=True)
            loss, slope = self._network.loss_and_slope(activations[-1], batch.targets)
            part = self._parts[-1]
            mine = part.outputs[self._comm.rank].select(slope, 1)
            self._backward(arrays, activations, _in_one_piece(part.stage.work, "own slope", mine), out)
            return loss / len(batch)

    def evaluate(self, views: Tensors, batch: Batch) -> tuple[float, int | None]:
        """Return the sum of the losses and the number of correct predictions, or None, the same on every rank."""
        with step_settings():
            _, activations = self._forward(views, batch, training=False)
            return self._network.judge(activations[-1], batch.targets)

    def _draw(self, x: Array | None) -> None:
        """Set the random keys of dropout layers by these inputs of the complete network; None: no random numbers."""
        for part in self._parts:
            if isinstance(part.stage.layer, Dropout):
                work, place = part.stage.work, self._network.stages.index(part.stage)
                work.key = None if x is None else batch_key(work, x, self._network.seed, place)

    def _forward(self, views: Tensors, batch: Batch, *, training: bool) -> tuple[_Arrays, list[Any]]:
        """Run the forward pass; return the step's arrays, and the activations.

        The activations are every layer's inputs and outputs on this rank, in pairs, and the complete outputs of the
        last one.
        """
        kind = next((values.dtype for values in views.values()), batch.inputs.dtype)  # a rank may have no parameters
        x = self._network.checked_inputs(kind, batch)
        key = len(x), x.dtype
        if key not in self._arrays:
            self._arrays[key] = _Arrays(self._comm, self._parts, *key, self._overlaps)
        arrays, rank = self._arrays[key], self._comm.rank
        self._used = dict(views)
        for name, tensor in arrays.shared.items():
            mine = views[name] if rank == OWNER else self._comm.xp.empty(tensor.output.shape, x.dtype)
            self._used[name] = tensor.gather(mine)
        self._draw(x if training else None)
        found: list[Any] = []
        for part, array, early in zip(self._parts, arrays.between, arrays.inside, strict=True):
            y = part.stage.work.array("y", (len(x), *part.shape(rank)), x.dtype)
            if part.whole:
                image = x.reshape(len(x), *part.stage.inputs)
                seen = _in_one_piece(part.stage.work, "own inputs", part.inputs[rank].select(image, 1))
                self._compute(part, seen, y, [part.outputs[rank]])
            elif array is None:
                seen = found[-1]
                self._compute(part, seen, y, [part.outputs[rank]])
            else:
                array.gather.start(found[-1])
                self._compute(part, array.gather.target, y, [early])
                seen = array.gather.finish()
                self._compute(part, seen, y, part.outputs[rank] - early)
            found += [seen, y]
        return arrays, [*found, arrays.last.gather(found[-1])]

    def _compute(self, part: Part, x: Array, y: Array, pieces: list[Window]) -> None:
        """Compute pieces of this rank's outputs of one layer; the inputs that they depend on must be available."""
        for piece in pieces:
            if piece.size:
                own = [self._used[name] for name in part.stage.parameters]
                compute(part, self._comm.rank, piece, x, own, y)

    def _backward(self, arrays: _Arrays, activations: list[Any], dy: Array, out: Tensors) -> None:
        for place in reversed(range(self._first, len(self._parts))):
            part, (x, y) = self._parts[place], activations[2 * place : 2 * place + 2]
            names = part.stage.parameters
            dx = part.stage.work.array("dx", x.shape, x.dtype) if place > self._first else None
            gradients = [self._partial(part, n) if n in arrays.shared else out[n] for n in names if n in self._used]
            array = arrays.between[place] if dx is not None else None
            later = array is not None and self._overlaps
            self._give_back(part, x, y, dy, [] if later else gradients, dx)
            if array is not None:
                array.scatter_add.start(dx)
            if later and gradients:
                self._give_back(part, x, y, dy, gradients, None)
            for name, gradient in zip(names, gradients, strict=False):
                if name in arrays.shared:
                    whole = arrays.shared[name].scatter_add(gradient)
                    if self._comm.rank == OWNER:
                        out[name][...] = whole
            if dx is not None:
                dy = dx if array is None else array.scatter_add.finish()

    def _give_back(self, part: Part, x: Array, y: Array, dy: Array, gradients: list[Array], dx: Array | None) -> None:
        """Write gradients and dx of a layer; zeros if this rank has none of its outputs."""
        if y.size:
            own = [self._used[name] for name in part.stage.parameters]
            part.stage.layer.backward(part.stage.work, x, y, dy, own, gradients, dx)
            return
        for array in gradients if dx is None else [*gradients, dx]:
            array.fill(0)

    def _partial(self, part: Part, name: str) -> Array:
        """Buffer for this rank's part of a shared tensor's gradient."""
        tensor = self._used[name]
        return part.stage.work.array(f"d {name}", tensor.shape, tensor.dtype)


def _in_one_piece(work: Workspace, name: str, array: Array) -> Array:
    """Return the array itself if it is C-contiguous, else a copy in a buffer."""
    if array.flags.c_contiguous:
        return array
    whole = work.array(name, array.shape, array.dtype)
    work.xp.copyto(whole, array)
    return whole
