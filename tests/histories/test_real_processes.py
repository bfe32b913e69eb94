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


def start_client(operator: Operator, number: int, address: str) -> Role:
    program = sys.executable, str(Path(__file__).with_name("client.py"))
    arguments = [address, number, CLIENTS, operator.folder / f"client-{number}.jsonl"]
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


@pytest.mark.parametrize("replication", [1, 2])
def test_no_anomaly(replication: int, operator: Operator, write_job: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "counters.py").write_text(MODEL)
    job = JOB.format(folder=tmp_path, samples=PUSHES, replication=replication)
    coordinator, address = operator.coordinator(write_job(job))
    leaders = start_shards(operator, address, "ps")
    if replication == 2:
        start_shards(operator, address, "follower")
    clients = [start_client(operator, number, address) for number in range(CLIENTS)]
    windows = []
    if replication == 2:
        until(operator, "followed", times=2)
        began_s = time.monotonic()
        leaders[0].kill()
        until(operator, "promoted")
        windows = [(began_s, time.monotonic())]
        clients[-1].kill()
    codes = [client.ends() for client in clients[: CLIENTS - len(windows)]]
    assert codes == [0] * len(codes)
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
