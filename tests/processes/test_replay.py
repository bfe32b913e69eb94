"""A run of real, free-running processes that was logged replays in one thread, bit for bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import dump_svmlight_file

from dbelief.data import load
from dbelief.job import DigitsData
from dbelief.rundir.record import read_rounds
from dbelief.tools.replay import replay_run

from .conftest import Operator

pytestmark = [pytest.mark.processes, pytest.mark.long]

JOB = """
name: logged
model: {{layers: [{{dense: 24}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{{strategy}, batch: 16}}
schedule: {{kind: poly, power: 0.5}}
limits: {{epochs: 2}}
shards: 2
replicas: 2
record: true
wire: {{push: {push}, pull: {pull}}}
"""


RUNS = 5

DOWNPOUR = "name: downpour, rule: {name: adagrad, rate: 0.05}, warm_start: {samples: 320}, staleness_aware: true"
"""The hardest case of pushes: rates that were divided by their staleness stand in the log as they were applied. By one
bit a push also has what those before it left out."""
MEASGD = "name: async-measgd, rate: 0.02, period: 2, nesterov: true"
LONG = ["name: async-sgd, rate: 0.05", "name: async-msgd, rate: 0.01", "name: async-easgd, rate: 0.1"]


CODED = [
    ("name: async-sgd, rate: 0.05", "{name: threshold, tau: 2.0e-3}", "fp32"),
    ("name: async-sgd, rate: 0.05", "bf16", "fp16"),
    ("name: async-sgd, rate: 0.05", "{name: top-k, share: 0.1}", "fp32"),
    ("name: async-easgd, rate: 0.1", "fp16", "bf16"),
]


@pytest.mark.parametrize(
    ("strategy", "push", "pull"),
    [
        (DOWNPOUR, "one-bit", "bf16"),
        *((one, "fp32", "fp32") for one in [DOWNPOUR, MEASGD, *LONG]),
        *CODED,
    ],
)
def test_a_logged_run_replays_bit_equal(strategy: str, push: str, pull: str, operator: Operator) -> None:
    assert_replays(operator, operator.write_job(JOB.format(strategy=strategy, push=push, pull=pull)))


def test_a_logged_run_on_sparse_rows_replays_bit_equal(operator: Operator) -> None:
    digits = load(DigitsData(source="digits"), Path()).train
    assert digits is not None
    rows = digits.inputs.reshape(len(digits), -1).astype(np.float64)
    dump_svmlight_file(rows, digits.targets, str(operator.folder / "digits.txt"), zero_based=False)
    text = JOB.format(strategy="name: async-sgd, rate: 1.0e-3", push="fp32", pull="fp32")
    data = f"{{source: libsvm, train: {operator.folder}/digits.txt}}"
    assert_replays(operator, operator.write_job(text.replace("{source: digits}", data)))


DILOCO = "name: diloco, steps: 4, inner: {name: adamw, rate: 0.005}, clip_norm: 1.0, lease: 128"
STREAMED = f"{DILOCO}, fragments: 2, delay: 2, blend: 0.1, weigh: rate"
LATE = f"{STREAMED}, quorum: 1, grace_s: 0"


@pytest.mark.parametrize(
    ("strategy", "push", "pull"), [(DILOCO, "int8", "fp32"), (STREAMED, "int4", "bf16"), (LATE, "int8", "bf16")]
)
def test_logged_rounds_replay_bit_equal(strategy: str, push: str, pull: str, operator: Operator) -> None:
    run = operator.folder / "runs" / "logged"
    text = JOB.format(strategy=strategy, push=push, pull=pull).replace("dense: 24", "dense: 160")
    for _ in range(RUNS):
        summary = operator.trained("logged", operator.write_job(text))
        applied, _ = read_rounds(run / "record")
        check_figures(summary, 1 + max(row.round or 0 for row in applied), late=strategy == LATE)
        both = max(Counter((row.segment, row.round) for row in applied).values()) == 2
        if both and (summary["staleness_mean"] > 0 or strategy != LATE):
            break
    assert both, "no round had the pushes of two replicas"
    assert summary["staleness_mean"] > 0 or strategy != LATE, "no push came too late"
    assert_same_bits(run)


def check_figures(summary: dict[str, Any], rounds: int, late: bool) -> None:
    """Check a summary's figures of rounds; `rounds`: the shards' own count, which late pushes may raise at the end."""
    figures = summary["rounds"]
    assert 0 < figures["rounds"] <= rounds if late else figures["rounds"] == rounds
    assert figures["rounds"] * figures["pushes_per_round"] == pytest.approx(summary["pushes"])
    assert figures["late_pushes"] * (figures["late_age"] or 0) == pytest.approx(
        summary["staleness_mean"] * summary["pushes"]
    )
    assert figures["sent_per_sample"] > 0 < figures["received_per_sample"]
    assert 0 < figures["computing"] < 1


def assert_replays(operator: Operator, job: Path) -> None:
    """Train a job whose pushes are logged until some were stale, and replay it."""
    run = operator.folder / "runs" / "logged"
    for _ in range(RUNS):  # on a busy machine one replica may have trained all before the other has joined
        if staleness := operator.trained("logged", job)["staleness_mean"]:
            break
    assert staleness > 0  # else there was nothing to replay
    assert_same_bits(run)


def assert_same_bits(run: Path) -> None:
    """Replay a run, and compare."""
    trained = load_file(run / "model.safetensors")
    replayed = replay_run(run)
    order = ["dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"]
    flat = np.concatenate([trained[name].reshape(-1) for name in order])
    assert np.array_equal(replayed, flat)
