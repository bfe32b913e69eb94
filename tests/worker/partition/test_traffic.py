"""Traffic counted without ranks equals that of tracing engines in a real step: by pair, messages and bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.nn import Batch
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.partition import Grid
from dbelief.partition.blocks import BlockParts
from dbelief.partition.cut import cut
from dbelief.partition.traffic import NetworkArrays, Passage, autoencoder_step, network_step
from tests.examples import examples

from .autoencoders import Case
from .cells import Counts, traffic
from .networks import CLASSES, Layers, made

GRIDS = [Grid(1, 1), Grid(1, 3), Grid(2, 2), Grid(3, 1), Grid(3, 3)]
NETWORKS: dict[str, tuple[Layers, Any]] = {
    "dense": ([("dense", {"units": 7}), ("tanh", {}), ("dense", {"units": 2}), ("relu", {})], 5),
    "dropout": ([("dense", {"units": 9}), ("relu", {}), ("dropout", {"share": 0.5})], 5),
    "fewer numbers than ranks": ([("dense", {"units": 1}), ("dense", {"units": 4})], (3,)),
    "rows of numbers": (
        [("image", {"height": 9, "width": 8, "channels": 2}), ("conv", {"maps": 2, "kernel": 3}), ("relu", {})],
        144,
    ),
    "a pool before what is trained": ([("max_pool", {"size": 2}), ("conv", {"maps": 2, "kernel": 2})], (12, 14, 1)),
    "contrast": (
        [("conv", {"maps": 3, "kernel": 3, "stride": 2}), ("l2_pool", {"size": 2}), ("lcn", {"size": 3})],
        (21, 23, 2),
    ),
    "local": (
        [
            ("local", {"window": 4, "block": 3, "maps": 2, "stride": 2}),
            ("max_pool", {"size": 2}),
            ("local", {"window": 2, "block": 1, "maps": 3}),
        ],
        (16, 14, 2),
    ),
}


def planned(step: list[Passage], grid: Grid) -> tuple[Counts, Counts]:
    """The same from the plan."""
    messages, sent = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for pair in np.ndindex(grid.size, grid.size):
        messages[pair] = sum(int(passage.messages[pair]) for passage in step)
        sent[pair] = sum(int(passage.sent_bytes[pair]) for passage in step)
    return +messages, +sent


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, grid: Grid) -> None:
    layers, features = NETWORKS[name]
    layers = [*layers, ("dense", {"units": CLASSES})]
    batch = Batch(np.ones((3, *np.atleast_1d(features)), np.float32), np.zeros(3, np.int64))
    parts = cut(made(layers, features).stages, grid)
    found = planned(network_step(parts, NetworkArrays.of(parts, len(batch))), grid)
    assert found == traffic(lambda: made(layers, features), grid, batch)
    assert (sum(found[0].values()) > 0) == (grid.size > 1)


@examples(12)
@given(st.data(), st.builds(Grid, st.integers(1, 3), st.integers(1, 3)))
def test_autoencoders(data: st.DataObject, grid: Grid) -> None:
    block, window = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    down, across = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    image = block * (window + down - 1), block * (window + across - 1), data.draw(st.integers(1, 2))
    eq1 = Eq1(block * window, block, data.draw(st.integers(1, 3)), data.draw(st.integers(1, block * min(down, across))))
    case = Case(image, eq1, data.draw(st.integers(1, 5)), np.float32)
    parts = BlockParts.of(case.model().blocks, eq1, grid)
    found = planned(autoencoder_step(parts, eq1.maps, case.samples), grid)
    assert found == traffic(case.model, grid, case.batch())


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_speech_network(ranks: int) -> None:
    """DistBelief's, in closed form: four times 2,560 activations there and back, 8,192 outputs there, to all others."""
    hidden: Layers = [("dense", {"units": 2560}), ("sigmoid", {})] * 4
    parts = cut(made([*hidden, ("dense", {"units": 8192})], 440, 8192).stages, Grid(1, ranks))
    step = network_step(parts, NetworkArrays.of(parts, 100))
    assert len(step) == 4 + 1 + 4
    assert all(passage.messages.sum() == ranks * (ranks - 1) for passage in step)
    assert sum(passage.sent_bytes.sum() for passage in step) == (2 * 4 * 2560 + 8192) * 100 * 4 * (ranks - 1)


def test_the_time_is_that_of_the_rank_with_the_most_to_do() -> None:
    passage = Passage("x", "forward", np.array([[0, 10, 20], [100, 0, 0], [0, 5, 0]]), (0, 0, 0), itemsize=1)
    assert passage.seconds(1.0, 0.0) == 2.0  # rank 0 sends two, rank 1 receives two
    assert passage.seconds(0.0, 0.5) == 50.0  # rank 0 receives 100 bytes, and sends 30 at the same time
    assert passage.seconds(45.0, 0.5) == 2 * 45.0 + 15.0  # rank 0 sends 30
