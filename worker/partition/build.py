"""Construction of one rank's part of a job's model."""

from __future__ import annotations

from dbelief.nn import Model, Network, SparseAutoencoder
from dbelief.nn.autoencoders.stacks import Stacks
from dbelief.partition import Grid
from dbelief.partition.models import uncuttable

from ..comm import Communicator
from .network import PartitionedNetwork
from .stacks import PartitionedStacks, partitioned_autoencoder, partitioned_stacks

Partitioned = PartitionedNetwork | PartitionedStacks
"""A model whose views are those of this rank's boxes of its `layout`; see also `dbelief.partition.layout_of`."""


def build_partitioned(model: Model, comm: Communicator, grid: Grid) -> Partitioned:
    """Partition a model over a grid of ranks; collective, with the same model on all ranks.

    Raises
    ------
    ModelError
        A model of this kind, or one of its layers, cannot be partitioned.
    ValueError
        The size of the grid differs from the number of ranks.
    """
    if grid.size != comm.size:
        raise ValueError(f"a grid of {grid.size} ranks for {comm.size}")
    if isinstance(model, Network):
        return PartitionedNetwork(model, comm, grid)
    if isinstance(model, SparseAutoencoder):
        return partitioned_autoencoder(model, comm, grid)
    if isinstance(model, Stacks):
        return partitioned_stacks(model, comm, grid)
    raise uncuttable(model)
