"""A whole job on this machine in which every role is killed once, by SIGKILL, while it trains."""

from __future__ import annotations

import os
import signal

import pytest

from dbelief.registry import embedded_available

from .conftest import Operator, child, descendants

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: mortal
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, warm_start: null}
limits: {epochs: 24}
shards: 2
replicas: 2
snapshots: {every_s: 1}
"""


@pytest.mark.skipif(not embedded_available(), reason="without an embedded registry a coordinator's death is the end")
def test_job_survives_one_kill_of_every_role(operator: Operator) -> None:
    operator.compute_wait_s = 0.005
    train = operator.start("train", "train", str(operator.write_job(JOB)))
    launcher = train.process.pid
    for turn, words in enumerate(("ps-1", "dbelief coordinator", "valkey-server", "worker-0"), start=1):
        operator.until_samples("mortal", 4_000 * turn)
        os.kill(child(launcher, words), signal.SIGKILL)
        train.said(rf"({words.split()[-1].replace('valkey-server', 'registry')} was killed by SIGKILL; started again)")
    assert train.ends() == 0
    summary = operator.summary("mortal")
    assert set(summary["died"]) >= {"shard 1", "coordinator", "replica 0"}
    assert summary["samples"] == 24 * 1257
    assert summary["test_accuracy"] > 0.94
    log = train.log.read_text()
    assert "failed during the run: " in log
    assert f"({summary['pushes_lost']} pushes lost, " in log
    assert not descendants(launcher)
