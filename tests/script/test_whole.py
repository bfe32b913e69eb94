"""A module with all kinds of state: what the model file holds, and what a step sends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dbelief

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

WHOLE = Path(__file__).with_name("whole.py")
JOB = """
name: whole
model: {source: script}
data: {source: script, train: 70, validation: 70}
strategy: {name: downpour, batch: 10, lease: 10, rule: {name: sgd, rate: 0.1}, warm_start: null}
limits: {epochs: 6}
evaluate: {every: 140, keep: last}
shards: 2
"""


def launch(folder: Path, job: str, workers: int, script: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Run a script, which ends with an exit code; the summary."""
    (folder / "job.yaml").write_text(job)
    command = [sys.executable, "-m", "dbelief", "run", "--quiet", "--job", "job.yaml", "--workers", str(workers)]
    assert subprocess.run([*command, str(script), *words], check=False, cwd=folder).returncode == code
    (run,) = (folder / "runs").iterdir()
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


@pytest.mark.parametrize("workers", [1, 2])
def test_the_model_file_is_the_state_of_the_module(workers: int, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from tests.script.whole import make

    summary = launch(tmp_path, JOB, workers, WHOLE, str(tmp_path))
    assert summary["samples"] == 6 * 70
    held = load_file(tmp_path / "runs/whole/model.safetensors")
    module = make(9)
    wanted = module.state_dict()
    assert {name: (own.dtype, own.shape) for name, own in held.items()} == {
        name: (own.dtype, own.shape) for name, own in wanted.items()
    }
    module.load_state_dict(held)
    assert module.norm.num_batches_tracked == 6 * 7, "counters of all replicas add up"
    assert torch.equal(module.table, torch.arange(8.0))
    assert torch.equal(module.frozen.weight, torch.eye(8) / 4)
    assert dbelief.read_about(tmp_path / "runs/whole") == {"tokens": ["a", "b"], "scale": 0.5}
    filled = dbelief.load_model(tmp_path / "runs/whole", into=make(4))
    tokens = torch.arange(7)
    module.eval()
    filled.eval()
    assert torch.equal(filled(tokens), module(tokens))
    if workers == 1:  # else the result depends on how late pushes are, and one may follow a replica's last fetch
        assert summary["validation_accuracy"] == 1.0
        assert torch.equal(filled(tokens).argmax(1), (tokens + 1) % 7)
        state = torch.load(tmp_path / "state-0.pt")
        assert all(torch.equal(state[name], own) for name, own in held.items())


BIG = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(100, 900), nn.Linear(900, 10, bias=False), nn.Linear(10, 100))
frozen = sys.argv[1] == "frozen"
model[0].requires_grad_(not frozen)
dataset = TensorDataset(torch.randn(40, 100), torch.randn(40, 100))
optimizer = torch.optim.SGD([own for own in model.parameters() if own.requires_grad], lr=0.01)
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, model, optimizer)
    for x, y in DataLoader(dataset, batch_sampler=job.sampler(dataset, 4)):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        sync.step(loss, samples=len(x))
"""


def test_a_step_sends_what_is_trained(tmp_path: Path) -> None:
    """90 % of the parameters are frozen."""
    job = JOB.replace(", validation: 70", "").replace("train: 70", "train: 40").replace("batch: 10", "batch: 4")
    sent = {}
    for way in ("frozen", "whole"):
        folder = tmp_path / way
        folder.mkdir()
        script = folder / "big.py"
        script.write_text(BIG)
        summary = launch(folder, job, 1, script, way)
        traffic = summary["bytes_per_replica"]["0"]
        initial = 4 * summary["parameters"]
        sent[way] = (traffic["sent"] + traffic["shared_sent"] - initial) / summary["pushes"]
    assert sent["whole"] == 4 * (100 * 900 + 900 + 9000 + 1100)
    assert sent["frozen"] == 4 * (9000 + 1100)
