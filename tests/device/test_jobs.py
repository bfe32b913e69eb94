"""Whole jobs on the stand-in for CuPy: what NumPy gives, and nothing allocated once they run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.device.jobs import BATCH, BATCHES, DENSE, Example, Steps, by, of_layers
from tests.device.standin.cupy import standing_in

SGD = "{name: sgd, rate: 0.05}"
IMAGE = "{image: {height: 8, width: 8}}"
LENET = of_layers(
    IMAGE, "{conv: {maps: 4, kernel: 3, padding: 1}}", "{max_pool: 2}", "{conv: {maps: 6, kernel: 3}}", "relu",
    "{max_pool: 2}", "{dense: 12}", "relu", "{dense: 10}",
)  # fmt: skip
IMAGES = of_layers(IMAGE, "{conv: {maps: 4, kernel: 3}}", "relu", "{max_pool: 2}", "{dense: 10}")
LAYERS = of_layers(
    IMAGE, "{local: {window: 2, block: 1, maps: 3, stride: 1}}", "{l2_pool: 2}", "{lcn: {size: 3}}", "sigmoid",
    "{dropout: 0.2}", "{dense: 10}",
)  # fmt: skip
AUTOENCODER = "{autoencoder: {window: 4, block: 2, maps: 2, pool: 2, image: [8, 8, 1]}}"

STACKS = (
    "{stacks: [{window: 2, block: 1, maps: 3, pool: 2, contrast: {size: 3}}, {window: 1, block: 1, maps: 2, pool: 2}],"
    " image: [8, 8, 1], train: all}"
)

EXACT = {
    "digits": Example(DENSE, by("downpour", warm_start="null")),
    "local steps, pushes of two": Example(DENSE, by("downpour", n_fetch=4, n_push=2, clip_norm=0.5, warm_start="null")),
    "local steps, pushes of one": Example(DENSE, by("downpour", n_fetch=2, clip_norm=0.5, warm_start="null")),
    "ranks": Example(DENSE, by("downpour", warm_start="null"), grid="[2]"),
    "elastic": Example(DENSE, f"{{name: async-measgd, batch: {BATCH}, rate: 0.05, mu: 0.5}}"),
    "elastic in a group": Example(DENSE, f"{{name: sync-easgd, batch: {BATCH}, rate: 0.05}}", replicas=2),
    "gradients in a group": Example(DENSE, by("sync-sgd", SGD, clip_norm=1.0), replicas=2),
    "diloco": Example(
        DENSE, f"{{name: diloco, batch: {BATCH}, steps: 3, delay: 2, inner: {{name: adam, rate: 0.01}}}}"
    ),
    "diloco on ranks": Example(
        DENSE,
        f"{{name: diloco, batch: {BATCH}, steps: 2, inner: {{name: sgd, rate: 0.1}}, clip_norm: 0.5}}",
        grid="[2]",
    ),
    "elastic on ranks": Example(DENSE, f"{{name: async-easgd, batch: {BATCH}, rate: 0.05}}", grid="[2]"),
    "a batch method": Example(DENSE, BATCHES, "{}"),
    "a batch method on ranks": Example(DENSE, BATCHES, "{}", grid="[2]"),
}
"""By the same formulas as on the host: the same bits."""

CLOSE = {
    "lenet": Example(LENET, by("downpour", warm_start="null")),
    "layers": Example(LAYERS, by("downpour", SGD, warm_start="null")),
    "layers on ranks": Example(IMAGES, by("downpour", SGD, warm_start="null"), grid="[2]"),
    "stacks": Example(STACKS, by("downpour", "{name: sgd, rate: 0.003}", warm_start="null")),
    "autoencoder": Example(AUTOENCODER, by("downpour", "{name: sgd, rate: 0.003}", warm_start="null")),
}
"""With kernels and products of their own: float32's rounding apart."""


LONG = {
    "local steps, pushes of one", "diloco on ranks", "layers on ranks", "a batch method on ranks", "elastic on ranks",
    "stacks",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in (*EXACT, *CLOSE)]
)
def test_job_matches_numpy_without_steady_allocations(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = (EXACT | CLOSE)[name]
    expected = example.run(tmp_path / "host", monkeypatch, "cpu")
    with standing_in(devices=2) as machine:
        steps = Steps.watched(machine, example.ranks, monkeypatch)
        found = example.run(tmp_path / "device", monkeypatch, "cuda")
    assert found.keys() == expected.keys()
    for tensor, values in expected.items():
        if name in EXACT:
            np.testing.assert_array_equal(found[tensor], values, err_msg=tensor)
        else:
            np.testing.assert_allclose(found[tensor], values, rtol=1e-4, atol=1e-5, err_msg=tensor)
    assert machine.memory.requests[0], "nothing was computed on a device"
    assert machine.stalls == 0
    last = -2 * example.ranks * example.replicas  # a shorter mini-batch
    assert len(steps.fresh[:last]) >= 2
    # A push may meet a step for the first time, and find the pool's few bytes in use; or another worker evaluates.
    assert sum(map(bool, steps.fresh[:last])) <= 2, steps
    # A push may overlap the next one, or that of another rank, for the first time: the second has buffers of its own
    # then, together as large as the model.
    own_buffers = sum(values.nbytes for values in found.values())
    assert sum(steps.fresh[:last]) <= 2048 + own_buffers or example.replicas > 1, steps
    # What is left are a loss's few numbers for each sample, or a few for each neuron.
    few = (12 if name == "stacks" else 8) * (300 if example.strategy == BATCHES else BATCH)
    if "diloco" in name:  # the formula of an inner rule has temporaries, which the pool gives again
        few = 2 * own_buffers
    assert sum(one > few for one in steps.largest[:last]) <= 2 * (example.replicas - 1), steps


@pytest.mark.long
@pytest.mark.parametrize("staged", [True, False], ids=["staged", "read late"])
@pytest.mark.parametrize("eagerness", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ["digits", "elastic in a group", "ranks", "a batch method", "autoencoder"])
def test_a_job_gives_the_same_in_every_order(
    name: str, eagerness: float, staged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, found = (EXACT | CLOSE)[name], []
    with standing_in(devices=2):
        found.append(example.run(tmp_path / "one", monkeypatch, "cuda"))
    with standing_in(devices=2, seed=1, eagerness=eagerness, staged=staged):
        found.append(example.run(tmp_path / "other", monkeypatch, "cuda"))
    for tensor, values in found[0].items():
        np.testing.assert_array_equal(found[1][tensor], values, err_msg=tensor)
