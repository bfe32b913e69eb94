"""Processes that outlive their job, for controllers that restart any exited process; leaders that hand over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.errors import UNFINISHED, DbeliefError
from dbelief.registry.embedded import EmbeddedRegistry
from dbelief.rpc.server.health import check_serving

from .conftest import Operator, Role, a_free_address, wait_for

pytestmark = pytest.mark.processes

JOB = """
name: {name}
model: {{layers: [{{dense: 16}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}}}
limits: {{epochs: {epochs}}}
shards: 1
replicas: 1
deadlines: {{beat_s: 4}}
"""
LEADS = "dbelief.v1.Coordinator"


@pytest.fixture
def address() -> str:
    return a_free_address()


def _write(folder: Path, name: str, epochs: int) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(JOB.format(name=name, epochs=epochs))
    return str(path)


def _terminated(*roles: Role) -> list[int]:
    """Exit codes after SIGTERM."""
    for role in roles:
        role.process.send_signal(signal.SIGTERM)
    return [role.ends() for role in roles]


@pytest.mark.long
def test_members_outlive_jobs_and_coordinator_keeps_status(operator: Operator, address: str) -> None:
    waits = ("--at-end", "wait", "--metrics", "127.0.0.1:0")
    members = [
        operator.start(role, role, "--coordinator", address, *waits) for role in ("ps", "worker")
    ]  # before there is anyone to join
    for name in ("first", "second"):
        coordinator = operator.start(name, "coordinator", _write(operator.folder, name, 4), "--listen", address, *waits)
        coordinator.said(rf"(job {name} done)")
        for member in members:
            member.said(rf"(?s)of job {name} ends: .*(waiting for a job)")
        check_serving(address, 5.0, LEADS)
        assert [role.process.poll() for role in (coordinator, *members)] == [None] * 3
        assert operator.summary(name)["test_accuracy"] > 0.8
        assert _terminated(coordinator) == [0]
    assert _terminated(*members) == [UNFINISHED, UNFINISHED], "a scheduler starts others"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    with EmbeddedRegistry(tmp_path / "registry") as server:
        yield server.url


def _healthy(address: str, service: str = "") -> bool:
    try:
        check_serving(address, 1.0, service)
    except DbeliefError:
        return False
    return True


def test_leaving_coordinator_hands_over_to_the_standby(operator: Operator, registry: str, address: str) -> None:
    port = address.rpartition(":")[2]
    operator.compute_wait_s = 0.005
    job = _write(operator.folder, "handed", 300)
    options = ("--registry", registry, "--on-signal", "leave", "--at-end", "wait", "--once")
    first = operator.start("first", "coordinator", job, "--listen", "127.0.0.1:0", *options)
    led_at = first.said(r" on (127\.0\.0\.1:\d+),")
    second = operator.start("second", "coordinator", job, "--listen", f"0.0.0.0:{port}", "--insecure", *options)
    second.said(r"(standing by)")
    wait_for(lambda: _healthy(address), "a sign of life of the one that stands by")
    assert not _healthy(address, LEADS)
    assert _healthy(led_at, LEADS)
    for member in operator.members(led_at, 1, 1):
        member.said(r"(of job handed)")
    operator.until_samples("handed", 2_000)
    assert _terminated(first) == [UNFINISHED]
    first.said(r"(leaving job handed \(ready\) to the next coordinator)")
    second.said(r"(taking over from another coordinator)")
    wait_for(lambda: _healthy(address, LEADS), "the one that stood by to lead")
    assert operator.events("handed")[-1]["event"] != "end"
    assert _terminated(second) == [UNFINISHED]


@pytest.mark.long
def test_coordinator_of_an_ended_job_does_not_lead(operator: Operator, registry: str, address: str) -> None:
    job = _write(operator.folder, "over", 2)
    options = ("--registry", registry, "--once")
    first, led_at = operator.coordinator(Path(job), *options)
    for member in (first, *operator.members(led_at, 1, 1)):
        assert member.ends() == 0
    late = operator.start("late", "coordinator", job, "--listen", address, *options, "--at-end", "wait")
    late.said(r"(has already ended)")
    wait_for(lambda: _healthy(address), "the late coordinator to be healthy")
    assert not _healthy(address, LEADS)
    assert _terminated(late) == [0]


def test_leave_on_signal_needs_a_shared_registry(operator: Operator) -> None:
    role = operator.start("alone", "coordinator", _write(operator.folder, "alone", 1), "--on-signal", "leave")
    role.said(r"(--on-signal leave: with --registry memory: no other coordinator would know)")
    assert role.ends() == 2


@pytest.mark.long
def test_shard_writes_a_set_before_it_ends(operator: Operator, address: str) -> None:
    job = Path(_write(operator.folder, "drained", 2_000))
    job.write_text(job.read_text() + "snapshots: {every_s: 3600}\n")
    coordinator = operator.start("coordinator", "coordinator", str(job), "--listen", address)
    shard, _ = operator.members(address, 1, 1)
    operator.until_samples("drained", 2_000)
    before = len(operator.events("drained"))
    assert _terminated(shard) == [0]
    shard.said("(asked to end; waiting up to)")
    sets = [e["set"] for e in operator.events("drained")[before:] if e["event"] == "snapshot"]
    assert [int(name.partition("-")[0]) >= 2_000 for name in sets] == [True]
    operator.start("ps-again", "ps", "--coordinator", address)
    operator.until_samples("drained", 3_000, since=len(operator.events("drained")))
    assert _terminated(coordinator) == [0]
