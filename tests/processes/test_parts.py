"""Replicas that keep to cores of their own: where they run, and that it changes no bit."""

from __future__ import annotations

import os

import pytest

from .conftest import Operator, parameters

CORES = sorted(os.sched_getaffinity(0))[:2]
pytestmark = [pytest.mark.processes, pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")]

JOB = """
name: parts
model: {{layers: [{{dense: 16}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: sync-sgd, batch: 16, rule: {{name: momentum, rate: 0.05}}, lease: 160}}
limits: {{epochs: {epochs}}}
shards: 1
replicas: {replicas}
pin_cores: {pinned}
"""


def where(process: int) -> set[frozenset[int]]:
    """Which cores each thread of a process may run on."""
    return {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir(f"/proc/{process}/task")}


@pytest.mark.long
def test_worker_keeps_to_its_given_cores(operator: Operator) -> None:
    job = operator.write_job(JOB.format(epochs=200, replicas=2, pinned="false"))
    coordinator, address = operator.coordinator(job)
    operator.start("ps-0", "ps", "--coordinator", address)
    given = [operator.start(f"w-{n}", "worker", "--coordinator", address, "--cores", str(n)) for n in CORES]
    operator.until_samples("parts", 1_000)
    assert [where(role.process.pid) for role in given] == [{frozenset({core})} for core in CORES]
    coordinator.process.terminate()
    assert coordinator.ends() == 0


@pytest.mark.long
def test_launcher_divides_cores_without_changing_the_model(operator: Operator) -> None:
    models = []
    shares = [CORES[:1], CORES[1:]]
    for pinned in ("true", "false"):
        job = operator.write_job(JOB.format(epochs=3, replicas=2, pinned=pinned))
        only = ("taskset", "--cpu-list", ",".join(map(str, CORES)))
        operator.trained("parts", job, launcher=only)
        run = operator.folder / "runs" / "parts"
        models.append(parameters(run))
        for number, cores in enumerate(shares):
            log = (run / "logs" / f"worker-{number}.log").read_text()
            assert (f"on core {cores[0]} only" in log) == (pinned == "true"), log
    assert models[0] == models[1]


def test_more_parts_than_cores_are_refused(operator: Operator) -> None:
    job = operator.write_job(JOB.format(epochs=3, replicas=1000, pinned="true"))
    train = operator.start("train", "train", str(job), "--quiet")
    assert train.ends() == 2
    assert "1000 parts cannot each have a core of their own: there are " in train.log.read_text()
    assert not (operator.folder / "runs").exists()
