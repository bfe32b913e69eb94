"""Asynchronous SGD and elastic averaging by real processes: they learn, and lose nothing with a worker or a shard."""

from __future__ import annotations

import pytest

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: elastic
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{{strategy}, batch: 16}}
limits: {{epochs: {epochs}}}
deadlines: {{beat_s: 5}}
snapshots: {{every_s: 1}}
shards: 2
replicas: {replicas}
"""
SGD = ["name: async-sgd, rate: 0.1", "name: async-msgd, rate: 0.01", "name: hogwild-sgd, rate: 0.1"]
EASGD = "name: async-easgd, rate: 0.1, period: 4"
MEASGD = "name: async-measgd, rate: 0.01, mu: 0.9, nesterov: true, period: 4"
SYNC = "name: sync-easgd, rate: 0.1"
TURNS = "name: easgd, rate: 0.3"
HOGWILD = "name: hogwild-easgd, rate: 0.1"


@pytest.mark.long
@pytest.mark.parametrize("strategy", [*SGD, EASGD, MEASGD, SYNC, HOGWILD])
def test_it_learns(strategy: str, operator: Operator) -> None:
    job = operator.write_job(JOB.format(strategy=strategy, epochs=20, replicas=3))
    summary = operator.trained("elastic", job)
    assert summary["samples"] == 20 * 1257
    assert summary["test_accuracy"] > 0.94
    assert summary["pushes_lost"] == 0
    assert strategy not in SGD or summary["staleness_mean"] > 0


@pytest.mark.long
def test_a_worker_and_a_shard_may_die(operator: Operator) -> None:
    operator.compute_wait_s = 0.01
    coordinator, address = operator.coordinator(operator.write_job(JOB.format(strategy=EASGD, epochs=40, replicas=2)))
    shards = operator.members(address, 2, 0)
    workers = operator.members(address, 0, 2)
    operator.until_samples("elastic", 4_000)
    workers[0].kill()
    operator.until_died("elastic")
    operator.until_samples("elastic", 8_000)
    shards[1].kill()
    operator.start("ps-again", "ps", "--coordinator", address)
    assert coordinator.ends() == 0
    assert workers[1].ends() == 0
    summary = operator.summary("elastic")
    assert summary["samples"] == 40 * 1257
    assert summary["test_accuracy"] > 0.94


@pytest.mark.long
def test_the_turns_of_a_dead_worker_pass(operator: Operator) -> None:
    coordinator, address = operator.coordinator(operator.write_job(JOB.format(strategy=TURNS, epochs=4, replicas=3)))
    operator.members(address, 2, 0)
    workers = operator.members(address, 0, 3)
    operator.until_samples("elastic", 500)
    workers[1].kill()
    assert coordinator.ends() == 0
    assert [workers[0].ends(), workers[2].ends()] == [0, 0]
    summary = operator.summary("elastic")
    assert summary["samples"] == 4 * 1257
    assert summary["pushes_trained_twice"] <= 1
    assert summary["members_lost"] == 1
    assert summary["test_accuracy"] > 0.9


@pytest.mark.long
def test_turns_go_on_where_a_shard_came_back(operator: Operator) -> None:
    coordinator, address = operator.coordinator(operator.write_job(JOB.format(strategy=TURNS, epochs=8, replicas=2)))
    shards = operator.members(address, 2, 0)
    workers = operator.members(address, 0, 2)
    operator.until_samples("elastic", 300)
    shards[1].kill()
    operator.start("ps-again", "ps", "--coordinator", address)
    assert coordinator.ends() == 0
    assert [worker.ends() for worker in workers] == [0, 0]
    summary = operator.summary("elastic")
    assert summary["samples"] == 8 * 1257
    assert summary["pushes_lost"] > 0
    assert summary["test_accuracy"] > 0.9
