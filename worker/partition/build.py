"""From a model that a job describes to one rank's part of it."""

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
"""A model whose views are those of this rank's boxes of its `layout`, which `dbelief.partition.layout_of` knows too."""


def build_partitioned(model: Model, comm: Communicator, grid: Grid) -> Partitioned:
    """Cut a model over a grid of ranks; all of them call this together, with the same model.

    Raises
    ------
    ModelError
        A model of this kind, or a layer of it, cannot be cut.
    ValueError
        The grid has not as many ranks as there are.
    """
    if isinstance(model, Network):
        return PartitionedNetwork(model, comm, grid)
    if isinstance(model, SparseAutoencoder):
        return PartitionedAutoencoder(model, comm, grid)
    if isinstance(model, Stacks):
        return PartitionedStacks(model, comm, grid)
    raise uncuttable(model)
