"""`dbelief train` with delays: one process, which trains as many replicas would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.delay_traces import drawn
from dbelief.simulate.delays import DOWNPOUR

from .conftest import Operator, dbelief

pytestmark = pytest.mark.processes
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


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
