"""Whole jobs on a real Slurm cluster on this host, and the cost of a node's death: `make test-slurm`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dbelief.launch.processes import soon
from tests.deploy.dashboard import DEPLOY
from tests.deploy.digits_job import LONG as OFTEN
from tests.deploy.digits_job import DigitsJob, ends_well, scaled_stopped_and_resumed
from tests.deploy.slurm_cluster import SlurmCluster, missing
from tests.processes.conftest import wait_for

BATCH = DEPLOY / "slurm" / "dbelief.sbatch"
# 1,257 samples an epoch; a snapshot set every second, so that little is trained again.
JOB = """
name: digits
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}}}
limits: {{epochs: {epochs}}}
shards: {shards}
replicas: 1
snapshots: {{every_s: 1}}
deadlines: {{join_s: 400}}
"""
EPOCH = 1257
SHORT, LONG = 6, 80
FLOOR = 0.94
"""Test accuracy that the digits reach with any seed."""
END_S = 420.0
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


class Batch:
    """One batch job, and the run that it makes."""

    def __init__(self, cluster: SlurmCluster, folder: Path, number: str) -> None:
        self.cluster, self.folder, self.number = cluster, folder, number
        self.run = folder / "runs" / "digits"

    def shown(self, field: str) -> str:
        """A field of `scontrol show job`."""
        found = re.search(rf"\b{field}=(\S+)", self.cluster.slurm("scontrol", "show", "job", self.number))
        return found[1] if found else ""

    def told(self) -> str:
        """The job's output, and the logs of its members."""
        logs = [self.folder / f"slurm-{self.number}.out", *sorted((self.run / "logs").glob("*.log"))]
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in logs if log.exists())

    def output(self) -> str:
        log = self.folder / f"slurm-{self.number}.out"
        return log.read_text() if log.exists() else ""

    def trained(self) -> int:
        """Samples so far, as the newest event tells."""
        events = self.run / "events.jsonl"
        lines = events.read_text().splitlines() if events.exists() else []
        counts = [json.loads(line)["samples"] for line in lines if '"progress"' in line and line.endswith("}")]
        return int(counts[-1]) if counts else 0

    def wait_trained(self, samples: int) -> None:
        wait_for(lambda: self.trained() > samples or self._over(), f"{samples} samples", END_S)
        assert not self._over(), self.told()

    def sets(self) -> list[Path]:
        """Snapshot sets that are complete."""
        return [*self.run.glob("snapshots/*/set.json")]

    def node_of(self, member: str) -> str:
        """Where a member's step runs."""
        steps = self.cluster.slurm("squeue", "--steps", "--noheader", f"--jobs={self.number}", "--format=%j %N")
        return dict(line.split() for line in steps.splitlines())[member]

    def ends(self) -> str:
        """Wait for its end; its state and exit code, as Slurm tells them."""
        wait_for(self._over, f"the end of job {self.number}", END_S)
        return f"{self.shown('JobState')} {self.shown('ExitCode')}"

    def succeeds(self, samples: int) -> dict[str, Any]:
        """Wait for its end, with all samples, the accuracy, and nothing left on any node; its summary."""
        assert self.ends() == "COMPLETED 0:0", self.told()
        summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        assert summary["samples"] == samples, summary
        assert summary["test_accuracy"] > FLOOR, summary
        wait_for(lambda: not any(map(self.cluster.on_node, self.cluster.nodes)), "all steps to end")
        assert not (self.run / "credentials").exists(), "credentials stay behind"
        print(*re.findall(r"^.*(?:\bnode |requeued).*$", self.output(), re.MULTILINE), sep="\n")
        print(f"test accuracy {summary['test_accuracy']:.4f}, {summary['samples']:,} samples, died: {summary['died']}")
        return summary

    def _over(self) -> bool:
        return self.shown("JobState") in OVER


Submit = Callable[..., Batch]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jobs are submitted; `dbelief` is on the path."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "dbelief").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m dbelief "$@"\n')
    (tmp_path / "bin" / "dbelief").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "jobs").mkdir()
    return tmp_path / "jobs"


