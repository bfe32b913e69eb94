"""A wide and deep job that is stopped midway and resumed: rows and samples go on, and its model is evaluated alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from .conftest import Operator, dbelief, parameters

pytestmark = [pytest.mark.processes, pytest.mark.long]

TRAIN, EPOCHS = 640, 4
JOB = """
name: wide
model:
  layers: [{embedding_bag: deep}, relu, {dense: 8}, relu, {dense: 1}, {embedding_bag: {table: wide, join: add}}]
  loss: logistic
data: {source: bags, format: vw, files: train.vw, test_files: test.vw, validation: 0, columns: [user, item]}
strategy: {name: downpour, batch: 16, lease: 16, rule: {name: adagrad, rate: 0.05}, warm_start: null}
tables:
  deep: {width: 4, rule: {name: lazy-adam, rate: 0.01}, init: uniform(0.1), buckets: 9}
  wide: {width: 1, rule: {name: ftrl, rate: 0.1, l1: 0.001}, init: zeros, buckets: 4}
limits: {epochs: 4}
evaluate: {metrics: [auc]}
snapshots: {every_s: null}
shards: 2
"""


def write(folder: Path) -> None:
    """Users and items whose weights decide the label; some users are in the test set alone."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 90))
    for name, count, users in (("train.vw", TRAIN, 80), ("test.vw", 300, 90)):
        user, items = rng.integers(0, users, count), rng.integers(0, 30, (count, 3))
        labels = weights[0][user] + weights[1][items].sum(axis=1) > 0
        rows = zip(labels.tolist(), user.tolist(), items.tolist(), strict=True)
        lines = [f"{2 * y - 1} |user u{u} |item {' '.join(f'i{one}' for one in bag)}" for y, u, bag in rows]
        (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.timeout(600)  # up to three whole clusters, one after the other
@pytest.mark.parametrize("more", ["", "streamed: true, unit: 40, window: 2, "], ids=["in memory", "streamed"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_rows_go_on_where_they_were(
    replicas: int, more: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(operator.folder / "cache"))
    write(operator.folder)
    job = operator.write_job(f"{JOB.replace('validation: 0, ', f'validation: 0, {more}')}replicas: {replicas}\n")
    operator.compute_wait_s = 0.05  # a run must not be done before its signal
    train = operator.start("stopped", "train", "--quiet", str(job))
    operator.until_samples("wide", TRAIN)
    train.process.send_signal(signal.SIGINT)
    assert train.ends() == 130
    stopped = operator.summary("wide")
    assert TRAIN <= stopped["samples"] < EPOCHS * TRAIN
    operator.compute_wait_s = 0.0
    before = len(operator.events("wide"))
    summary = operator.trained("wide", job, "--resume", "--set", "shards=3")
    counts = [event["samples"] for event in operator.events("wide")[before:] if event["event"] == "progress"]
    assert min(counts) >= stopped["samples"], "nothing is trained again"
    assert summary["samples"] == EPOCHS * TRAIN
    assert summary["pushes_trained_twice"] == 0
    assert summary["test_metrics"]["auc"] > 0.7

    run = operator.folder / "runs" / "wide"
    found = json.loads(dbelief("evaluate", str(run), folder=operator.folder))
    assert found["samples"] == 300
    assert found["loss"] == pytest.approx(summary["test_loss"], rel=1e-6)
    assert found["accuracy"] == summary["test_accuracy"]
    assert found["metrics"] == pytest.approx(summary["test_metrics"], rel=1e-6)
    labels = [line.partition(" ")[0] for line in (operator.folder / "test.vw").read_text().splitlines()]
    (operator.folder / "new.vw").write_text((operator.folder / "test.vw").read_text().replace("-1 |user", "|user"))
    classes = dbelief("predict", str(run), "new.vw", folder=operator.folder).split()
    right = [one == label for one, label in zip(classes, labels, strict=True)]
    assert np.mean(right) == pytest.approx(found["accuracy"])

    if replicas == 1:
        whole = operator.trained("whole", job, "--set", "name=whole")
        assert whole["test_loss"] == summary["test_loss"], "one replica is sequential: the same bits, wherever they lie"
        assert parameters(operator.folder / "runs" / "whole") == parameters(run)
