"""The layout of a model that is cut, without any rank."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import build_network
from dbelief.partition import Grid, layout_of
from tests.assembled import assembled


def test_a_network_s_boxes_are_its_tensors() -> None:
    layers = [("conv", {"maps": 2, "kernel": 3}), ("dense", {"units": 3})]
    network = build_network(
        layers,
        "softmax_cross_entropy",
        features=(7, 6, 1),
        outputs=3,
        backend=select_backend("cpu"),
    )
    tensors = dict(network.parameters(np.random.default_rng(0)))
    layout = layout_of(network, Grid(2, 1))
    assert [(box.name, box.rank) for box in layout.boxes] == [
        *(("conv1.weight", 0), ("conv1.bias", 0), ("dense1.weight", 0), ("dense1.bias", 0)),
        *(("dense1.weight", 1), ("dense1.bias", 1)),
    ]
    found = assembled(layout, layout.flatten(tensors, np.empty(layout.size, np.float32)))
    assert all(np.array_equal(found[name], tensors[name]) for name in tensors)


def test_other_models_are_refused_by_name() -> None:
    class Mine:
        pass

    with pytest.raises(ModelError, match=r"^grid: model Mine cannot be cut over ranks"):
        layout_of(Mine(), Grid(1, 2))  # type: ignore[arg-type]
