"""Stacks on any grid of ranks give what they give on one: the loss, and every trained parameter's gradient."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.stack import sizes_of
from dbelief.nn.layers.lcn import Lcn
from dbelief.partition import Grid, layout_of
from dbelief.partition.stacks import StackParts
from tests.assembled import assembled
from tests.examples import examples
from worker.comm import Communicator, run_ranks
from worker.partition import build_partitioned

from .autoencoders import check
from .cells import Cells, Counts, Places, parts, shared, totals, traffic, under
from .stacks import TWO, Deep

GRIDS = st.builds(Grid, st.integers(1, 3), st.integers(1, 3))


@st.composite
def cases(draw: Any) -> Deep:
    """Two stacks, sized from the top: 1 to 4 blocks a side in the second, under which anything may lie that fits."""
    (b1, b2), (g1, g2) = ([draw(st.integers(1, most)) for _ in range(2)] for most in (3, 2))
    lcn = Lcn(draw(st.sampled_from([1, 3])))
    down = draw(st.integers(1, 3))
    blocks = [down, down + b1 * draw(st.integers(0, 1))]  # both sides leave the same rest by b1
    sees = [b2 * (n + g2 - 1) for n in blocks]
    lost = -(sees[0] + 2 * (lcn.size - 1)) % b1 + b1 * draw(st.integers(0, 1))  # pool - 1, so that blocks fit
    image = [side + 2 * (lcn.size - 1) + lost + b1 * (g1 - 1) for side in sees]
    # A neuron of one weight has no slope along it: its gradient would be nothing but rounding.
    channels, *maps = (draw(st.integers(1 + (g * b == 1), 2)) for g, b in ((g1, b1), (g2, b2), (2, 2)))
    stacks = (
        (Eq1(g1 * b1, b1, maps[0], lost + 1, 0.3, 1e-2), lcn),
        (Eq1(g2 * b2, b2, maps[1], draw(st.integers(1, b2 * down)), 0.4, 1e-2), Lcn(1)),
    )
    if draw(st.booleans()):
        image.reverse()
    shape = image[0], image[1], channels
    samples, dtype = draw(st.integers(1, 4)), draw(st.sampled_from([np.float64, np.float32]))
    return Deep(shape, stacks, draw(st.sampled_from([1, 2, None])), samples, dtype)


@examples(30)
@given(cases(), GRIDS)
def test_any_stacks_on_any_ranks(case: Deep, grid: Grid) -> None:
    run_ranks(grid.size, lambda comm: check(comm, case, grid))


def test_more_ranks_than_blocks_in_both_axes() -> None:
    """In 4 rows 2 blocks of the first stack and 5 of the second, in 3 columns 2 and 5, or 1 and 2: some ranks have of
    one stack only.
    """
    stacks = (Eq1(3, 3, 2, 1), Lcn(1)), (Eq1(2, 1, 2, 2), Lcn(1))
    for train, width in product((None, 2), (6, 3)):
        case = Deep((6, width, 1), stacks, train, 3)
        run_ranks(12, lambda comm, case=case: check(comm, case, Grid(4, 3)))  # type: ignore[misc]


def formula(case: Deep, grid: Grid) -> tuple[Counts, Counts]:
    """Messages and bytes of a step, from pixels, tiles and neurons one by one."""
    itemsize = np.dtype(case.dtype).itemsize
    last, first = case.train or len(case.stacks), case.train or 1
    sizes = sizes_of(case.image, case.stacks)[:last]
    layers = [Cells(one.image, eq1, grid) for one, (eq1, _) in zip(sizes, case.stacks, strict=False)]
    ways: list[list[tuple[Places, Places]]] = [[] for _ in layers]  # who makes and who sees z, p and y
    for way, cells, above, one, (eq1, lcn) in zip(ways, layers, layers[1:], sizes, case.stacks, strict=False):
        assert one.output is not None
        p, y = (parts(shape[0], shape[1], grid) for shape in (one.pooled, one.output))
        way += [(cells.has, under(p, eq1.pool)), (p, under(y, 2 * lcn.size - 1)), (y, above.pixels)]

    def passages(i: int, j: int) -> list[int]:
        found, each = shared(i, j, last - first + 1, grid.size, itemsize), case.samples * itemsize
        for place, (cells, way, (eq1, _)) in enumerate(zip(layers, ways, case.stacks, strict=False), start=1):
            found += [len(made[i] & seen[j]) * eq1.maps * each for made, seen in way]
            if place >= first:
                found += [len(seen[i] & made[j]) * eq1.maps * each for made, seen in way]
                found += cells.passages(i, j, each)
        return found

    return totals(grid, passages)


@examples(15)
@given(cases(), GRIDS)
def test_traffic_matches_the_formula(case: Deep, grid: Grid) -> None:
    assert traffic(case.model, grid, case.batch()) == formula(case, grid)


@examples(10)
@given(cases(), GRIDS)
def test_traffic_is_known_without_ranks(case: Deep, grid: Grid) -> None:
    model = case.model()
    messages, sent = traffic(case.model, grid, case.batch())
    cut = StackParts(model.sizes, model.stacks, model.first, grid)
    passages = cut.step(case.samples, np.dtype(case.dtype).itemsize)
    for pair in np.ndindex(grid.size, grid.size):
        assert messages[pair] == sum(int(passage.messages[pair]) for passage in passages)
        assert sent[pair] == sum(int(passage.sent_bytes[pair]) for passage in passages)


def test_of_frozen_stacks_a_rank_keeps_its_own_filters() -> None:
    """5 of 10 columns of blocks each: not the whole, nor anything that holds on to it."""

    def rank(comm: Communicator) -> None:
        whole = replace(TWO, train=2).model()
        given = weakref.ref(whole.given["stack1.weight"])
        model = build_partitioned(whole, comm, Grid(1, 2))
        del whole
        assert given() is None
        flat, gradient = (model.layout.flatten(TWO.tensors(), np.empty(model.layout.size)) for _ in range(2))
        views, out = (model.layout.views(vector, comm.rank) for vector in (flat, gradient))
        loss = model.loss_and_gradient(views, TWO.batch(), out)
        assert loss == pytest.approx(replace(TWO, train=2).alone[0], rel=1e-12)

    run_ranks(2, rank)


def test_boxes_lie_rank_after_rank() -> None:
    layout = layout_of(TWO.model(), Grid(2, 1))
    assert [(box.name, box.rank) for box in layout.boxes] == [
        *(("stack1.weight", 0), ("stack1.alpha", 0), ("stack2.weight", 0), ("stack2.alpha", 0)),
        *(("stack1.weight", 1), ("stack2.weight", 1)),
    ]
    found = assembled(layout, layout.flatten(TWO.tensors(), np.empty(layout.size)))
    assert all(np.array_equal(found[name], values) for name, values in TWO.tensors().items())
