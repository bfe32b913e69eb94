"""Roles started one by one, as an operator would; workers that come late, and workers that die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.cli.inspect_run import evaluate_run
from tests.faults.invariants import MARK, marked_processes

from .conftest import Operator, a_free_address, descendants, redis_server, wait_for

pytestmark = pytest.mark.processes

DIGITS = """
name: hand
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}, {strategy}}}
limits: {{{limits}}}
shards: {shards}
replicas: {replicas}
deadlines: {{beat_s: 4}}
"""
FLOOR = 0.9
"""Test accuracy that any of these jobs reaches by far; guessing gives 0.1."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    with redis_server(tmp_path) as url:
        yield url


def test_every_role_by_hand(redis: str, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(operator.folder))
    job = operator.write_job(
        DIGITS.format(strategy="warm_start: {samples: 640}", limits="epochs: 6", shards=3, replicas=2)
    )
    coordinator, address = operator.coordinator(job, "--registry", redis, "--metrics", "127.0.0.1:0")
    members = operator.members(address, 3, 2)
    assert coordinator.ends() == 0
    assert [member.ends() for member in members] == [0] * 5
    summary = operator.summary("hand")
    assert summary["test_accuracy"] >= FLOOR
    assert sum(summary["samples_per_replica"].values()) == summary["samples"] == 6 * 1_257
    assert evaluate_run(operator.folder / "runs" / "hand", "test")["accuracy"] == summary["test_accuracy"]
    assert marked_processes(str(operator.folder)) == {}  # and with them all that listens


@pytest.mark.long
def test_staleness_bound_holds_with_one_replica_killed(operator: Operator) -> None:
    """From two clocks behind to three ahead: each of the others pushes at most five times during one of ours."""
    job = operator.write_job(
        DIGITS.format(strategy="staleness: 2, warm_start: null", limits="epochs: 8", shards=2, replicas=3)
    )
    operator.compute_wait_s = 0.02  # a fast machine would be done before the heartbeat's deadline
    coordinator, address = operator.coordinator(job)
    members = operator.members(address, 2, 3)
    operator.until_joined("hand", replicas=3)
    operator.until_samples("hand", 3_000)
    members[-1].kill()
    assert coordinator.ends() == 0
    assert [member.ends() for member in members[:-1]] == [0] * 4
    summary = operator.summary("hand")
    assert summary["members_lost"] == 1
    assert summary["pushes_trained_twice"] <= 1
    assert summary["samples"] == 8 * 1_257
    assert 0 < summary["staleness_mean"] <= 2 * 5
    assert summary["test_accuracy"] >= FLOOR
    (died,) = [e for e in operator.events("hand", "member") if e["what"] == "died"]
    assert "no heartbeat for" in died["reason"]


def test_signal_ends_the_job_cleanly_and_resume_continues(operator: Operator) -> None:
    job = operator.write_job(DIGITS.format(strategy="warm_start: null", limits="epochs: 4", shards=2, replicas=2))
    operator.compute_wait_s = 0.02
    train = operator.start("train", "train", str(job))
    operator.until_samples("hand", 500)
    train.process.send_signal(signal.SIGINT)
    assert train.ends() == 130
    stopped = operator.summary("hand")
    assert stopped["reason"] == "stopped by Ctrl-C"
    assert 500 <= stopped["samples"] < 4 * 1_257
    operator.compute_wait_s = 0.0
    resumed = operator.start("resumed", "train", str(job), "--resume")
    assert resumed.ends() == 0
    summary = operator.summary("hand")
    assert summary["samples"] == 4 * 1_257
    assert summary["pushes"] == summary["steps"] == 4 * 79
    assert summary["test_accuracy"] >= FLOOR


def test_processes_end_with_their_launcher(operator: Operator) -> None:
    job = operator.write_job(DIGITS.format(strategy="warm_start: null", limits="wall_s: 60", shards=2, replicas=2))
    operator.compute_wait_s = 0.02
    train = operator.start("train", "train", str(job))
    operator.until_samples("hand", 500)
    children = descendants(train.process.pid)
    assert len(children) >= 6  # registry, coordinator, shards, workers
    train.kill()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children), "their end")


@pytest.mark.long
def test_once_does_not_run_a_finished_job_again(redis: str, operator: Operator) -> None:
    job = operator.write_job(
        DIGITS.format(strategy="warm_start: {samples: 640}", limits="samples: 640", shards=1, replicas=1)
    )
    coordinator, address = operator.coordinator(job, "--registry", redis, "--once")
    members = operator.members(address, 1, 1)
    assert [role.ends() for role in (coordinator, *members)] == [0, 0, 0]
    again = operator.start("again", "coordinator", str(job), "--listen", "127.0.0.1:0", "--registry", redis, "--once")
    assert again.ends() == 0
    assert again.said(r"(job hand has already ended \(done: 640 samples trained\), and runs once only)")
    assert operator.summary("hand")["samples"] == 640


BATCH = """
name: hand
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: sandblaster, portion: 64, bundle: 3, l2: 0.001, iterations: 60, ordered: true}
limits: {epochs: 500}
evaluate: {keep: last}
shards: 2
replicas: 2
"""


@pytest.mark.long
def test_standby_coordinator_continues_with_same_iterations(redis: str, operator: Operator) -> None:
    job = operator.write_job(BATCH)
    address = a_free_address()
    facts = ("iteration", "loss", "gradient_norm", "step", "evaluations")

    found = []
    for disturbed in (False, True):
        again = ("--registry", redis, "--fresh")
        first = operator.start(f"first-{disturbed}", "coordinator", str(job), "--listen", address, *again)
        first.said(r"(leader epoch)")
        second = operator.start(
            f"second-{disturbed}", "coordinator", str(job), "--listen", address, *again[:2], "--once"
        )
        second.said(r"(standing by)")
        members = operator.members(address, 2, 2)
        if disturbed:
            operator.until("hand", "iteration", times=10)
            first.kill()
            second.said(r"(taking over from another coordinator)")
        assert (second if disturbed else first).ends() == 0
        for member in members:
            assert member.ends() == 0
        if not disturbed:
            second.said(r"(has already ended)")
        found.append([{fact: event[fact] for fact in facts} for event in operator.events("hand", "iteration")])
    undisturbed, taken_over = found
    assert [row["iteration"] for row in undisturbed] == list(range(1, 61))
    missing = [row for row in undisturbed if row not in taken_over]
    assert len(missing) <= 1, "its event may die with the coordinator; the iteration does not"
    assert [row for row in undisturbed if row not in missing] == taken_over
