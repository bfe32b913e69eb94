"""Volumes are those of FireCaffe's Table 1, of arithmetic done by hand, and of the models that a job has."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dbelief.arrays.backend import select_backend
from dbelief.job import load_job
from dbelief.job.zoo import NETWORKS, Name
from dbelief.nn import build_layer, stages
from dbelief.plan import Plan, make_plan, plan_network
from dbelief.plan.job_plan import copies
from dbelief.plan.layers import planned_layers
from tests.jobs import SGD, small_job

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

TABLE_1: dict[Name, tuple[float, float, float]] = {
    "nin": (30e6, 5800e6, 6.7e12),
    "alexnet": (249e6, 1680e6, 7.0e12),
    "googlenet": (54e6, 19100e6, 9.7e12),
    "vgg19": (575e6, 42700e6, 120e12),
}
"""Iandola et al. 2016: |W|, |D|, and operations of 1,024 samples. (Not all ratios beside them follow from these.)"""


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1(name: Name) -> None:
    volumes = plan_network(NETWORKS[name], 32, 32).volumes
    found = volumes.weight_bytes, volumes.data_bytes, volumes.step_flop
    assert found == pytest.approx(TABLE_1[name], rel=0.015)


def test_operations() -> None:
    """Each weight of a convolution once at each of its places, of a dense layer once: 2 flop, three times."""
    volumes = plan_network(NETWORKS["lenet"], 1, 1).volumes
    weights = 25 * 20 * 24**2 + 25 * 20 * 50 * 8**2 + 800 * 500 + 500 * 10
    assert volumes.flop == 6 * weights


def planned(model: dict[str, Any], **fields: Any) -> Plan:
    return make_plan(small_job(model=model, **{"strategy": {**SGD, "batch": 10}, **fields}))


def test_of_a_job() -> None:
    layers = [{"image": {"height": 8, "width": 8}}, {"local": {"window": 2, "block": 1, "maps": 2, "stride": 1}}]
    plan = planned({"layers": [*layers, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}, replicas=3)
    volumes, untied = plan.communication.volumes, 7 * 7 * 2
    assert volumes.weight_bytes == 4 * plan.parameters() == 4 * (untied * (4 + 1) + (untied + 1) * 10)
    assert volumes.data_bytes == 4 * 30 * (64 + untied)
    assert volumes.flop == 6 * (untied * 4 + untied * 10)


@pytest.mark.parametrize(("train", "products"), [("1", (5, 0, 0)), ("3", (1, 1, 5)), ("all", (5, 6, 6))])
def test_of_the_largest_network_of_coates(train: str, products: tuple[int, ...]) -> None:
    """A stack that is only used costs W x; of those that are trained above another the slope goes further down."""
    plan = make_plan(load_job(EXAMPLES / "cots_11b.yaml", {"model.train": train, "grid": "[1]"}))
    weights = (731_289_600, 6_879_707_136, 3_588_489_216)
    assert [layer.flop for layer in plan.layers] == [2 * n * w for n, w in zip(products, weights, strict=True)]
    seen = sum(layer.multiplied for layer, n in zip(plan.layers, products, strict=True) if n)
    assert plan.layers[0].multiplied == math.prod((200, 200, 3))
    assert plan.communication.volumes.multiplied == seen


def test_copies_of_weights_and_data_in_the_fast_memory() -> None:
    """You et al. 2017, section 6.2: 16 parts of a chip with 16 GB, AlexNet's weights and 687 MB of CIFAR each."""
    weights = plan_network(NETWORKS["alexnet"], 1, 64).volumes.weight_bytes
    fit = copies(16, weights, 687_000_000, 16_000_000_000)
    assert fit.needs == pytest.approx(15.0e9, rel=0.002)
    assert fit.fits
    assert not copies(18, weights, 687_000_000, 16_000_000_000).fits
    assert "at most 17" in fit.what


def test_replicas_of_one_machine_have_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.plan.job_plan.machine_bytes", lambda: 10**9)
    model = {"layers": [{"dense": 10}], "loss": "softmax_cross_entropy"}
    plan = planned(model, replicas=4)
    (fit,) = (fit for fit in plan.fits if fit.what.startswith("weights and data"))
    assert fit.needs == 4 * (4 * 650 + plan.data_bytes)
    assert not any(fit.what.startswith("weights and data") for fit in planned(model, replicas=1).fits)


def test_an_embedding_multiplies_with_none_of_its_weights() -> None:
    layers = [build_layer(1, "embedding", {"entries": 50, "width": 4}), build_layer(2, "dense", {"units": 2})]
    table, dense = planned_layers(stages(layers, (6,), select_backend("cpu")))
    assert (table.parameters, table.multiplied, table.flop) == (200, 0, 0)
    assert (dense.multiplied, dense.flop) == (24, 6 * 24 * 2)
