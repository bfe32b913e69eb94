"""Computation of a layer in pieces, so that a rank computes while the border of its inputs is still being received.

The outputs of a rank that depend on no other rank's values form a rectangle, the interior. The rest of the window is at
most four more rectangles. Each piece is the same layer on a smaller image: its inputs are copied out, its outputs in.
This is done for layers with weights, whose work far exceeds that of the copies, and whose `forward` keeps nothing for
`backward`.

Source: DistBelief, section 3 (a machine computes as soon as what it needs has come).
"""

from __future__ import annotations

from collections.abc import Sequence

from dbelief.nn import Array, Conv, Local
from dbelief.partition import Window
from dbelief.partition.cut import Part, seen


def interior(part: Part, rank: int, ready: Window) -> Window:
    """Window of a rank's outputs that depends only on the `ready` part of its inputs; empty if there is none.

    Also empty for a layer that is not computed in pieces. `ready` has all axes of the inputs, the batch first.
    """
    outputs, layer = part.outputs[rank], part.stage.layer
    if not isinstance(layer, Conv | Local) or not outputs.size:
        return Window.nothing(len(outputs.start))
    ranges = []
    for start, stop, first, last in zip(outputs.start, outputs.stop, ready.start[1:3], ready.stop[1:3], strict=True):
        whole = [place for place in range(start, stop) if _within(layer.sees(place, place + 1), first, last)]
        if not whole:
            return Window.nothing(len(outputs.start))
        ranges.append((whole[0], whole[-1] + 1))
    return Window(tuple(start for start, _ in ranges), tuple(stop for _, stop in ranges))


def _within(places: tuple[int, int] | None, first: int, last: int) -> bool:
    return places is not None and first <= places[0] and places[1] <= last


def compute(part: Part, rank: int, piece: Window, x: Array, parameters: Sequence[Array], y: Array) -> None:
    """Compute one piece of a rank's outputs; without a copy if it is the complete window.

    Parameters
    ----------
    piece
        Of the layer's outputs, within the rank's window.
    x, y
        On the rank's window of inputs and of outputs; of x only the cells that the piece depends on are read.
    parameters
        The rank's own parts of the layer's parameters.
    """
    stage, mine = part.stage, part.outputs[rank]
    if piece == mine:
        stage.layer.forward(stage.work, x, parameters, y)
        return
    inputs = seen(stage, piece)
    source = x[(slice(None), *inputs.within(part.inputs[rank]))]
    found = stage.work.array("x of a piece", source.shape, x.dtype)
    stage.work.xp.copyto(found, source)
    made = stage.work.array("y of a piece", (len(y), *piece.shape, *y.shape[3:]), y.dtype)
    own = [
        values[part.needed(piece, shape).within(part.needed(mine, shape))]
        for values, (_, shape) in zip(parameters, part.tensors, strict=True)
    ]
    stage.layer.forward(stage.work, found, own, made)
    stage.work.xp.copyto(y[(slice(None), *piece.within(mine))], made)
