"""What holds for every partitioned model on images: its bits, its initial values, and the inputs that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import Batch
from dbelief.nn.autoencoders.stacks import Stacks
from dbelief.partition import Grid
from worker.comm import Communicator, run_ranks
from worker.partition import build_partitioned

from .autoencoders import LAYER, OnImages, check
from .stacks import DEEP, TWO

CASES = {"a layer": LAYER, **{f"stacks, training {train}": replace(TWO, train=train) for train in (1, 2, None)}}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.mark.parametrize("case", [LAYER, TWO], ids=["a layer", "stacks"])
def test_every_run_has_the_same_bits(case: OnImages) -> None:
    first, *others = (run_ranks(6, lambda comm: check(comm, case, Grid(3, 2))) for _ in range(3))
    assert all(other == first for other in others)


@each_case
def test_one_rank_has_the_bits_of_the_whole(case: OnImages) -> None:
    loss, out = case.alone
    bits = np.float64(loss).tobytes() + b"".join(values.tobytes() for values in out.values())
    assert run_ranks(1, lambda comm: check(comm, case, Grid(1, 1))) == [bits]


@pytest.mark.parametrize(
    "make", [LAYER.model, lambda: Stacks(TWO.image, DEEP, None, {}, select_backend("cpu"))], ids=["a layer", "stacks"]
)
def test_initial_values_are_those_of_the_whole(make: Callable[[], Any]) -> None:
    expected = make().parameters(np.random.default_rng(3))

    def rank(comm: Communicator) -> None:
        drawn = build_partitioned(make(), comm, Grid(2, 1)).parameters(np.random.default_rng(3))
        assert list(drawn) == list(expected)
        assert all(np.array_equal(drawn[name], expected[name]) for name in expected)

    run_ranks(2, rank)


@each_case
@pytest.mark.parametrize(("wrong", "dtype"), [((2, 10, 10), np.float64), (None, np.float32), ((3,), np.float64)])
def test_wrong_inputs_are_refused_as_on_one_rank(case: OnImages, wrong: tuple[int, ...] | None, dtype: Any) -> None:
    shape = wrong or case.batch().inputs.shape
    batch = Batch(np.zeros(shape, dtype), np.zeros(1))
    with pytest.raises(ModelError, match=r"^\w+: got ") as alone:
        case.model().evaluate(case.tensors(), batch)

    def rank(comm: Communicator) -> None:
        model = build_partitioned(case.model(), comm, Grid(2, 2))
        views = model.layout.views(np.zeros(model.layout.size), comm.rank)
        for call in (lambda: model.evaluate(views, batch), lambda: model.loss_and_gradient(views, batch, views)):
            with pytest.raises(ModelError) as cut:
                call()
            assert str(cut.value) == str(alone.value)

    run_ranks(4, rank)
