"""Histories of real processes, some of them killed, have no anomaly."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.conftest import Operator, Role, wait_for

from .checker import check, read_history
from .conftest import merge

pytestmark = [pytest.mark.processes, pytest.mark.long]

CLIENTS, PUSHES = 4, 2400
SEGMENTS = [f"w{place}" for place in range(4)]
MODEL = f"""
import numpy as np

class Counters:
    def parameters(self, rng):
        return {{name: np.zeros(4096, np.float32) for name in {SEGMENTS}}}

    def loss_and_gradient(self, views, batch, out):
        raise NotImplementedError
"""
JOB = """
name: counted
model: {{python: "{folder}/counters.py:Counters"}}
data: {{source: none}}
strategy: {{name: downpour, rule: {{name: sgd, rate: 1.0}}, warm_start: null}}
limits: {{samples: {samples}}}
shards: 2
replication: {replication}
replicas: 0
deadlines: {{beat_s: 4, lease_s: 2}}
"""


def start_client(operator: Operator, number: int, address: str, shared: bool) -> Role:
    program = sys.executable, str(Path(__file__).with_name("client.py"))
    arguments = [address, number, CLIENTS, operator.folder / f"client-{number}.jsonl", int(shared)]
    return operator.start(f"client-{number}", *map(str, arguments), program=program)


def until(operator: Operator, event: str, times: int = 1) -> None:
    def look() -> bool | None:
        return sum(row["event"] == event for row in operator.events("counted")) >= times or None

    wait_for(look, f"{times} times {event!r}")


def start_shards(operator: Operator, address: str, name: str) -> list[Role]:
    roles = [operator.start(f"{name}-{n}", "ps", "--coordinator", address) for n in range(2)]
    for role in roles:
        role.said("(shard . of job)")
    return roles


def kill_leader_and_client(operator: Operator, leader: Role, client: Role) -> tuple[float, float]:
    """Kill both once the shards have followers; the window in which the follower was promoted."""
    until(operator, "followed", times=2)
    began_s = time.monotonic()
    leader.kill()
    until(operator, "promoted")
    window = began_s, time.monotonic()
    client.kill()
    return window


def scale(operator: Operator, address: str) -> None:
    """Migrate segments to a third shard, and all of them to one."""
    for shards, times in ((3, 1), (1, 2)):
        assert operator.start(f"scale-{shards}", "scale", "ps", str(shards), address).ends() == 0
        if shards == 3:
            operator.start("ps-2", "ps", "--coordinator", address)
        until(operator, "scaled", times)


@pytest.mark.parametrize("case", ["shared memory", "TCP", "migration", "failover"])
def test_no_anomaly(case: str, operator: Operator, write_job: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "counters.py").write_text(MODEL)
    job = JOB.format(folder=tmp_path, samples=PUSHES, replication=1 + (case == "failover"))
    coordinator, address = operator.coordinator(write_job(job))
    leaders = start_shards(operator, address, "ps")
    if case == "failover":
        start_shards(operator, address, "follower")
    clients = [start_client(operator, number, address, shared=case != "TCP") for number in range(CLIENTS)]
    windows = []
    if case == "migration":
        operator.until_samples("counted", PUSHES // 10)
        scale(operator, address)
    if case == "failover":
        windows = [kill_leader_and_client(operator, leaders[0], clients.pop())]
    assert [client.ends() for client in clients] == [0] * len(clients)
    assert coordinator.ends() == 0
    assert operator.summary("counted")["pushes_lost"] == 0

    history = merge(sorted(operator.folder.glob("client-*.jsonl")), SEGMENTS)
    history += [
        {"promotion": True, "segment": place, "start": start, "end": end}
        for start, end in windows
        for place in range(len(SEGMENTS))
    ]
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in history))
    verdicts = check(read_history(path))
    assert all(verdict.linearizable for verdict in verdicts), verdicts
    assert sum(verdict.calls for verdict in verdicts) >= 2 * (PUSHES - CLIENTS) * len(SEGMENTS)
