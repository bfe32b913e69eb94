"""A shard and its follower, real processes: each is killed once while the job trains, and no push is lost by it."""

from __future__ import annotations

import pytest

from .conftest import Operator, Role

pytestmark = pytest.mark.processes

JOB = """
name: replicated
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: STRATEGY, batch: 16, RULE, warm_start: null}
limits: {epochs: 10}
shards: 1
replication: 2
replicas: 2
snapshots: {every_s: null}
deadlines: {beat_s: 4, lease_s: 2}
"""
DOWNPOUR = JOB.replace("STRATEGY", "downpour").replace("RULE", "rule: {name: adagrad, rate: 0.03}")
ELASTIC = (
    JOB.replace("STRATEGY", "async-easgd").replace("RULE", "rate: 0.1, rho: 0.3").replace(", warm_start: null", "")
)


@pytest.mark.parametrize(
    "job", [pytest.param(DOWNPOUR, marks=pytest.mark.long), ELASTIC], ids=["downpour", "async-easgd"]
)
def test_leader_and_follower_are_killed_in_turn(job: str, operator: Operator) -> None:
    operator.compute_wait_s = 0.02
    coordinator, address = operator.coordinator(operator.write_job(job))

    def shard(name: str) -> Role:
        role = operator.start(name, "ps", "--coordinator", address)
        role.said("(shard 0 of job)")
        return role

    first = shard("ps-first")  # leads
    workers = [operator.start(f"worker-{n}", "worker", "--coordinator", address) for n in range(2)]
    second = shard("ps-second")
    operator.until("replicated", "followed")
    operator.until_samples("replicated", 1_000)
    first.kill()
    operator.until("replicated", "promoted")
    third = shard("ps-third")
    operator.until("replicated", "followed", times=2)
    third.kill()
    operator.until("replicated", "unfollowed")
    samples = max(row["samples"] for row in operator.events("replicated", "progress"))
    operator.until_samples("replicated", samples + 500)
    assert [role.ends() for role in (coordinator, second, *workers)] == [0] * 4
    summary = operator.summary("replicated")
    assert (summary["pushes_lost"], summary["pushes_trained_twice"]) == (0, 0)
    assert summary["samples"] == 10 * 1_257
    assert summary["test_accuracy"] >= 0.9
    assert not operator.events("replicated", "shard_back"), "no set was loaded"
