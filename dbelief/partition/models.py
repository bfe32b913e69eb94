"""Which models can be cut over ranks, and where their parameters then lie."""

from __future__ import annotations

from dbelief.core.layout import Layout
from dbelief.errors import ModelError
from dbelief.nn import Model, Network, SparseAutoencoder
from dbelief.nn.autoencoders.stacks import Stacks

from .blocks import BlockParts
from .cut import cut, layout
from .grid import Grid
from .stacks import StackParts


def layout_of(model: Model, grid: Grid) -> Layout:
    """Where the parameters of a model that is cut over a grid of ranks lie, known before there is any rank.

    Raises
    ------
    ModelError
        A model of this kind, or a layer of it, cannot be cut.
    """
    if isinstance(model, Network):
        return layout(cut(model.stages, grid), grid)
    if isinstance(model, SparseAutoencoder):
        return BlockParts.of(model.blocks, model.eq1, grid).layout
    if isinstance(model, Stacks):
        return StackParts(model.sizes, model.stacks, model.first, grid).layout
    raise uncuttable(model)


def uncuttable(model: Model) -> ModelError:
    """The error that a model of this kind stays on one rank."""
    return ModelError(f"grid: model {type(model).__name__} cannot be cut over ranks, as networks of layers can")
