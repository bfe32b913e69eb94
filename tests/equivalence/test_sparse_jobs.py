"""Whole jobs on LIBSVM text: the models are those of the same rows in an array, and SciPy's optimum.

ALGORITHMS: Downpour with one replica, and Sandblaster L-BFGS (DistBelief, sections 4.1 and 4.2), on sparse rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.special import log_softmax

from dbelief.rundir.events import read_events

from .in_process import whole_job
from .test_batch_cost import Trace

ROWS, FEATURES, CLASSES = 400, 30, 3
JOB = """
name: job
model: {{layers: [{layers}{{dense: 3}}], loss: softmax_cross_entropy}}
data: {data}
strategy: {strategy}
{more}
shards: 2
replicas: 1
seed: 5
threads: 1
"""
SGD = "{name: downpour, batch: 16, rule: {name: sgd, rate: 0.3}, warm_start: null}"
LBFGS = "{name: sandblaster, portion: 90, iterations: 8, relative_decrease: null, ordered: true}"
LIBSVM = "{source: libsvm, train: rows.txt, validation: 0}"
NPZ = "{source: npz, file: rows.npz, validation: 0, test: 0}"


def write(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same rows as text and as arrays; labels are drawn at random, so that the optimum is finite."""
    rng = np.random.default_rng(11)
    x = (rng.standard_normal((ROWS, FEATURES)) * (rng.random((ROWS, FEATURES)) < 0.2)).astype(np.float32)
    x[0, -1] = 0.5
    labels = rng.integers(0, CLASSES, ROWS)
    lines = [
        f"{label} " + " ".join(f"{column + 1}:{row[column]!s}" for column in np.flatnonzero(row))
        for row, label in zip(x, labels, strict=True)
    ]
    (folder / "rows.txt").write_text("\n".join(lines))
    np.savez(folder / "rows.npz", train_inputs=x, train_targets=labels)
    return x, labels


def models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, layers: str, more: str
) -> list[dict[str, np.ndarray]]:
    """Trained on text, and on arrays."""
    found = []
    for name, data in (("sparse", LIBSVM), ("dense", NPZ)):
        folder = tmp_path / name
        folder.mkdir()
        write(folder)
        text = JOB.format(layers=layers, data=data, strategy=strategy, more=more)
        found.append(load_file(whole_job(text, folder, monkeypatch) / "model.safetensors"))
    return found


