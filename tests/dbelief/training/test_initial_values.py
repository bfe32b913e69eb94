"""Initial values are those that drawing whole tensors in order gives, wherever and in whatever pieces they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.job import Job
from dbelief.nn import Model, Network, SparseAutoencoder, build_network
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.stacks import Stacks
from dbelief.nn.initial_values import UniformTensor, UniformValues
from dbelief.nn.layers.lcn import Lcn
from dbelief.training.initial_values import DrawnInOrder, HeldTensors, InitialValues
from dbelief.training.session import initial_values
from tests.examples import examples
from tests.jobs import CLASSES, dense, small_job
from tests.threads import at_once

CPU = select_backend("cpu")
SEED = 7
EQ1 = Eq1(window=8, block=4, maps=3, pool=5)
STACKS = [(EQ1, Lcn(5)), (EQ1, Lcn(5))]


def layers(*described: tuple[str, dict[str, Any]], features: tuple[int, ...] = (24, 16, 3)) -> Network:
    return build_network(described, "softmax_cross_entropy", features=features, outputs=None, backend=CPU, seed=SEED)


MODELS: dict[str, Callable[[], Network | SparseAutoencoder | Stacks]] = {
    "dense": lambda: layers(("dense", {"units": 7}), ("relu", {}), ("dense", {"units": 5}), features=(9,)),
    "dense of odd counts": lambda: layers(*[("dense", {"units": units}) for units in (3, 5, 1, 7)], features=(3,)),
    "conv": lambda: layers(
        ("conv", {"maps": 5, "kernel": 3}), ("relu", {}),
        ("max_pool", {"size": 2}), ("conv", {"maps": 3, "kernel": 2})
    ),
    "local": lambda: layers(
        ("local", {"window": 4, "block": 2, "maps": 3}), ("dropout", {"share": 0.5}), ("dense", {"units": 5})
    ),
    "autoencoder": lambda: SparseAutoencoder((24, 16, 2), EQ1, CPU),
    "stacks": lambda: Stacks((48, 48, 1), STACKS, None, {}, CPU),
    "second stack": lambda: Stacks((48, 48, 1), STACKS, 2, {}, CPU),
    "stacks, one tensor given": lambda: Stacks(
        (48, 48, 1), STACKS, None, {"stack1.weight": np.ones((11, 11, 48, 2, 2, 16), np.float32)}, CPU
    ),
}  # fmt: skip


def job_of(seed: int = SEED, **fields: Any) -> Job:
    return small_job(seed=seed, **{"model": dense(4, 2), "data": CLASSES, **fields})


def formerly(network: Network, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors of layers as whole arrays, one after another."""
    for stage in network.stages:
        for name, shape in zip(stage.parameters, stage.layer.shapes(stage.inputs), strict=True):
            if name.endswith("bias"):
                yield name, np.zeros(shape, np.float32)
                continue
            limit = stage.layer.limit(stage.inputs, stage.before_relu)
            drawn = rng.random(shape, dtype=np.float32)
            drawn *= 2.0 * limit
            drawn -= limit
            yield name, drawn


@pytest.mark.parametrize("kind", MODELS)
def test_bits_are_those_of_tensors_drawn_in_order(kind: str) -> None:
    model, job = MODELS[kind](), job_of()
    rng = np.random.default_rng(SEED)
    whole = dict(formerly(model, rng)) if isinstance(model, Network) else dict(model.parameters(rng))
    layout = Layout.of(whole)
    values = InitialValues.of(job, model)
    assert values.layout == layout
    assert values.flat().tobytes() == layout.flatten(whole, np.empty(layout.size, np.float32)).tobytes()
    again, flat = initial_values(job, model)
    assert again == layout
    assert flat.tobytes() == values.flat().tobytes()
    assert {name: array.tobytes() for name, array in model.parameters(np.random.default_rng(SEED)).items()} == {
        name: np.ascontiguousarray(array).tobytes() for name, array in whole.items()
    }


def ranges_of(size: int, cuts: list[int]) -> list[tuple[int, int]]:
    """Half-open ranges between ascending cuts of a vector."""
    return list(pairwise(sorted({0, size, *(cut % size for cut in cuts)})))


def pieces(source: Any, ranges: list[tuple[int, int]]) -> list[bytes]:
    return [block.tobytes() for block in source.blocks(ranges)]


@examples(100)
@given(kind=st.sampled_from(sorted(MODELS)), cuts=st.lists(st.integers(0, 1 << 20), max_size=20), data=st.data())
def test_pieces_of_any_size_have_the_same_bits(kind: str, cuts: list[int], data: st.DataObject) -> None:
    """Whoever reads first, and however often, as where a stream breaks and its segments are sent again."""
    values = InitialValues.of(job_of(), MODELS[kind]())
    flat, ranges = values.flat(), ranges_of(values.layout.size, cuts)
    source = values.source()
    for _ in range(2):
        some = sorted(data.draw(st.lists(st.sampled_from(ranges), min_size=1, unique=True)))
        assert pieces(source, some) == [flat[start:stop].tobytes() for start, stop in some]


