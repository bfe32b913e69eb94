"""Strategies compared by real processes, and the copies that a watcher takes of a run's parameters."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dbelief
from dbelief.job import Every
from dbelief.tools.experiments.compare.checkpointer import Watcher

from .conftest import Operator, wait_for

pytestmark = pytest.mark.processes

BASE = """
model: {layers: [{dense: 16}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
limits: {epochs: 2}
shards: 1
"""
COMPARISON = """
name: digits
base: base.yaml
strategies:
  downpour: {strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.05}, warm_start: null}}
  async-easgd: {strategy: {name: async-easgd, batch: 16, rate: 0.2}, replicas: 2}
seeds: [0]
targets: [0.3]
every: {samples: 100}
compute_wait_s: [0.005]
"""


@pytest.mark.long
def test_strategies_are_compared(operator: Operator) -> None:
    (operator.folder / "base.yaml").write_text(BASE)
    (operator.folder / "digits.yaml").write_text(COMPARISON)
    compared = operator.start("compare", "compare", "digits.yaml", "--output", "out")
    assert compared.ends() == 0, compared.log.read_text()
    found = json.loads((operator.folder / "out" / "compare.json").read_text())
    rows = {row["label"]: row for row in found["rows"]}
    for label, replicas in (("downpour", 1), ("async-easgd", 2)):
        (run,) = [run for run in found["runs"] if run["label"] == label]
        assert run["failed"] == ""
        assert run["samples"] == 2 * 1257
        assert run["curve"][-1]["samples"] <= run["samples"]
        assert 0 < run["reached"]["0.3"]["samples"] < run["samples"]
        assert len(run["phase_seconds"]) == replicas
        waits = sum(phases["compute"] for phases in run["phase_seconds"].values()) / 0.005
        assert waits >= run["samples"] / 16, "computing each mini-batch was made to take so long at least"
        assert sum(rows[label]["shares"].values()) == pytest.approx(1.0)
    assert not list((operator.folder / "out").glob("copies*"))


MODEL = """
import numpy as np

class Counts:
    def parameters(self, rng):
        return {"w": rng.normal(size=5000).astype("float32")}

    def loss_and_gradient(self, views, batch, out):
        raise AssertionError("its gradients come from elsewhere")
"""
JOB = """
name: watched
model: {python: "counts.py:Counts"}
data: {source: none}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}, warm_start: null}
limits: {samples: 100000}
shards: 2
replicas: 0
"""


def test_the_copies_are_the_shards_parameters_to_the_bit(operator: Operator) -> None:
    (operator.folder / "counts.py").write_text(MODEL)
    _, address = operator.coordinator(operator.write_job(JOB))
    operator.members(address, 2, 0)
    copies = operator.folder / "copies"
    copies.mkdir()
    rng, held = np.random.default_rng(3), []
    with (
        dbelief.connect(address) as job,
        Watcher(operator.folder / "runs" / "watched", copies, Every(samples=10)) as watcher,
    ):
        for place in range(3):
            held.append(job.pull()["w"].copy())
            wait_for(lambda n=place: len(watcher.copies) > n, f"copy {place}")  # type: ignore[misc]
            job.push({"w": rng.normal(size=5000).astype(np.float32)}, samples=10 * (place + 1))
    assert [copy.samples for copy in watcher.copies[:3]] == [0, 10, 30]
    assert [watcher.read(place).tobytes() for place in range(3)] == [values.tobytes() for values in held]