@pytest.mark.parametrize(
    ("strategy", "layers", "more"),
    [
        (SGD, "", "limits: {epochs: 3}"),
        (SGD, "{dense: 8}, tanh, ", "limits: {epochs: 3}"),
        (LBFGS, "", "evaluate: {every: null, keep: last}"),
    ],
    ids=["sgd", "sgd with a hidden layer", "l-bfgs"],
)
def test_the_model_is_that_of_the_same_rows_in_an_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, layers: str, more: str
) -> None:
    sparse, dense = models(tmp_path, monkeypatch, strategy, layers, more)
    for name, values in dense.items():
        assert np.abs(values).max() > 0.01, "it was trained"
        np.testing.assert_allclose(sparse[name], values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("l1", [0.0, 0.02])
def test_the_optimum_is_that_of_scipy(l1: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a penalty w is the difference of two vectors that are not negative, and biases have none."""
    x, labels = write(tmp_path)
    rows, truth = csr_array(x.astype(np.float64)), np.eye(CLASSES)[labels]

    def loss_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weight, bias = flat[:-CLASSES].reshape(FEATURES, CLASSES), flat[-CLASSES:]
        logs = log_softmax(rows @ weight + bias, axis=1)
        slope = (np.exp(logs) - truth) / ROWS
        return -float((truth * logs).sum()) / ROWS, np.r_[(rows.T @ slope).ravel(), slope.sum(axis=0)]

    size = (FEATURES + 1) * CLASSES
    factors = np.r_[np.full(size - CLASSES, l1), np.zeros(CLASSES)]

    def split(both: np.ndarray) -> tuple[float, np.ndarray]:
        up, down = both[:size], both[size:]
        value, gradient = loss_and_gradient(up - down)
        return value + factors @ (up + down), np.r_[gradient + factors, factors - gradient]

    best = minimize(
        split, np.zeros(2 * size), jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * size),
        options={"ftol": 0.0, "gtol": 1e-10, "maxiter": 10_000},
    )  # fmt: skip
    strategy = f"{{name: sandblaster, portion: 90, l1: {l1}, iterations: 80, relative_decrease: 1.0e-9}}"
    more = "evaluate: {every: null, keep: last}"
    run = whole_job(JOB.format(layers="", data=LIBSVM, strategy=strategy, more=more), tmp_path, monkeypatch)
    model = load_file(run / "model.safetensors")
    flat = np.concatenate([model["dense1.weight"].ravel(), model["dense1.bias"]]).astype(np.float64)
    assert loss_and_gradient(flat)[0] + factors @ np.abs(flat) == pytest.approx(best.fun, rel=1e-7)
    assert (flat[-CLASSES:] != 0).all()
    assert ((flat == 0).sum() > size // 4) == (l1 > 0)
    reported = [event["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "iteration"]
    assert reported[-1] == pytest.approx(best.fun, rel=1e-6)


WIDE = 6_000
"""Columns of rows that touch few of them."""


def write_wide(folder: Path) -> None:
    rng = np.random.default_rng(12)
    lines = []
    for label in rng.integers(0, 2, 120):
        columns = np.unique((WIDE ** rng.random(6)).astype(int))  # some are frequent, and most are rare
        lines.append(f"{label} " + " ".join(f"{column}:{rng.standard_normal():.3f}" for column in columns))
    (folder / "rows.txt").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("layers", "l1"), [pytest.param("", 0.0, marks=pytest.mark.long), ("{dense: 2}, tanh, ", 0.001)]
)
def test_only_touched_rows_travel_and_the_bits_are_the_same(
    layers: str, l1: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = f"{{name: sandblaster, portion: 10, bundle: 2, iterations: 5, l1: {l1}, ordered: true, backups: false}}"
    data = f"{{source: libsvm, train: rows.txt, features: {WIDE}, validation: 0}}"
    text = JOB.format(layers=layers, data=data, strategy=strategy, more="evaluate: {every: null, keep: last}")
    text = text.replace("{dense: 3}", "{dense: 2}").replace("replicas: 1", "replicas: 2")
    monkeypatch.setattr("dbelief.rpc.client.shared_buffers.make_block", lambda size: None)
    monkeypatch.setattr("dbelief.rpc.client.shard_calls.DIRECT_SIZE", -1)  # all of it is to be seen on the wire
    models, pushed, pulled = [], [], []
    for name in ("touched", "whole"):
        folder, trace = tmp_path / name, Trace()
        folder.mkdir()
        write_wide(folder)
        run = whole_job(text, folder, monkeypatch, lambda trace=trace: trace)  # type: ignore[misc]
        models.append(load_file(run / "model.safetensors"))
        bundles = sum(event["bundles"] for event in read_events(run / "events.jsonl") if event["event"] == "pass")
        pushed.append((trace.bytes["Push", "in"] - 8 * WIDE) / bundles)  # without the initial values
        pulled.append((trace.bytes["Pull", "out"] - 8 * WIDE) / bundles)  # without the export
        monkeypatch.setattr("worker.strategies.factory.column_tensor", lambda *of: None)
    for tensor, values in models[1].items():
        assert np.abs(values).max() > 0.01, "it was trained"
        assert values.tobytes() == models[0][tensor].tobytes()
    assert 8 * WIDE < pushed[1] < 9 * WIDE
    assert pushed[0] < pushed[1] / 8
    assert pulled[0] < pulled[1] / 8
