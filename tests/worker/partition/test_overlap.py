"""A rank computes while messages travel: verified by an engine that delivers nothing before it is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.nn import Batch, Dense, Local, Network
from dbelief.nn.losses import SoftmaxCrossEntropy
from dbelief.partition import Grid
from worker.comm import Communicator, Message, run_ranks
from worker.comm.engine import Engine, Handle
from worker.partition.network import PartitionedNetwork

from .networks import CLASSES, Layers, check


class Held:
    """Hands messages to another engine only when somebody waits for them; notes both."""

    def __init__(self, engine: Engine, events: list[Any]) -> None:
        self.rank, self.size, self.xp = engine.rank, engine.size, engine.xp
        self.check, self.abort, self.close = engine.check, engine.abort, engine.close
        self._engine, self._events = engine, events

    def start(self, messages: Sequence[Message]) -> Handle:
        self._events.append("start")

        def wait(deadline_s: float) -> None:
            self._engine.start(messages).wait(deadline_s)
            self._events.append("through")

        return Handle(wait)


LOCAL: Layers = [
    ("local", {"window": 3, "block": 1, "maps": 4}),
    ("local", {"window": 4, "block": 2, "maps": 2}),
    ("lcn", {"size": 3}),
    ("dense", {"units": CLASSES}),
]
CONV: Layers = [("conv", {"maps": 4, "kernel": 3}), ("conv", {"maps": 3, "kernel": 3}), ("dense", {"units": CLASSES})]


@pytest.mark.parametrize("grid", [Grid(2, 1), Grid(1, 3), Grid(2, 2)], ids=str)
@pytest.mark.parametrize("layers", [LOCAL, CONV], ids=["local", "conv"])
@pytest.mark.parametrize("overlaps", [True, False])
def test_late_delivery_changes_nothing(layers: Layers, grid: Grid, overlaps: bool) -> None:
    def rank(comm: Communicator) -> None:
        check(Communicator(Held(comm.engine, [])), layers, (16, 14, 2), 3, grid, overlaps=overlaps)

    run_ranks(grid.size, rank)


def happened(layer: Any, overlaps: bool) -> list[list[Any]]:
    """What each of two ranks does in a step of two such layers and a dense one, on 12 x 10 pixels cut in two rows."""

    def rank(comm: Communicator) -> list[Any]:
        events: list[Any] = []

        class Watched(type(layer)):  # type: ignore[misc]
            def forward(self, work: Any, x: Any, parameters: Any, y: Any) -> None:
                events.append(y.shape[1:3])
                super().forward(work, x, parameters, y)

            def backward(self, work: Any, x: Any, y: Any, dy: Any, parameters: Any, gradients: Any, dx: Any) -> None:
                events.append("dx" * (dx is not None) + " gradients" * bool(gradients))
                super().backward(work, x, y, dy, parameters, gradients, dx)

        first, watched = Local(3, 1, 4), Watched(**vars(layer))
        network = Network(
            [first, watched, Dense(CLASSES)], SoftmaxCrossEntropy(), (12, 10, 1), CLASSES, select_backend("cpu")
        )
        cut = PartitionedNetwork(network, Communicator(Held(comm.engine, events)), Grid(2, 1), overlaps)
        flat = np.zeros(cut.layout.size)
        out = cut.layout.views(np.zeros_like(flat), comm.rank)
        cut.loss_and_gradient(
            cut.layout.views(flat, comm.rank), Batch(np.ones((2, 12, 10, 1)), np.zeros(2, np.int64)), out
        )
        return events

    return run_ranks(2, rank)


MESSAGE = ["start", "through"]


def test_the_inside_is_computed_before_the_border_comes() -> None:
    """Rank 0 has rows 0 to 5 of 10: blocks of two rows see four, so that the second of its two needs one row more."""
    step = ["start", (2, 6), "through", (2, 6)]
    backward = ["dx", "start", " gradients", "through"]
    expected = [*step, *MESSAGE, *MESSAGE, *MESSAGE, *backward]  # between: dense, the outputs, and dense again
    assert happened(Local(4, 2, 2), overlaps=True) == [expected, expected]


def test_one_after_the_other_where_that_is_asked_for() -> None:
    expected = [*MESSAGE, (4, 6), *MESSAGE, *MESSAGE, *MESSAGE, "dx gradients", *MESSAGE]
    assert happened(Local(4, 2, 2), overlaps=False) == [expected, expected]
