"""Training by every codec with real processes: it learns, and the summary has the bytes on the wire."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire

from .conftest import Operator, parameters, wait_for

pytestmark = pytest.mark.processes

JOB = """
name: coded
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{{strategy}, batch: 16}}
wire: {{push: {push}, pull: {pull}}}
limits: {{epochs: {epochs}}}
deadlines: {{beat_s: {beat_s}}}
snapshots: {{every_s: 1}}
shards: 2
replicas: 2
"""
DOWNPOUR = "name: downpour, rule: {name: adagrad, rate: 0.05}"
SGD = "name: async-sgd, rate: 0.2"
DILOCO = "name: diloco, steps: 8, inner: {name: sgd, rate: 0.1}"
WITHOUT = """
from dbelief.job import Job
Job.pulls_differences = property(lambda job: False)
"""
EASGD = "name: async-easgd, rate: 0.1, period: 4"


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "push", "pull", "share", "least"),
    [
        (DOWNPOUR, "fp32", "fp32", 1.0, 0.94),
        (DOWNPOUR, "bf16", "bf16", 0.5, 0.94),
        (DOWNPOUR, "fp16", "fp16", 0.51, 0.94),
        (DOWNPOUR, "int4", "bf16", 0.15, 0.94),
        (DOWNPOUR, "one-bit", "fp32", 0.05, 0.94),
        (SGD, "top-k", "fp32", 0.02, 0.94),
        (SGD, "one-bit", "bf16", 0.05, 0.94),
        (SGD, "{name: threshold, tau: 1.0e-3}", "fp32", 0.9, 0.92),
        (EASGD, "bf16", "bf16", 0.5, 0.94),
        (EASGD, "fp16", "fp16", 0.51, 0.94),
    ],
)
def test_it_learns(strategy: str, push: str, pull: str, share: float, least: float, operator: Operator) -> None:
    """`least`: accuracy. With the threshold it was 0.942 to 0.953 in six runs, and once 0.939; with the others 0.98."""
    job = operator.write_job(JOB.format(strategy=strategy, push=push, pull=pull, epochs=30, beat_s=60))
    summary = operator.trained("coded", job, "--no-shared-memory")
    assert summary["samples"] == 30 * 1257
    assert summary["test_accuracy"] > least
    sent = sum(row["sent"] for row in summary["bytes_per_replica"].values())
    whole = 4 * summary["parameters"] * summary["pushes"]
    assert 0 < sent <= share * whole + 4 * summary["parameters"], "with initial values as they are"
    assert (summary["residual_lost"] > 0) == ("one-bit" in push or "tau" in push or "int" in push or push == "top-k")


@pytest.mark.long
def test_differences_of_bf16_have_its_bits(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica is sequential: the same parameters from fewer bytes, where processes fetch differences or may not."""
    job = operator.write_job(JOB.format(strategy=DILOCO, push="fp32", pull="bf16", epochs=2, beat_s=60))
    with_ = operator.trained("with", job, "--set", "name=with", "--set", "replicas=1")
    (operator.folder / "sitecustomize.py").write_text(WITHOUT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(operator.folder), os.environ.get("PYTHONPATH", "")]))
    without = operator.trained("without", job, "--set", "name=without", "--set", "replicas=1")
    assert parameters(operator.folder / "runs" / "with") == parameters(operator.folder / "runs" / "without")
    received = [sum(row["received"] for row in one["bytes_per_replica"].values()) for one in (with_, without)]
    assert received[0] < 0.85 * received[1]


@pytest.mark.long
def test_residual_of_a_dead_worker_is_reported(operator: Operator) -> None:
    job = operator.write_job(JOB.format(strategy=DOWNPOUR, push="one-bit", pull="fp16", epochs=40, beat_s=4))
    operator.compute_wait_s = 0.01
    coordinator, address = operator.coordinator(job)
    operator.members(address, 2, 0)
    workers = operator.members(address, 0, 2)
    _wait_for_reports(address, 2)  # a worker that dies before its first report has no residual that is known
    workers[0].kill()
    assert coordinator.ends() == 0
    assert workers[1].ends() == 0
    (died,) = [event for event in operator.events("coded", "member") if event["what"] == "died"]
    summary = operator.summary("coded")
    assert 0 < died["residual"] < summary["residual_lost"]
    assert summary["samples"] == 40 * 1257
    assert summary["test_accuracy"] > 0.94


def _wait_for_reports(address: str, replicas: int) -> None:
    """Wait until the coordinator has a report of trained samples from so many replicas."""

    def reported() -> int:
        return sum(m.role == wire.ROLE_REPLICA and m.samples > 0 for m in client.status().members)

    with closing(CoordinatorClient(address)) as client:
        wait_for(lambda: reported() >= replicas, f"a report from each of {replicas} replicas")
