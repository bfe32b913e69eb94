"""Messages and bytes of an iteration of the batch method: docs/explanation/sandblaster.md's table, counted.

A whole job in one process over real gRPC; a tracing transport counts what each call's messages weigh on the wire.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from dbelief.rundir.events import read_events

from .in_process import whole_job

SHARDS, REPLICAS, ITERATIONS = 2, 2, 14  # more than the history holds
MODEL = """
import numpy as np

CURVATURE = np.linspace(1, 30, 1_000, dtype=np.float32)


class Wide:
    \"\"\"A quadratic in a thousand of {size} numbers, so that its size changes nothing but its size.\"\"\"

    def parameters(self, rng):
        return {{"w": np.zeros({size}, np.float32)}}

    def loss_and_gradient(self, views, batch, out):
        away = views["w"][:1_000] - 1
        out["w"][:1_000] = CURVATURE * away / 1_000
        out["w"][1_000:] = 0
        return float(CURVATURE @ away**2) / 2_000
"""
JOB = """
name: cost
model: {{python: "{model}:Wide"}}
data: {{source: digits}}
strategy: {{name: sandblaster, portion: 100, bundle: 2, iterations: {iterations}, backups: false, ordered: true}}
limits: {{epochs: 1000}}
evaluate: {{every: null}}
snapshots: {{every_s: null}}
output: {folder}
shards: {shards}
replicas: {replicas}
"""


class Trace(grpc.ServerInterceptor):
    """Counts messages and their bytes, by method and direction."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]
        return handler._replace(
            request_deserializer=self._counted(method, "in", handler.request_deserializer, before=True),
            response_serializer=self._counted(method, "out", handler.response_serializer, before=False),
        )

    def _counted(self, method: str, way: str, convert: Callable[[Any], Any] | None, before: bool) -> Any:
        def counted(message: Any) -> Any:
            converted = convert(message) if convert is not None else message
            with self._lock:
                self.messages[method, way] += 1
                self.bytes[method, way] += len(message if before else converted)
            return converted

        return counted


@dataclass
class Cost:
    """One run of the job: what was sent, and its counts; `looks` are evaluations on validation or test data."""

    trace: Trace
    iterations: int
    evaluations: int
    bundles: int
    looks: int


def run(folder: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> Cost:
    """A whole job with so many parameters."""
    folder.mkdir()
    (folder / "wide.py").write_text(MODEL.format(size=size))
    text = JOB.format(model="wide.py", iterations=ITERATIONS, folder=folder, shards=SHARDS, replicas=REPLICAS)
    trace = Trace()
    monkeypatch.setattr(
        "dbelief.rpc.client.shared_buffers.make_block", lambda size: None
    )  # all of it is to be seen on the wire
    monkeypatch.setattr("dbelief.rpc.client.shard_calls.DIRECT_SIZE", -1)  # of gRPC
    run_folder = whole_job(text, folder, monkeypatch, lambda: trace)
    events = list(read_events(run_folder / "events.jsonl"))
    rows = [event for event in events if event["event"] == "iteration"]
    bundles = sum(event["bundles"] for event in events if event["event"] == "pass")
    looks = sum(event["event"] == "evaluation" for event in events)
    return Cost(trace, rows[-1]["iteration"], rows[-1]["evaluations"], bundles, looks)


SMALL, LARGE = 5_000, 500_000


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Cost]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("cost")
        yield {size: run(folder / str(size), size, monkeypatch) for size in (SMALL, LARGE)}


def test_program_count_per_iteration_and_trial(costs: dict[int, Cost]) -> None:
    for cost in costs.values():
        trials = cost.evaluations - 1
        rounds = 2 + 2 * cost.iterations + trials + (trials - cost.iterations)
        assert cost.trace.messages["Operate", "in"] == cost.trace.messages["Operate", "out"] == SHARDS * rounds


def test_vectors_go_between_shards_and_replicas(costs: dict[int, Cost]) -> None:
    for size, cost in costs.items():
        pushed = cost.trace.bytes["Push", "in"] / (4 * size)
        assert pushed == pytest.approx(cost.bundles + 1, rel=0.02), "one vector a bundle, and the initial values"
        pulled = cost.trace.bytes["Pull", "out"] / (4 * size)
        # One vector a pass for each replica that has a bundle of it; one for each look at the data, and the export.
        beside = cost.looks + 1
        assert cost.evaluations + beside <= pulled <= 1.01 * (REPLICAS * cost.evaluations + beside)


def test_coordinator_traffic_does_not_depend_on_model_size(costs: dict[int, Cost]) -> None:
    small, large = costs[SMALL], costs[LARGE]
    assert (small.iterations, small.evaluations, small.bundles) == (large.iterations, large.evaluations, large.bundles)
    for way in ("in", "out"):
        assert large.trace.bytes["Operate", way] == small.trace.bytes["Operate", way]
    for cost in (small, large):
        own = ("Operate", "Lease", "Report")
        through = sum(cost.trace.bytes[method, way] for method in own for way in ("in", "out")) / cost.iterations
        print(f"{through:,.0f} bytes an iteration")
        assert through < 10_000, "half a million numbers are 2,000,000"


def test_each_bundle_is_reported_once(costs: dict[int, Cost]) -> None:
    for cost in costs.values():
        # Beside: looks, initial values, and that work comes on, once a second.
        assert cost.bundles <= cost.trace.messages["Report", "in"] <= 1.1 * cost.bundles + cost.looks + 2
