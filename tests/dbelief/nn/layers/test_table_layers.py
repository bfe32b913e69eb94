"""Layers that read tables: against formulas in float64 over dense matrices, and differences of these formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.backend import select_backend
from dbelief.errors import ModelError
from dbelief.nn import NO_NUMBERS, BagRows, Batch, KeyRows, Network, build_network

CPU = select_backend("cpu")
KEYS = np.array([-(2**62), -3, 0, 7, 2**40])
WIDTHS = {"v": 3, "w": 1}
BAG = st.lists(st.tuples(st.integers(0, len(KEYS) - 1), st.integers(-8, 8)), max_size=4)
SAMPLES = st.lists(st.tuples(BAG, BAG), min_size=1, max_size=5)
"""Of each sample a bag of two columns: places of keys, and quarters of their values."""
Numbers = dict[str, np.ndarray]


def bags_of(samples: list[tuple[Any, Any]]) -> BagRows:
    columns = {}
    for name, bags in zip("ab", zip(*samples, strict=True), strict=True):
        places = np.array([place for bag in bags for place, _ in bag], np.int64)
        values = np.array([value / 4 for bag in bags for _, value in bag], np.float32)
        indptr = np.cumsum([0, *map(len, bags)])
        columns[name] = KeyRows(indptr, KEYS[places], values)
    return BagRows(columns)


def matrix(bags: KeyRows, mean: bool = False) -> np.ndarray:
    """(m, keys) float64: the sum of a key's values in each bag, over the bag's length for means."""
    found = np.zeros((len(bags.indptr) - 1, len(KEYS)))
    for row, (start, stop) in enumerate(zip(bags.indptr[:-1], bags.indptr[1:], strict=True)):
        for key, value in zip(bags.keys[start:stop], bags.values[start:stop], strict=True):
            found[row, np.flatnonzero(key == KEYS)[0]] += value / (stop - start if mean else 1)
    return found


def pairs(bags: KeyRows, v: np.ndarray) -> np.ndarray:
    """(m,) float64: sum over all pairs of places i < j of <v_i, v_j> x_i x_j, one by one."""
    found = np.zeros(len(bags.indptr) - 1)
    for row, (start, stop) in enumerate(zip(bags.indptr[:-1], bags.indptr[1:], strict=True)):
        terms = [
            v[np.flatnonzero(key == KEYS)[0]] * value
            for key, value in zip(bags.keys[start:stop], bags.values[start:stop], strict=True)
        ]
        found[row] = sum(float(one @ other) for place, one in enumerate(terms) for other in terms[:place])
    return found


def network(layers: list[Any]) -> tuple[Network, Numbers]:
    """A network of one logistic output, and its tables' rows in the order of the keys: random, float32."""
    made = build_network(
        layers, "logistic", features=NO_NUMBERS, outputs=2, backend=CPU, tables=WIDTHS, columns=("a", "b")
    )
    rng = np.random.default_rng(3)
    rows = {name: rng.standard_normal((len(KEYS), width), np.float32) for name, width in WIDTHS.items()}

    def read(wanted: Mapping[str, np.ndarray]) -> Numbers:
        return {name: rows[name][np.searchsorted(KEYS, keys)] for name, keys in wanted.items()}

    made.attach(read)
    return made, rows


