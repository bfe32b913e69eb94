"""Construction of one rank's part of a job's model."""

from __future__ import annotations

from dbelief.nn import Model, Network, SparseAutoencoder
from dbelief.nn.stacks import Stacks
from dbelief.partition import Grid
from dbelief.partition.models import uncuttable

from ..comm import Communicator
from .autoencoder import PartitionedAutoencoder
from .network import PartitionedNetwork
from .stacks import PartitionedStacks

Partitioned = PartitionedNetwork | PartitionedAutoencoder | PartitionedStacks
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
    if isinstance(model, Network):
        return PartitionedNetwork(model, comm, grid)
    if isinstance(model, SparseAutoencoder):
        return PartitionedAutoencoder(model, comm, grid)
    if isinstance(model, Stacks):
        return PartitionedStacks(model, comm, grid)
    raise uncuttable(model)
