"""`dbelief train` with delays: one process, which trains as many replicas would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.delay_traces import drawn
from dbelief.simulate.replay.delays import DOWNPOUR, ELASTIC, ROUNDS

from .conftest import Operator, dbelief, parameters

pytestmark = pytest.mark.processes
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


@pytest.mark.long
def test_a_hundred_replicas_learn_the_digits(operator: Operator) -> None:
    """And none of the roles is started: the run's folder has no logs of theirs."""
    file = operator.folder / "d.npz"
    drawn(DOWNPOUR, 100, 3000).write(file)
    train = operator.start("train", "train", str(EXAMPLE), "--set", f"delays={file}", "--set", "lr=0.01")
    assert train.ends() == 0, train.log.read_text()
    summary, log = operator.summary("digits"), train.log.read_text()
    assert summary["test_accuracy"] > 0.9
    assert summary["replicas"] == 100
    assert 20 < summary["staleness_mean"] < 110
    assert f"100 replicas, as {file} has them" in log
    assert "digits: 37,710 samples trained, test accuracy 9" in log
    folder = operator.folder / "runs" / "digits"
    assert sorted(path.name for path in folder.iterdir() if path.suffix != ".png") == [
        ".claim",
        "events.jsonl",
        "job.yaml",
        "model.safetensors",
        "snapshots",
        "summary.json",
    ]
    assert "100 replicas" in dbelief("status", str(folder))
    assert "37,710, 30.00 epochs" in dbelief("report", str(folder))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (DOWNPOUR, "{name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, clip_norm: 2.0}"),
        (DOWNPOUR, "{name: downpour, batch: 16, rule: {name: adam, rate: 0.003}, n_push: 3, n_fetch: 3}"),
        (ELASTIC, "{name: async-measgd, batch: 16, rate: 0.01, period: 4}"),
        (ROUNDS, "{name: diloco, batch: 16, steps: 5, inner: {name: adamw, rate: 0.003}}"),
    ],
)
def test_one_replica_has_the_bits_of_its_processes(tmp_path: Path, kind: str, strategy: str) -> None:
    """A real job of one replica, and the same by delays of one."""
    drawn(kind, 1, 100).write(tmp_path / "d.npz")
    fields = [f"strategy={strategy}", "replicas=1", "shards=1", "limits.epochs=2", "schedule={kind: poly, power: 0.5}"]
    words = ["train", "--quiet", str(EXAMPLE), *(part for field in fields for part in ("--set", field))]
    dbelief(*words, "--set", "name=real", folder=tmp_path)
    dbelief(*words, "--set", "name=delayed", "--set", f"delays={tmp_path}/d.npz", folder=tmp_path)
    assert parameters(tmp_path / "runs" / "real") == parameters(tmp_path / "runs" / "delayed")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on", "ssh", "--hosts", "hosts"], "--on ssh: a job with delays is one process on this machine"),
        (["--on", "kubernetes"], "--on kubernetes: a job with delays is one process on this machine"),
        (["--resume"], "--resume: a job with delays is one process on this machine"),
    ],
)
def test_other_places_are_refused_in_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    (tmp_path / "hosts").write_text("one.example\n")
    command = [sys.executable, "-m", "dbelief", "train", str(EXAMPLE), "--set", "delays=d.npz", *options]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2
    assert ended.stderr.strip().endswith("which begins anew")
    assert words in ended.stderr
