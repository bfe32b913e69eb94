"""What a bundle of sparse rows touches: the numbers of the whole model, bit for bit, and where they lie."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.core.push import Push, Pusher, PushResult
from dbelief.data.sparse import SparseSplit
from dbelief.errors import Rejected
from dbelief.nn import Batch, Dropout, Network
from dbelief.nn.layers.layer import Dense, Layer, ReLU, Tanh
from dbelief.nn.losses import SoftmaxCrossEntropy
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.phases import PhaseTimer
from tests.dbelief.nn.kernels.test_sparse import rows_of
from tests.examples import examples
from tests.worker.strategies.test_sandblaster import Coordinator
from worker.strategies.sandblaster import BundleWorker
from worker.strategies.touched import column_tensor, owned, touched_by


def network(*layers: Layer, features: int = 40) -> Network:
    return Network([*layers, Dense(3)], SoftmaxCrossEntropy(), features, 3, select_backend("cpu"))


def rows(seed: int, m: int, features: int = 40) -> Batch:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((m, features)) * (rng.random((m, features)) < 0.05)).astype(np.float32)
    return Batch(rows_of(x), rng.integers(0, 3, m))


@examples(40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.booleans(), st.integers(0, 99))
def test_short_vectors_have_the_bits_of_whole_ones(sizes: list[int], hidden: bool, seed: int) -> None:
    layers: list[Layer] = [Dense(5), Tanh()] if hidden else []
    model = network(*layers)
    tensors = model.parameters(np.random.default_rng(seed))
    part = Layout.of(tensors).part(0)
    flat = part.flatten(tensors, np.empty(part.size, np.float32))
    batches = [rows(seed + place, m) for place, m in enumerate(sizes)]
    assert model.column_tensor == "dense1.weight"
    touched = touched_by([owned(batch) for batch in batches], part, "dense1.weight")
    assert (np.diff(touched.positions) > 0).all()
    trial = flat[touched.positions]
    assert touched.part.size == len(trial) <= part.size
    for batch, short in zip(batches, touched.batches, strict=True):
        whole, found = np.full(part.size, np.nan, np.float32), np.full(len(trial), np.nan, np.float32)
        loss = model.loss_and_gradient(part.views(flat), batch, part.views(whole))
        assert model.loss_and_gradient(touched.part.views(trial), short, touched.part.views(found)) == loss
        again = np.zeros_like(whole)
        again[touched.positions] = found
        np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize(
    ("layers", "features", "samples", "tensor"),
    [
        ([], 4000, 10, "dense1.weight"),
        ([Dense(4), Tanh()], 4000, 10, "dense1.weight"),
        ([], 4000, 10_000, None),  # a bundle touches most of it
        ([], 40, 40, None),
        ([ReLU()], 4000, 10, None),
        ([Dense(4), Dropout(0.5)], 4000, 10, None),
    ],
)
def test_when_only_some_rows_travel(layers: list[Layer], features: int, samples: int, tensor: str | None) -> None:
    model = network(*layers, features=features)
    batch = rows(1, 50, features)
    small = SparseSplit.of(rows_of(np.eye(50, features, dtype=np.float32)), batch.targets)
    part = Layout.whole(dict(model.shapes)).part(0)
    assert column_tensor(model, part, small, samples) == tensor
    assert column_tensor(model, part, small.dense(), samples) is None


class Shards:
    """Holds a trial, and keeps what is pushed as whole vectors; refuses the pulls with these numbers, from 1."""

    def __init__(self, flat: np.ndarray, refuses: set[int]) -> None:
        self.placement = SimpleNamespace(spans=[None])
        self.flat, self.refuses, self.pulls = flat, refuses, 0
        self.pushed: dict[int | None, np.ndarray] = {}

    def locate(self, at_least: int) -> None:
        assert at_least == 7

    def pull_at(self, positions: np.ndarray, vector: str) -> np.ndarray:
        assert vector == "trial"
        self.pulls += 1
        if self.pulls in self.refuses:
            raise Rejected("no vector 'trial' yet")
        return np.asarray(self.flat[positions])

    def push_at(self, positions: np.ndarray, values: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        assert (push.packed, push.clock, push.vector) == (True, 3, "accrued")
        self.pushed[push.bundle] = whole = np.zeros_like(self.flat)
        whole[positions] = values
        return PushResult(0.0)


@pytest.mark.parametrize(
    ("refuses", "failed"),
    [(set(), []), ({2}, []), ({1}, [1])],
    ids=["none", "one that was ahead, which is pulled again", "the first"],
)
def test_bundles_are_the_sums_of_whole_vectors(refuses: set[int], failed: list[int]) -> None:
    model, data = network(features=2000), rows(5, 70, 2000)
    tensors = model.parameters(np.random.default_rng(1))
    part = Layout.of(tensors).part(0)
    shards, coordinator = Shards(part.flatten(tensors, np.empty(part.size, np.float32)), refuses), Coordinator()
    split = SparseSplit.of(data.inputs, data.targets)

    def gather() -> Callable[[int, int, int], Batch]:
        room = split.buffer(10)
        return lambda epoch, start, stop: split.gather(np.arange(start, stop), room)

    client, backend = cast("ShardedParameterClient", shards), select_backend("cpu")
    worker = BundleWorker(
        model,
        part,
        backend,
        client,
        Pusher(0, 1),
        (gather(), gather()),
        PhaseTimer(),
        coordinator,
        None,
        "dense1.weight",
    )
    bundles = [
        wire.Bundle(pass_number=3, bundle=number + 1, start=start, stop=stop, portion=10, placement_epoch=7)
        for number, (start, stop) in enumerate(((0, 30), (30, 35), (35, 70)))
    ]
    with closing(worker):
        coordinator.ahead = bundles[1:]
        following: wire.Bundle | None = bundles[0]
        if failed:
            assert worker.compute(bundles[0]) is None
        while following is not None:
            following = worker.compute(following)
    assert [one.bundle for one in coordinator.failures] == failed
    assert [told.bundle for told in coordinator.told] == [1, 2, 3]
    for bundle in bundles:
        expected, gradient = np.zeros_like(shards.flat), np.empty_like(shards.flat)
        for start in range(bundle.start, bundle.stop, 10):
            some = split.gather(np.arange(start, min(start + 10, bundle.stop)), split.buffer(10))
            model.loss_and_gradient(part.views(shards.flat), some, part.views(gradient))
            expected += gradient * np.float32(len(some))
        np.testing.assert_array_equal(shards.pushed[bundle.bundle], expected)
