"""A partitioned replica in a real job: the numbers of one rank, and each rank at its own shards only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout, assign_segments, make_segments, nominal_length
from dbelief.data import load
from dbelief.job.load import parse_job
from dbelief.partition import Grid, layout_of
from dbelief.rpc.client.direct_streams import DirectStreams
from dbelief.rpc.client.shared_buffers import SharedBuffers
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.training.session import build_model

from .in_process import whole_job

JOB = """
name: ranks
model: {model}
data: {{source: digits}}
strategy: {strategy}
limits: {limits}
evaluate: {{every: 600, keep: best}}
output: {folder}
shards: {shards}
replicas: {replicas}
grid: {grid}
device: cpu
"""
DENSE = "{layers: [{dense: 48}, tanh, {dense: 24}, relu, {dense: 10}], loss: softmax_cross_entropy}"
IMAGES = (
    "{layers: [{image: {height: 8, width: 8}}, {conv: {maps: 4, kernel: 3}}, relu, {max_pool: 2}, {dense: 10}],"
    " loss: softmax_cross_entropy}"
)
STACKS = (
    "{stacks: [{window: 2, block: 1, maps: 3, pool: 2, contrast: {size: 3}}, {window: 1, block: 1, maps: 2, pool: 2}],"
    " image: [8, 8, 1]"
)
DOWNPOUR = "{name: downpour, batch: 50, rule: {name: adagrad, rate: 0.05}, warm_start: null}"


class Touched(grpc.ServerInterceptor):
    """What each rank pushed to one server and pulled from it: (rank, method, segment)."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str, int]] = set()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler, method = continuation(details), details.method.rpartition("/")[2]
        if handler is None or method not in ("Pull", "Push"):
            return handler
        rank = 0

        def seen(message: bytes) -> Any:
            nonlocal rank
            if method == "Pull":
                pull = wire.PullRequest.FromString(message)
                if pull.HasField("pusher"):  # the coordinator's export has none
                    self.seen |= {(pull.pusher.rank, method, index) for index in pull.segments}
            else:
                push = wire.PushRequest.FromString(message)
                rank = push.opening.pusher.rank if push.HasField("opening") else rank
                self.seen |= {(rank, method, segment.index) for segment in push.segments}
            return handler.request_deserializer(message) if handler.request_deserializer else message

        return handler._replace(request_deserializer=seen)


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    grid: str,
    model: str = DENSE,
    strategy: str = DOWNPOUR,
    limits: str = "{epochs: 1}",
    shards: int = 2,
    replicas: int = 1,
) -> tuple[dict[str, np.ndarray], Layout, list[set[tuple[int, str, int]]]]:
    """The trained model, the layout over the grid, and what was touched at each server where anything was."""
    folder.mkdir()
    text = JOB.format(
        model=model, strategy=strategy, limits=limits, folder=folder, shards=shards, replicas=replicas, grid=grid
    )
    traces: list[Touched] = []

    def trace() -> Touched:
        traces.append(Touched())
        return traces[-1]

    trained = load_file(whole_job(text, folder, monkeypatch, trace) / "model.safetensors")
    job = parse_job(text, folder, "job")
    built, _ = build_model(job, load(job.data, job.folder), select_backend("cpu"))
    return trained, layout_of(built, Grid.of(job.grid)), [trace.seen for trace in traces if trace.seen]


CLIPPED = "{name: downpour, batch: 50, rule: {name: sgd, rate: 1.0}, warm_start: null, clip_norm: 0.05}"
BATCH = "{name: sandblaster, portion: 200, bundle: 1, ordered: true, iterations: 3}"


@pytest.mark.parametrize(
    ("model", "grid", "strategy", "replicas"),
    [
        pytest.param(DENSE, "[2]", DOWNPOUR, 1, marks=pytest.mark.long),
        (DENSE, "[3]", DOWNPOUR, 1),
        (IMAGES, "[2, 2]", DOWNPOUR, 1),
        pytest.param(IMAGES, "[1, 3]", DOWNPOUR, 1, marks=pytest.mark.long),
        pytest.param(DENSE, "[3]", CLIPPED, 1, id="a norm of all ranks' gradient"),
        pytest.param(DENSE, "[2]", BATCH, 2, id="a batch method"),
    ],
)
def test_partitioned_replicas_are_one_rank(
    model: str, grid: str, strategy: str, replicas: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one replica each fetch sees the push before it: sequential, so both jobs are the same sum up to rounding."""
    limits = "{}" if strategy == BATCH else "{epochs: 1}"
    whole, _, _ = run(tmp_path / "one", monkeypatch, "[1]", model, strategy, limits)
    parts, _, _ = run(tmp_path / "several", monkeypatch, grid, model, strategy, limits, replicas=replicas)
    check_close(parts, whole, rtol=1e-3, atol=1e-4)


def check_close(parts: dict[str, np.ndarray], whole: dict[str, np.ndarray], rtol: float, atol: float) -> None:
    assert whole.keys() == parts.keys()
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=rtol, atol=atol, err_msg=name)


def test_stacks_one_on_the_other_then_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy training of each, then of both, on one rank and on 2 x 1: the same tensors up to rounding.

    By plain SGD: Adagrad would make full steps of the rounding in weights whose pixels are always 0. What a run on
    several ranks gives, the next one reads.
    """
    sgd = "{name: downpour, batch: 50, rule: {name: sgd, rate: 0.003}, warm_start: null}"

    def jobs(grid: str, folder: Path) -> list[dict[str, np.ndarray]]:
        folder.mkdir()
        found = []
        for name, train, below in (("first", "1", ""), ("second", "2", "first"), ("both", "all", "first, second")):
            given = ", ".join(f"{folder}/{one}/run/model.safetensors" for one in below.split(", ") if one)
            model = f"{STACKS}, train: {train}, trained: [{given}]}}"
            found.append(run(folder / name, monkeypatch, grid, model, sgd, "{samples: 600}")[0])
        return found

    for whole, parts in zip(jobs("[1]", tmp_path / "one"), jobs("[2, 1]", tmp_path / "several"), strict=True):
        check_close(parts, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", [DOWNPOUR, "{name: sandblaster, portion: 200, iterations: 3}"])
def test_ranks_contact_only_the_shards_of_their_segments(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = "{epochs: 1}" if strategy == DOWNPOUR else "{}"
    for pool in SharedBuffers, DirectStreams:
        monkeypatch.setattr(pool, "acquire", lambda *words: None)  # gRPC's calls are those that are traced
    _, layout, servers = run(
        tmp_path / "job", monkeypatch, "[2]", strategy=strategy, limits=limits, shards=3, replicas=2
    )
    spans = make_segments(layout.rank_ranges(), nominal_length(layout.size, 3))
    ranges = layout.rank_ranges()
    owner = {span.index: next(r for r, (a, b) in enumerate(ranges) if a <= span.start < b) for span in spans}
    held = [set(range(first, first + count)) for first, count in assign_segments(spans, 3)]
    assert len(servers) == 3
    for seen in servers:
        segments = {segment for _, _, segment in seen}
        assert segments in held, "each server's segments, every one of them"
        for method in ("Pull", "Push"):
            assert {(rank, s) for rank, m, s in seen if m == method} == {(owner[s], s) for s in segments}, method
    ranks = [{rank for rank, _, _ in seen} for seen in servers]
    assert sorted(map(len, ranks)) == [1, 1, 2], "two shards have a rank of their own, one has segments of both"
