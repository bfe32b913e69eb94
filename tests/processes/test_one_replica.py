"""One replica with n_fetch = n_push = 1, through real processes and gRPC, is sequential SGD, bit for bit.

ALGORITHMS: Downpour with one replica whose every fetch sees the push before it (DistBelief, section 4.1).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.arrays.backend import select_backend
from dbelief.data import load, permutation
from dbelief.job import Downpour, load_job
from dbelief.optim import make_rule
from dbelief.rundir.model_metadata import ModelMetadata
from dbelief.training.schedule import learning_rate
from dbelief.training.session import build_model, initial_values
from tests.assembled import assembled

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: one
model: {{layers: [{{dense: 12}}, tanh, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 50, rule: {{name: {rule}, rate: 0.05}}, warm_start: null}}
schedule: {schedule}
limits: {{epochs: 2}}
evaluate: {{every: 600}}
shards: {shards}
replicas: 1
seed: 3
threads: 1
"""


def sequential(job_file: Path) -> dict[str, np.ndarray]:
    """The same job as a plain loop in this process, by the rule's NumPy form."""
    job = load_job(job_file, {})
    data, backend = load(job.data, job.folder), select_backend("cpu")
    model, _ = build_model(job, data, backend)
    layout, w = initial_values(job, model)
    assert data.train is not None
    assert isinstance(job.strategy, Downpour)
    gradient, buffer = np.zeros_like(w), data.train.buffer(job.strategy.batch)
    rule = make_rule(job.strategy.rule.name, job.strategy.rule.model_dump(exclude={"name", "rate"}))
    states = tuple(np.full_like(w, value) for value in rule.state.values())
    step = 0
    for epoch in range(2):
        order = permutation(len(data.train), job.seed, epoch)
        for first in range(0, len(order), job.strategy.batch):
            batch = data.train.gather(order[first : first + job.strategy.batch], buffer)
            model.loss_and_gradient(layout.views(w), batch, layout.views(gradient))
            step += 1
            rate = learning_rate(job, epoch * len(order) + first, 2 * len(order))
            rule.apply_reference(np, w, gradient, states, np.float32(rate), step)
    return assembled(layout, w)


CONSTANT = "{kind: constant}"
RISING = "{kind: poly, power: 0.5, warm_up: {samples: 500}, scale: {reference_batch: 10}}"


@pytest.mark.parametrize(
    ("rule", "shards", "schedule"),
    [
        pytest.param("sgd", 2, CONSTANT, marks=pytest.mark.long),
        pytest.param("adagrad", 3, CONSTANT, marks=pytest.mark.long),
        ("caffe-momentum, mu: 0.5, weight_decay: 1e-3", 2, RISING),
    ],
)
def test_bit_equal_to_sequential(rule: str, shards: int, schedule: str, operator: Operator) -> None:
    job = operator.write_job(JOB.format(rule=rule, shards=shards, schedule=schedule))
    coordinator, address = operator.coordinator(job)
    members = operator.members(address, shards, 1)
    assert coordinator.ends() == 0
    assert [member.ends() for member in members] == [0] * (shards + 1)
    model = operator.folder / "runs" / "one" / "model.safetensors"
    trained = load_file(model)
    expected = sequential(job)
    assert trained.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(trained[name], values), name
    assert operator.summary("one")["staleness_mean"] == 0
    loaded = load_job(job)
    assert ModelMetadata.read(model).samples == load(loaded.data, loaded.folder).form