@examples(100)
@given(
    tensors=st.lists(st.tuples(st.integers(0, 50), st.none() | st.floats(0.01, 1)), max_size=6),
    start=st.integers(0, 100),
    length=st.integers(0, 100),
)
def test_any_range_of_uniform_numbers(tensors: list[tuple[int, float | None]], start: int, length: int) -> None:
    described = [UniformTensor(size, limit) for size, limit in tensors]
    total = sum(size for size, _ in tensors)
    rng, parts = np.random.default_rng(SEED), []
    for size, limit in tensors:
        part = np.zeros(size, np.float32) if limit is None else rng.random(size, dtype=np.float32)
        if limit is not None:
            part *= 2.0 * limit
            part -= limit
        parts.append(part)
    whole = np.concatenate([np.empty(0, np.float32), *parts])
    start, stop = min(start, total), min(start + length, total)
    found = UniformValues(described, SEED).draw(start, np.full(stop - start, np.nan, np.float32))
    assert found.tobytes() == whole[start:stop].tobytes()


@pytest.mark.parametrize("kind", MODELS)
def test_threads_read_their_ranges_at_once(kind: str) -> None:
    values = InitialValues.of(job_of(), MODELS[kind]())
    flat, source = values.flat(), values.source()
    ranges = ranges_of(values.layout.size, [100 * place for place in range(200)])
    parts = [ranges[place::4] for place in range(4)]
    found = at_once(lambda part: pieces(source, part), parts)
    assert found == [[flat[start:stop].tobytes() for start, stop in part] for part in parts]


@pytest.mark.parametrize("kind", MODELS)
def test_layout_needs_no_draw(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[kind]()
    monkeypatch.setattr(np.random, "default_rng", lambda *_: pytest.fail("drawn"))
    monkeypatch.setattr(type(model), "drawn", lambda *_: pytest.fail("drawn"))
    monkeypatch.setattr(type(model), "parameters", lambda *_: pytest.fail("drawn"))
    assert InitialValues.of(job_of(), model).layout.size == sum(map(math.prod, model.shapes.values()))


class Mine:
    """A model of the user's, whose tensors are not all contiguous, and which counts its draws."""

    def __init__(self) -> None:
        self.draws = 0

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        self.draws += 1
        return {
            "turned": rng.standard_normal((3, 4), dtype=np.float32).T,
            "alone": np.float32(0.5),  # type: ignore[dict-item]
            "none": np.empty((0, 3), np.float32),
            "w": rng.random((2, 2), dtype=np.float32),
        }

    def loss_and_gradient(self, views: Any, batch: Any, out: Any) -> float:
        raise AssertionError("no gradient is computed here")


def test_the_users_model_is_drawn_once() -> None:
    job, model = job_of(model={"python": "model.py:Mine"}), Mine()
    values = InitialValues.of(job, model)
    whole = {name: np.asarray(array) for name, array in Mine().parameters(np.random.default_rng(SEED)).items()}
    expected = values.layout.flatten(whole, np.empty(values.layout.size, np.float32))
    assert values.layout == Layout.of(whole)
    for ranges in ([(0, 17)], [(0, 5), (5, 13), (13, 17)], [(11, 14)]):
        assert pieces(values.source(), ranges) == [expected[start:stop].tobytes() for start, stop in ranges]
    assert model.draws == 1


class Overriding(Network):
    """A network in a user's file, with initial values of its own."""

    def parameters(self, rng: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {name: np.full(shape, 0.5, np.float32) for name, shape in self.shapes.items()}


def test_the_users_own_initial_values_of_a_network_are_kept() -> None:
    network: Model = Overriding(
        [stage.layer for stage in MODELS["dense"]().stages], MODELS["dense"]().loss, 9, None, CPU  # type: ignore[union-attr]
    )  # fmt: skip
    assert set(InitialValues.of(job_of(model={"python": "model.py:Mine"}), network).flat().tolist()) == {0.5}


@pytest.mark.torch
def test_torch_module() -> None:
    torch = pytest.importorskip("torch")
    from dbelief.nn.torch_model import TorchModel

    def net() -> Any:
        return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.LSTM(4, 3), torch.nn.Conv2d(2, 3, 3))

    job = job_of(model={"python": "model.py:Mine"})
    one, other = (TorchModel(net, torch.nn.CrossEntropyLoss()) for _ in range(2))
    values, whole = InitialValues.of(job, one), other.parameters(np.random.default_rng(SEED))
    assert values.flat().tobytes() == b"".join(tensor.tobytes() for tensor in whole.values())
    assert one._seed == other._seed  # of dropout: a module is drawn on every replica


def test_sources_of_nothing() -> None:
    layout = Layout.whole({"w": (2,)})
    drawn = iter([("w", 0, np.ones(2, np.float32))])
    sources = (
        UniformValues([UniformTensor(2, 1.0)], 0),
        HeldTensors(layout, {"w": np.ones(2)}),
        DrawnInOrder(layout, drawn),
    )
    assert [list(source.blocks([])) for source in sources] == [[], [], []]
