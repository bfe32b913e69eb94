"""The distributed array (COTS HPC, section 4.2): all that a partitioned network says about communication.

Each rank declares the box it writes and the box it reads. `gather` brings what all wrote to where it is read; where
several ranks wrote, their values are summed. `scatter_add` is its transpose: what every rank adds to the box it read
goes back to those who wrote it, and is summed there. Forward through a layer is the first, backward the second,
whatever the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dbelief.partition import Window
from dbelief.partition.declared import Declared
from dbelief.partition.window import uncovered

from ..comm import Communicator
from .halo_exchange import HaloExchange


class DistributedArray:
    """An array that no rank holds whole; all ranks make it, with the same arguments.

    Parameters
    ----------
    shape, dtype
        Of the whole array.
    outputs, inputs
        By rank, the window that the rank writes, and the one it reads. Inputs may leave the array.
    first_axis
        Which axis of the array the windows begin with; all other axes (batch, channels) go along whole.
    zero
        Windows in which cells of inputs that nobody writes are 0, such as a border.
    tag
        See `Exchange`.

    Attributes
    ----------
    gather
        Array on this rank's output window -> array on its input window.
    scatter_add
        Array on this rank's input window -> array on its output window; what is added outside all outputs is lost.
    output, input
        This rank's windows, with all axes of the array.

    Raises
    ------
    ValueError
        There is not one window per rank, an output leaves the array, or a rank reads what nobody writes and is not
        declared zero; the message names rank and window.
    """

    def __init__(
        self,
        comm: Communicator,
        shape: Sequence[int],
        dtype: Any,
        outputs: Sequence[Window],
        inputs: Sequence[Window],
        *,
        first_axis: int = 0,
        zero: Sequence[Window] = (),
        tag: int = 0,
    ) -> None:
        if not len(outputs) == len(inputs) == comm.size:
            raise ValueError(f"{len(outputs)} outputs and {len(inputs)} inputs for {comm.size} ranks: one each")
        self.shape = tuple(shape)
        outputs, inputs, zero = (
            [window.along(shape, first_axis) for window in windows] for windows in (outputs, inputs, zero)
        )
        for rank, window in enumerate(outputs):
            if uncovered(window, [Window.whole(shape)]):
                raise ValueError(f"rank {rank} writes {window}, outside an array of shape {self.shape}")
        for rank, window in enumerate(inputs):
            if missing := uncovered(window, [*outputs, *zero]):
                raise ValueError(f"rank {rank} reads {window}, of which nobody writes {missing[0]}")
        self.output, self.input = outputs[comm.rank], inputs[comm.rank]
        self.gather = HaloExchange(comm, outputs, inputs, dtype, tag)
        self.scatter_add = HaloExchange(comm, inputs, outputs, dtype, tag)


def declared(comm: Communicator, array: Declared, dtype: Any) -> DistributedArray:
    """The array of which all ranks have declared what they write and read."""
    return DistributedArray(comm, array.shape, dtype, array.outputs, array.inputs, first_axis=array.first_axis)
