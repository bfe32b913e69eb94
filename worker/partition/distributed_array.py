"""Distributed array (COTS HPC, section 4.2): the only interface of a partitioned network to communication.

Each rank declares the box it writes and the box it reads. `gather` transfers written values to the ranks that read
them; where several ranks write, their values are summed. `scatter_add` is its transpose: what every rank adds to the
box it read is sent to the ranks that wrote it, and summed there. Every layer's forward pass uses the first, and its
backward pass the second.
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
    """Array that no rank holds completely; construction is collective, with the same arguments on all ranks.

    Parameters
    ----------
    shape, dtype
        Of the complete array.
    outputs, inputs
        By rank, the window that the rank writes, and the one it reads. Inputs may extend beyond the array.
    first_axis
        Axis of the array that the windows begin with; all other axes (batch, channels) are included completely.
    zero
        Windows in which input cells that no rank writes are 0, such as a border.

    Attributes
    ----------
    gather
        Array on this rank's output window -> array on its input window.
    scatter_add
        Array on this rank's input window -> array on its output window; values outside all outputs are dropped.
    output, input
        This rank's windows, with all axes of the array.

    Raises
    ------
    ValueError
        There is not one window per rank, an output extends beyond the array, or a rank reads cells that no rank writes
        and that are not declared zero; the message names rank and window.
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
                raise ValueError(f"rank {rank} reads {window}, of which no rank writes {missing[0]}")
        self.output, self.input = outputs[comm.rank], inputs[comm.rank]
        self.gather = HaloExchange(comm, outputs, inputs, dtype)
        self.scatter_add = HaloExchange(comm, inputs, outputs, dtype)


def declared(comm: Communicator, array: Declared, dtype: Any) -> DistributedArray:
    """Create the distributed array of a declaration of what each rank writes and reads."""
    return DistributedArray(comm, array.shape, dtype, array.outputs, array.inputs, first_axis=array.first_axis)
