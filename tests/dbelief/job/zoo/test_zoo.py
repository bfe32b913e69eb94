"""Networks of the zoo have the counts of their papers, by arithmetic of their own, and what a job makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.errors import JobError
from dbelief.job import Job, ZooModel, parse_job
from dbelief.job.zoo import NETWORKS, Branches, Name, Words
from dbelief.nn import Batch, build_network
from dbelief.plan import make_plan
from dbelief.plan.network import network_layers
from tests.jobs import small_job

CHAINS = [name for name, network in NETWORKS.items() if network.chain is not None]

CONVS = {
    "nin": [
        *[(3, 96, 11), (96, 96, 1), (96, 96, 1), (96, 256, 5), (256, 256, 1), (256, 256, 1)],
        *[(256, 384, 3), (384, 384, 1), (384, 384, 1), (384, 1024, 3), (1024, 1024, 1), (1024, 1000, 1)],
    ],
    "alexnet": [(3, 96, 11), (96, 256, 5), (256, 384, 3), (384, 384, 3), (384, 256, 3)],
}
INCEPTION = [
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
]
"""Szegedy et al. 2015, Table 1: channels seen, and filters of 1 x 1, 3 x 3, 5 x 5 and after the pool."""


def filters(channels: int, maps: int, kernel: int) -> int:
    """Weights and biases."""
    return channels * maps * kernel**2 + maps


def googlenet() -> int:
    count = filters(3, 64, 7) + filters(64, 64, 1) + filters(64, 192, 3) + filters(1024, 1000, 1)
    for seen, ones, before_3, threes, before_5, fives, pooled in INCEPTION:
        count += filters(seen, ones, 1) + filters(seen, before_3, 1) + filters(before_3, threes, 3)
        count += filters(seen, before_5, 1) + filters(before_5, fives, 5) + filters(seen, pooled, 1)
    return count + sum(filters(seen, 128, 1) + filters(128, 1024, 4) + filters(1024, 1000, 1) for seen in (512, 528))


EXPECTED: dict[Name, int] = {
    "lenet": 431_080,  # Caffe's
    "alexnet": sum(filters(*one) for one in CONVS["alexnet"]) + filters(256, 4096, 6) + 4097 * 4096 + 4097 * 1000,
    "nin": sum(filters(*one) for one in CONVS["nin"]),
    "googlenet": googlenet(),
    "vgg19": 143_667_240,  # torchvision's vgg19
    "speech": 440 * 2560 + 3 * 2560**2 + 2560 * 8192 + 4 * 2560 + 8192,  # "approximately 42 million"
}


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters(name: Name) -> None:
    assert sum(layer.parameters for layer in network_layers(NETWORKS[name])) == EXPECTED[name]


def test_names() -> None:
    assert tuple(NETWORKS) == get_args(Name)
    assert all(network.name == name for name, network in NETWORKS.items())
    assert set(NETWORKS) - set(CHAINS) == {"googlenet"}


def test_images_become_smaller_as_in_the_papers() -> None:
    sides: dict[str, list[int]] = {
        "alexnet": [224, 55, 27, 13, 6],
        "nin": [224, 54, 27, 13, 6, 1],
        "vgg19": [224, 112, 56, 28, 14, 7],
        "googlenet": [224, 112, 56, 28, 14, 7, 1],
        "lenet": [28, 24, 12, 8, 4],
    }
    for name, expected in sides.items():
        shapes = [layer.outputs for layer in network_layers(NETWORKS[name]) if len(layer.outputs) == 3]
        found = [shape[0] for shape in shapes]
        assert sorted(set(found), reverse=True) == expected
        assert all(height == width for height, width, _ in shapes)
    assert [layer.outputs for layer in network_layers(NETWORKS["speech"])][-1] == (8192,)


def maps(path: Sequence[Words]) -> int:
    """Of the last convolution of a path."""
    return next(int(one["conv"]["maps"]) for one in reversed(path) if not isinstance(one, str))


def test_branch_outputs_match_the_next_module() -> None:
    modules = [layer for layer in NETWORKS["googlenet"].layers if isinstance(layer, Branches)]
    given = [sum(map(maps, module.paths)) for module in modules]
    assert given == [seen for seen, *_ in INCEPTION[1:]] + [1024]
    planned = [layer for layer in network_layers(NETWORKS["googlenet"]) if layer.name.startswith("branches")]
    assert [layer.outputs[2] for layer in planned] == given


def job(zoo: str) -> Job:
    return small_job(where="zoo.yaml", model={"zoo": zoo}, data={"source": "npz", "file": "nowhere.npz"})


@pytest.mark.parametrize("name", ["lenet", "nin"])
def test_a_job_makes_as_many_parameters(name: Name) -> None:
    model = job(name).model
    assert isinstance(model, ZooModel)
    image = model.layers[0].image
    assert image is not None
    features = image.height * image.width * image.channels
    network = build_network(
        model.described(), model.loss, features=features, outputs=None, backend=select_backend("cpu")
    )
    assert sum(values.size for _, _, values in network.drawn(np.random.default_rng(0))) == EXPECTED[name]


@pytest.mark.parametrize("name", CHAINS)
def test_a_job_is_planned_by_name(name: Name) -> None:
    plan = make_plan(job(name))
    assert plan.parameters() == EXPECTED[name]
    by_name = network_layers(NETWORKS[name])
    assert [(one.outputs, one.multiplied, one.flop) for one in plan.layers] == [
        (one.outputs, one.multiplied, one.flop) for one in by_name
    ]


def test_a_job_file_says_the_name_and_keeps_it() -> None:
    first = job("lenet")
    again = parse_job(first.to_yaml(), first.folder, "again.yaml")
    assert again == first
    assert again.model_dump(mode="json")["model"] == {"zoo": "lenet"}


def test_lenet_has_a_gradient() -> None:
    model = job("lenet").model
    assert isinstance(model, ZooModel)
    network = build_network(model.described(), model.loss, features=(28, 28), outputs=10, backend=select_backend("cpu"))
    rng = np.random.default_rng(1)
    values = network.parameters(rng)
    layout = Layout.of(values)
    batch = Batch(rng.random((3, 28, 28), np.float32), np.array([1, 7, 3]))
    gradient = np.full(layout.size, np.nan, np.float32)
    loss = network.loss_and_gradient(values, batch, layout.views(gradient))
    assert loss == pytest.approx(math.log(10), rel=0.3)
    assert np.isfinite(gradient).all()
    assert all(view.any() for view in layout.views(gradient).values())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("googlenet", r"model\.zoo: googlenet can be counted \(dbelief plan googlenet\), not trained: it has branches"),
        ("alexnt", r"model\.zoo: must be one of lenet, alexnet, .*, not 'alexnt'; did you mean alexnet\?"),
    ],
)
def test_untrainable_network_is_refused(name: str, reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        job(name)
