"""Jobs of scripts that wait for each other, and that stop early: each ends, and no script fails."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

from tests.script.test_whole import JOB, WHOLE, launch  # noqa: E402  (after the check for torch)

LOGGED = Path(__file__).with_name("logged.py")
TOGETHER = """
name: together
model: {{source: script}}
data: {{source: script, train: 210}}
strategy: {strategy}
limits: {{epochs: 3}}
deadlines: {{progress_s: 10}}
"""


@pytest.mark.parametrize(
    "strategy",
    [
        "{name: sync-sgd, form: shards, batch: 10, rule: {name: sgd, rate: 0.05}}",
        "{name: downpour, batch: 10, staleness: 1, rule: {name: sgd, rate: 0.05}, warm_start: null}",
        "{name: sync-easgd, batch: 10, rate: 0.05}",
        "{name: downpour, batch: 10, rule: {name: add}, n_push: 3, n_fetch: 3}",
        "{name: diloco, batch: 10, steps: 3}",
        "{name: diloco, batch: 10, steps: 3, delay: 2}",
        "{name: diloco, batch: 10, steps: 3, lease: 60, fragments: 2}",
        "{name: diloco, batch: 10, steps: 3, lease: 60, fragments: 2, delay: 1, quorum: 1, grace_s: 0}",
        "{name: downpour, batch: 10, rule: {name: add}, n_push: 3, n_fetch: 3, overlap: true}",
        "{name: sync-easgd, batch: 10, rate: 0.05, overlap: true}",
    ],
)
def test_with_loaders_that_draw_ahead(strategy: str, tmp_path: Path) -> None:
    """The leases of a block differ in length, and the loaders have processes of their own."""
    job = TOGETHER.format(strategy=strategy)
    own = ["own"] * any(word in strategy for word in ("add", "easgd", "diloco"))
    summary = launch(tmp_path, job, 2, LOGGED, str(tmp_path / "steps"), "0", "210", *own)
    assert summary["samples"] == 3 * 210
    assert summary["died"] == []
    times = summary["phase_seconds"].values()
    for phase in ("compute", "push", "fetch", "wait"):
        assert sum(spent[phase] for spent in times) > 0, "of all replicas: one may have trained all"
    assert all(sum(spent.values()) < summary["wall_s"] for spent in times)
    assert (summary["rounds"] is not None) == ("diloco" in strategy or "sync" in strategy)
    if "diloco" in strategy:
        pushes = summary["rounds"]["rounds"] * summary["rounds"]["pushes_per_round"]
        assert pushes == pytest.approx(summary["pushes"]), "a mean over 19 rounds is no whole number"
        assert 0 < summary["rounds"]["computing"] < 1


@pytest.mark.parametrize("workers", [1, 2])
def test_an_early_stop_while_samples_are_held(workers: int, tmp_path: Path) -> None:
    """Each script evaluates after each of its epochs, and has a lease of the next one then."""
    job = JOB.replace("limits: {epochs: 6}", "limits: {epochs: 60, validation_accuracy: 0.9}")
    summary = launch(tmp_path, job, workers, WHOLE, str(tmp_path))
    assert summary["died"] == []
    assert "validation accuracy" in summary["reason"]
    assert summary["samples"] < 60 * 70


UNEVALUATED = """
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import dbelief

module = torch.nn.Linear(2, 1)
data = TensorDataset(torch.zeros(40, 2))
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, module, torch.optim.SGD(module.parameters(), lr=0.1))
    for (x,) in DataLoader(data, batch_sampler=job.sampler(data, 10)):
        loss = (module(x) - 1).square().mean()
        loss.backward()
        sync.step(loss, samples=len(x))
    if sys.argv[1] == "fails":
        sync.evaluate(lambda module, data: 1 / 0)
"""
WITH_VALIDATION = """
name: unevaluated
model: {source: script}
data: {source: script, train: 40, validation: 5}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}, warm_start: null}
limits: {epochs: 2}
"""


@pytest.mark.parametrize(("way", "code", "failed"), [("never", 0, ""), ("fails", 3, "script.py:18: ZeroDivisionError")])
def test_scripts_that_do_not_evaluate_leave_their_model(way: str, code: int, failed: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNEVALUATED)
    summary = launch(tmp_path, WITH_VALIDATION, 2, script, way, code=code)
    assert summary["samples"] == 80
    assert summary["validation_loss"] is None
    assert failed in summary["evaluation_failed"].get("validation", "")
    assert (tmp_path / "runs/unevaluated/model.safetensors").exists()
