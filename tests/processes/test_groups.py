"""Workers that exchange among themselves, as real processes: some die, some are stopped, some come."""

from __future__ import annotations

import signal

import pytest

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: together
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{{strategy}, batch: 8, lease: 40}}
limits: {{epochs: {epochs}}}
deadlines: {{beat_s: 5}}
snapshots: {{every_s: 1}}
evaluate: {{every: 1000000}}
shards: 2
replicas: {replicas}
"""
SGD = "name: sync-sgd, rule: {name: momentum, rate: 0.05}, reduction: {chunk: 500}"
EASGD = "name: sync-easgd, form: 3, rate: 0.1, reduction: {way: ring}"
EPOCH = 1257
COMPUTE_WAIT_S = 0.02


@pytest.mark.long
@pytest.mark.parametrize("strategy", [SGD, EASGD], ids=["sgd", "easgd"])
def test_a_worker_is_killed_and_another_joins(strategy: str, operator: Operator) -> None:
    """One of three is killed, and another joins; a shard is killed as well."""
    operator.compute_wait_s = COMPUTE_WAIT_S
    coordinator, address = operator.coordinator(operator.write_job(JOB.format(strategy=strategy, epochs=8, replicas=3)))
    shards = operator.members(address, 2, 0)
    workers = operator.members(address, 0, 3)
    operator.until_samples("together", 500)
    workers[0].kill()  # it has number 0 or another: whoever writes to the shards may be the one
    operator.until_died("together")
    seen = len(operator.events("together"))
    operator.until_samples("together", 1_500, seen)
    workers.append(operator.start("worker-again", "worker", "--coordinator", address))
    operator.until_joined("together", 4)
    operator.until_samples("together", 3_000, seen)
    shards[1].kill()
    operator.start("ps-again", "ps", "--coordinator", address)
    assert coordinator.ends() == 0, coordinator.log.read_text()
    assert [worker.ends() for worker in workers[1:]] == [0, 0, 0]
    summary = operator.summary("together")
    assert summary["samples"] == 8 * EPOCH
    assert summary["pushes_trained_twice"] == 0
    assert summary["test_accuracy"] > 0.94


@pytest.mark.long
def test_stopped_worker_blocks_no_other(operator: Operator) -> None:
    operator.compute_wait_s = COMPUTE_WAIT_S
    coordinator, address = operator.coordinator(operator.write_job(JOB.format(strategy=SGD, epochs=5, replicas=2)))
    operator.members(address, 2, 0)
    first, second = operator.members(address, 0, 2)
    operator.until_samples("together", 500)
    first.process.send_signal(signal.SIGSTOP)
    operator.until_died("together")
    operator.until_samples("together", 1_500, len(operator.events("together")))
    first.process.send_signal(signal.SIGCONT)
    assert coordinator.ends() == 0, coordinator.log.read_text()
    assert second.ends() == 0
    assert first.ends() != 0
    assert "removed this member" in first.log.read_text()
    assert operator.summary("together")["samples"] == 5 * EPOCH