@pytest.fixture
def start(tmp_path: Path, folder: Path) -> Iterator[Callable[..., SlurmCluster]]:
    """Start a cluster; it ends with the test."""
    if missing():
        pytest.skip(missing())
    clusters: list[SlurmCluster] = []

    def start(nodes: int, cpus: int) -> SlurmCluster:
        clusters.append(SlurmCluster(tmp_path / "cluster", nodes, cpus).__enter__())
        return clusters[-1]

    yield start
    for cluster in clusters:
        cluster.__exit__(None, None, None)


@pytest.fixture
def outside(start: Callable[..., SlurmCluster], folder: Path) -> Iterator[DigitsJob]:
    """Commands on a computer that is none of the two nodes."""
    made = DigitsJob(folder, ["--on", "slurm", "--sbatch", "--nodes=2"], {**os.environ, **start(2, 4).environment})
    yield made
    made.end()


def test_by_one_word(outside: DigitsJob) -> None:
    said = ends_well(outside.train(SHORT), 200)
    assert re.search(r"Slurm job 1: submitted\n(.*\n)*Slurm job 1: completed", said), said
    assert outside.summary["samples"] == SHORT * EPOCH
    assert outside.summary["test_accuracy"] > 0.9
    failed = outside.train(SHORT, "--set", "strategy.rule.rate=1e30")
    _, said = failed.communicate(timeout=200)
    assert failed.returncode == 1, said


def test_scaled_stopped_and_resumed_by_one_word(outside: DigitsJob) -> None:
    ended = scaled_stopped_and_resumed(outside)
    assert ended["epochs"] > ended["epochs_before"]
    assert ended["test_accuracy"] > 0.9


def test_ctrl_c_stops_the_batch_job(outside: DigitsJob) -> None:
    training = outside.train(OFTEN)
    soon(lambda: outside.trains, "it does not train")
    training.send_signal(signal.SIGINT)
    _, said = training.communicate(timeout=100)
    assert training.returncode == 130, said
    assert "Ctrl-C: Slurm job 1: it takes a last snapshot set, and ends" in said
    assert outside.summary["reason"].startswith("stopped by SIGTERM")


def submit(
    cluster: SlurmCluster, folder: Path, *options: str, epochs: int = SHORT, shards: int = 1, **variables: str
) -> Batch:
    """Submit the batch script as a person does."""
    (folder / "digits.yaml").write_text(JOB.format(epochs=epochs, shards=shards))
    cluster.environment |= {"DBELIEF_JOB": "digits.yaml", **variables}
    told = cluster.slurm("sbatch", *options, str(BATCH), cwd=folder)
    return Batch(cluster, folder, told.split()[-1])


@pytest.mark.parametrize(("nodes", "cpus"), [(2, 1), (2, 2), (4, 1), (4, 2), (6, 1), (6, 2)])
def test_starts(start: Callable[..., SlurmCluster], folder: Path, nodes: int, cpus: int) -> None:
    """Members fill the allocation, and every start ends with what the job asked for; `DBELIEF_STARTS` of them."""
    cluster = start(nodes, cpus)
    tasks = nodes * cpus
    few = "1" if tasks < 3 else ""
    for _ in range(int(os.environ.get("DBELIEF_STARTS", "1"))):
        shutil.rmtree(folder / "runs", ignore_errors=True)
        batch = submit(cluster, folder, f"--nodes={nodes}", f"--ntasks={tasks}", DBELIEF_WORKERS=few)
        summary = batch.succeeds(SHORT * EPOCH)
        assert summary["replicas"] == max(1, tasks - 2)
        print(f"{nodes} nodes of {cpus} CPUs, {summary['replicas']} workers: ended after {summary['wall_s']:.0f} s")


def test_a_workers_node_dies(start: Callable[..., SlurmCluster], folder: Path) -> None:
    cluster = start(4, 1)
    batch = submit(cluster, folder, "--nodes=4", "--ntasks=4", epochs=LONG)
    batch.wait_trained(4 * EPOCH)
    node = batch.node_of("worker-1")
    assert node not in (batch.node_of("ps-0"), cluster.nodes[0])
    cluster.kill(node)
    summary = batch.succeeds(LONG * EPOCH)
    assert any("replica 1" in one for one in summary["died"]), summary["died"]
    assert summary["pushes_lost"] == 0, "a worker's node costs its own members only"