def layer(kind: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return kind, {"columns": (), "join": "append"} | ({"mode": "sum"} if kind == "embedding_bag" else {}) | options


Formula = Callable[[BagRows, Numbers, Numbers], np.ndarray]
"""(m,) logits of bags, rows and parameters, in float64."""


def summed(bags: BagRows, rows: Numbers, views: Numbers) -> np.ndarray:
    x = np.hstack([matrix(bags.columns[name]) @ rows["v"] for name in "ab"])
    logits: np.ndarray = (x @ views["dense1.weight"] + views["dense1.bias"])[:, 0]
    return logits


def wide_and_deep(bags: BagRows, rows: Numbers, views: Numbers) -> np.ndarray:
    x = np.tanh(matrix(bags.columns["b"], mean=True) @ rows["v"])
    logits: np.ndarray = x @ views["dense1.weight"] + views["dense1.bias"]
    for name in "ab":
        logits = logits + matrix(bags.columns[name]) @ rows["w"]
    return logits[:, 0]


def machine(bags: BagRows, rows: Numbers, views: Numbers) -> np.ndarray:
    """All keys of a sample are one bag."""
    both = [bags.columns[name] for name in "ab"]
    parts = [np.split(np.stack([own.keys, own.values], dtype=object), own.indptr[1:-1], axis=1) for own in both]
    joined = [np.concatenate(pair, axis=1) for pair in zip(*parts, strict=True)]
    indptr = np.cumsum([0, *(part.shape[1] for part in joined)])
    all_keys = np.concatenate(joined, axis=1)
    one = KeyRows(indptr, all_keys[0].astype(np.int64), all_keys[1].astype(np.float64))
    logits: np.ndarray = views["fm1.bias"][0] + (matrix(one) @ rows["w"])[:, 0] + pairs(one, rows["v"])
    return logits


def deep_and_cross(bags: BagRows, rows: Numbers, views: Numbers) -> np.ndarray:
    first = x = np.hstack([matrix(bags.columns[name]) @ rows["w"] for name in "ab"])
    for weight, bias in zip(views["cross1.weight"], views["cross1.bias"], strict=True):
        x = first * (x @ weight)[:, None] + bias + x
    logits: np.ndarray = (x @ views["dense1.weight"] + views["dense1.bias"])[:, 0] + machine(bags, rows, views)
    return logits


NETWORKS: dict[str, tuple[list[Any], Formula]] = {
    "bags": ([layer("embedding_bag", table="v"), ("dense", {"units": 1})], summed),
    "wide and deep": (
        [
            layer("embedding_bag", table="v", columns=("b",), mode="mean"),
            ("tanh", {}),
            ("dense", {"units": 1}),
            layer("embedding_bag", table="w", join="add"),
        ],
        wide_and_deep,
    ),
    "fm": ([layer("fm", factors="v", linear="w")], machine),
    "deep and cross, and fm": (
        [
            layer("embedding_bag", table="w"),
            ("cross", {"layers": 2}),
            ("dense", {"units": 1}),
            layer("fm", factors="v", linear="w", join="add"),
        ],
        deep_and_cross,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@given(SAMPLES, st.integers(0, 99))
def test_loss_and_gradients_are_those_of_the_formula(name: str, samples: list[Any], seed: int) -> None:
    """Empty bags, keys that are there twice, and one sample are among the samples."""
    layers, formula = NETWORKS[name]
    (model, rows), bags, rng = network(layers), bags_of(samples), np.random.default_rng(seed)
    targets = rng.integers(0, 2, len(samples))
    views = {key: value + rng.standard_normal(value.shape, np.float32) for key, value in model.parameters(rng).items()}
    out = {key: np.full_like(value, np.nan) for key, value in views.items()}

    def loss(at: Numbers) -> float:
        logits = formula(bags, at, at)
        return float(np.logaddexp(0, np.where(targets == 1, -logits, logits)).mean())

    point = {key: value.astype(np.float64) for key, value in (views | rows).items()}
    assert model.loss_and_gradient(views, Batch(bags, targets), out) == pytest.approx(loss(point), rel=1e-4, abs=1e-5)
    gradients = dict(out)
    for table, (keys, found) in model.take_rows().items():
        asked = np.concatenate([own.keys for own in bags.columns.values()])
        assert set(keys) <= set(asked)
        gradients[table] = np.zeros_like(rows[table])
        gradients[table][np.searchsorted(KEYS, keys)] = found
    assert model.take_rows() == {}
    for key, gradient in gradients.items():
        direction, h = rng.standard_normal(gradient.shape), 1e-6
        ends = [loss(point | {key: point[key] + sign * h * direction}) for sign in (1, -1)]
        size = 1 + float(np.vdot(abs(gradient), abs(direction)))
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(float(np.vdot(gradient, direction)), abs=1e-4 * size)
    z = model.last_layer(views, Batch(bags, targets))
    np.testing.assert_allclose(z[:, 1] - z[:, 0], formula(bags, point, point), rtol=1e-4, atol=1e-4)


@given(SAMPLES, st.data())
def test_samples_are_taken_with_their_bags(samples: list[Any], data: st.DataObject) -> None:
    bags = bags_of(samples)
    some = data.draw(st.lists(st.integers(0, len(samples) - 1)))
    found, expected = bags.taken(np.array(some, np.int64)), bags_of([samples[place] for place in some] or [([], [])])
    assert len(found) == len(some)
    for name, own in found.columns.items():
        assert own.indptr.tolist() == expected.columns[name].indptr.tolist()[: len(some) + 1]
        assert own.keys.tolist() == expected.columns[name].keys.tolist()
        assert own.values.tolist() == expected.columns[name].values.tolist()


BAGS = layer("embedding_bag", table="v")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("dense", {"units": 1})], "layer dense1: samples are bags of keys: it must be embedding_bag or fm"),
        ([layer("embedding_bag", table="u")], r"layer 1 \(embedding_bag\): table: 'u' is not known"),
        ([layer("embedding_bag", table="v", columns=("c",))], r"layer 1 \(embedding_bag\): 'c' is not known"),
        ([layer("fm", factors="w", linear="v")], "rows of table 'v' have 3 numbers, and a linear term has 1"),
        (
            [layer("fm", factors="v", linear="w", join="add")],
            "layer fm1: is added to the outputs of the layer before, and has 1, not 0",
        ),
        ([BAGS, ("dense", {"units": 2})], "layer dense1: has 2 outputs, expected 1 output"),
        ([BAGS], "a network needs at least one"),
    ],
)
def test_what_does_not_fit_is_refused(layers: list[Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        network(layers)


def test_numbers_are_no_bags() -> None:
    with pytest.raises(ModelError, match="layer embedding_bag1: tables are read by keys, and samples are numbers"):
        build_network([BAGS, ("dense", {"units": 2})], "softmax_cross_entropy", features=3, outputs=2, backend=CPU,
                      tables=WIDTHS, columns=("a",))  # fmt: skip
    model, _ = network([BAGS, ("dense", {"units": 1})])
    views = model.parameters(np.random.default_rng(0))
    with pytest.raises(ModelError, match="layer embedding_bag1: got numbers, expected bags of keys"):
        model.evaluate(views, Batch(np.zeros((2, 0), np.float32), np.zeros(2, np.int64)))
