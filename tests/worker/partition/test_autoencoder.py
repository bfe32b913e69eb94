"""A sparse autoencoder on any grid of ranks gives what it gives on one: the loss, and every parameter's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import ModelError
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.partition import Grid
from tests.examples import examples
from tests.traced import traced
from worker.comm import Communicator, run_ranks
from worker.partition import build_partitioned
from worker.partition.network import PartitionedNetwork
from worker.partition.stacks import PartitionedStacks

from .autoencoders import LAYER, Case, check
from .cells import Cells, Counts, shared, step, totals, traffic
from .networks import made
from .stacks import TWO

GRIDS = st.builds(Grid, st.integers(1, 3), st.integers(1, 3))


@st.composite
def cases(draw: Any) -> Case:
    """Layers of 1 to 5 x 1 to 5 blocks, with pooling windows of up to a whole map."""
    block, window = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    down, across = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    image = block * (window + down - 1), block * (window + across - 1), draw(st.integers(1, 2))
    pool = draw(st.integers(1, block * min(down, across)))
    eq1 = Eq1(block * window, block, draw(st.integers(1, 3)), pool, sparsity=0.3, eps=1e-2)
    return Case(image, eq1, draw(st.integers(1, 5)), draw(st.sampled_from([np.float64, np.float32])))


@examples(30)
@given(cases(), GRIDS)
def test_any_layer_on_any_ranks(case: Case, grid: Grid) -> None:
    run_ranks(grid.size, lambda comm: check(comm, case, grid))


def test_a_neuron_of_one_weight_has_a_gradient_of_rounding_alone() -> None:
    case = Case((5, 3, 1), Eq1(window=1, block=1, maps=1, pool=2, sparsity=0.3, eps=0.01), 2)
    loss, gradient = case.alone
    assert np.abs(gradient["weight"]).max() < 1e-12 * loss
    run_ranks(2, lambda comm: check(comm, case, Grid(1, 2)))


def formula(case: Case, grid: Grid) -> tuple[Counts, Counts]:
    """Messages and bytes of a step, from tiles and neurons one by one."""
    cells, itemsize = Cells(case.image, case.eq1, grid), np.dtype(case.dtype).itemsize

    def passages(i: int, j: int) -> list[int]:
        of_blocks = cells.passages(i, j, itemsize * case.samples)
        return [*of_blocks, *shared(i, j, 1, grid.size, itemsize)]

    return totals(grid, passages)


@examples(15)
@given(cases(), GRIDS)
def test_traffic_matches_the_formula(case: Case, grid: Grid) -> None:
    assert traffic(case.model, grid, case.batch()) == formula(case, grid)


def test_memory_goes_with_the_blocks() -> None:
    """Four ranks of one process need together little more than one that has all."""

    def peak(grid: Grid) -> int:
        return traced(lambda: run_ranks(grid.size, lambda comm: step(comm, case.model(), grid, batch))).peak

    case = Case((64, 64, 1), Eq1(window=8, block=4, maps=2, pool=3), 64)
    batch = case.batch()
    whole = peak(Grid(1, 1))
    assert peak(Grid(2, 2)) < 1.8 * whole


def test_models_are_cut_by_their_kind() -> None:
    network = made([("dense", {"units": 3})], 4)

    def rank(comm: Communicator) -> None:
        assert isinstance(build_partitioned(network, comm, Grid(1, 2)), PartitionedNetwork)
        with pytest.raises(ModelError, match=r"^grid: model list cannot be cut over ranks"):
            build_partitioned([], comm, Grid(1, 2))  # type: ignore[arg-type]
        for case in (LAYER, TWO):
            assert isinstance(build_partitioned(case.model(), comm, Grid(1, 2)), PartitionedStacks)
            with pytest.raises(ValueError, match="a grid of 3 ranks for 2"):
                build_partitioned(case.model(), comm, Grid(1, 3))

    run_ranks(2, rank)
