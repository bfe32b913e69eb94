"""A run of real, free-running processes that was logged replays in one thread, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.replay import replay_run

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: logged
model: {layers: [{dense: 24}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy:
  name: downpour
  batch: 16
  rule: {name: adagrad, rate: 0.05}
  warm_start: {samples: 320}
  staleness_aware: true
limits: {epochs: 3}
shards: 2
replicas: 3
record: true
"""


def test_a_logged_run_replays_bit_equal(operator: Operator, write_job: Callable[[str], Path]) -> None:
    """The hardest case: rates that were divided by their staleness stand in the log as they were applied."""
    job = write_job(JOB)
    train = operator.start("train", "train", str(job), "--quiet")
    assert train.ends() == 0
    run = operator.folder / "runs" / "logged"
    assert operator.summary("logged")["staleness_mean"] > 0  # else there was nothing to replay
    trained = load_file(run / "model.safetensors")
    replayed = replay_run(run)
    order = ["dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"]
    flat = np.concatenate([trained[name].reshape(-1) for name in order])
    assert np.array_equal(replayed, flat)