def test_a_shards_node_dies(start: Callable[..., SlurmCluster], folder: Path) -> None:
    cluster = start(4, 1)
    batch = submit(cluster, folder, "--nodes=4", "--ntasks=4", epochs=LONG)
    batch.wait_trained(4 * EPOCH)
    wait_for(batch.sets, "a snapshot set")
    node = batch.node_of("ps-0")
    assert node != cluster.nodes[0]
    cluster.kill(node)
    summary = batch.succeeds(LONG * EPOCH)
    assert any("shard 0" in one for one in summary["died"]), summary["died"]
    assert f"ps-0 was silent on node {node}" in batch.output() or f"lost with node {node}" in batch.output()


def test_follower_takes_over_when_its_node_dies(start: Callable[..., SlurmCluster], folder: Path) -> None:
    cluster = start(4, 1)
    batch = submit(cluster, folder, "--nodes=4", "--ntasks=4", epochs=LONG, DBELIEF_SET="replication=2")
    batch.wait_trained(4 * EPOCH)
    cluster.kill(batch.node_of("ps-0"))
    summary = batch.succeeds(LONG * EPOCH)
    assert summary["pushes_lost"] == 0, "nothing that was acknowledged is lost"


def test_requeued_job_resumes_from_its_newest_set(start: Callable[..., SlurmCluster], folder: Path) -> None:
    cluster = start(2, 2)
    batch = submit(cluster, folder, "--nodes=2", "--ntasks=4", epochs=LONG)
    batch.wait_trained(8 * EPOCH)
    wait_for(batch.sets, "a snapshot set")
    cluster.slurm("scontrol", "requeue", batch.number)
    batch.succeeds(LONG * EPOCH)
    assert "requeued: going on from the newest snapshot set" in batch.output()
    assert batch.shown("Restarts") == "1"


def test_new_job_resumes_a_cancelled_one(start: Callable[..., SlurmCluster], folder: Path) -> None:
    cluster = start(2, 2)
    first = submit(cluster, folder, "--nodes=2", "--ntasks=4", epochs=LONG)
    first.wait_trained(8 * EPOCH)
    wait_for(first.sets, "a snapshot set")
    cluster.slurm("scancel", first.number)
    assert first.ends().startswith("CANCELLED")
    wait_for(lambda: not any(map(cluster.on_node, cluster.nodes)), "all steps to end")
    second = submit(cluster, folder, "--nodes=2", "--ntasks=4", epochs=LONG, DBELIEF_RESUME="1")
    second.succeeds(LONG * EPOCH)
    assert (folder / "runs" / "digits.1").exists() is False, "the run is the same"


def test_a_job_whose_time_is_up_stops_with_a_set(start: Callable[..., SlurmCluster], folder: Path) -> None:
    cluster = start(2, 2)
    batch = submit(cluster, folder, "--nodes=2", "--ntasks=4", epochs=5_000)
    batch.wait_trained(4 * EPOCH)
    cluster.slurm("scancel", "--batch", "--signal=TERM", batch.number)
    assert batch.ends() == "COMPLETED 0:0", batch.told()
    assert batch.sets()


def test_the_coordinators_node_dies(start: Callable[..., SlurmCluster], folder: Path) -> None:
    """The guard requeues the job, and it goes on from its newest set on nodes that are there."""
    cluster = start(4, 1)
    batch = submit(cluster, folder, "--nodes=3", "--ntasks=3", epochs=LONG)
    batch.wait_trained(8 * EPOCH)
    wait_for(batch.sets, "a snapshot set")
    cluster.kill(cluster.nodes[0])
    wait_for(lambda: batch.shown("Restarts") == "1", "the job to be requeued", END_S)
    assert f"node {cluster.nodes[0]} of the coordinator failed" in batch.output()
    summary = batch.succeeds(LONG * EPOCH)
    assert batch.shown("BatchHost") != cluster.nodes[0]
    assert "requeued: going on from the newest snapshot set" in batch.output(), summary
