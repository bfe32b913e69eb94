"""Errors of a script: one line each, which names the script's file and line where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

FAULTY = Path(__file__).with_name("faulty.py")
JOB = """
name: faulty
model: {{source: script}}
data: {{source: script, train: 64}}
strategy: {{name: downpour, batch: 16, rule: {{name: sgd, rate: 0.1}}, warm_start: null}}
limits: {{epochs: {epochs}}}
"""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("collate", "KeyError: 'label'"),
        ("forward", "ValueError: no such thing"),
        ("shrinks", "the dataset has 63 samples, and data.train in the job file says 64"),
        ("stream", "Stream is a stream: samples are leased by index"),
        ("sum", "the loss is a sum over the batch"),
        ("shape", "the loss has shape (16,), must be one number"),
        ("samples", "sync.step with samples=17, and the batches that are drawn and not stepped have 16"),
        ("optimizer", "no rule of the shards makes the steps of RMSprop"),
        ("groups", "SGD has 2 groups, and a rule of the shards has one"),
        ("other", "SGD makes the steps of `rule: {name: momentum, rate: 0.1, mu: 0.5}`"),
        ("stepped", "optimizer.step() was called: sync.step makes the step"),
        ("cycled", "SGD has momentum 0.25 now, and the job's rule keeps 0"),
        ("lacks", "the optimiser lacks parameter 'layer.bias' of the module"),
        ("kept", "sync.state: argument 1 is an optimiser, whose state the shards keep by the job's rule, sgd"),
        ("unmoved", "the module is as it was before: with rule: {name: add}, elastic averaging and diloco"),
    ],
)
def test_an_error_names_the_line(fault: str, message: str, tmp_path: Path) -> None:
    last = failing(fault, tmp_path, 1)
    lines = FAULTY.read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "# FAULT" in text and fault in text.split("FAULT")[-1]]
    assert f"{FAULTY}:{line}: {message}" in last
    assert "not started again" in last or "started again" not in last, "another start cannot help"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("modules", "this replica's model has another layout than the job's: tensor 'layer.weight' is (3, "),
        ("frozen", "this replica's frozen parameters are not the job's"),
    ],
)
def test_scripts_with_different_modules(fault: str, message: str, tmp_path: Path) -> None:
    said = run(fault, tmp_path, 2, epochs=300).stderr
    assert message in said
    assert f"{FAULTY}:86: " in said
    assert "ended with exit code 2" in said, "another start cannot help"


def test_a_killed_process_of_a_loader(tmp_path: Path) -> None:
    said = failing("killed", tmp_path, 1)
    assert "DataLoader worker (pid" in said
    assert "started again (1 of 3 times)" in said


def failing(fault: str, folder: Path, replicas: int) -> str:
    """What `dbelief run` prints where its scripts have this fault."""
    ended = run(fault, folder, replicas)
    assert ended.returncode == 1, ended
    return ended.stderr


def run(fault: str, folder: Path, replicas: int, epochs: int = 2) -> subprocess.CompletedProcess[str]:
    """Run the script with this fault."""
    job = JOB.format(epochs=epochs)
    if fault == "unmoved":
        job = job.replace("{name: sgd, rate: 0.1}", "{name: add}")
    return run_script(folder, job, replicas, FAULTY, fault)


def run_script(folder: Path, job: str, replicas: int, script: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a script by `dbelief run` to its end; it prints no traceback."""
    (folder / "job.yaml").write_text(job)
    words = ["run", "--quiet", "--job", "job.yaml", "--workers", str(replicas), str(script), *more]
    ended = subprocess.run([sys.executable, "-m", "dbelief", *words], cwd=folder, capture_output=True, text=True)
    assert "Traceback" not in ended.stderr + ended.stdout
    return ended
