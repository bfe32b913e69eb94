"""Steps that a GradScaler leaves out, as it is found without being named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from dbelief.torch.loss_scaling import LossScaling  # noqa: E402  (after the check for torch)
from tests.script.test_whole import launch  # noqa: E402


def optimizer() -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)


def backward(scaler: Any, of: Any, factor: float = 1.0) -> None:
    (own,) = of.param_groups[0]["params"]
    scaler.scale((own * factor).sum()).backward()


@pytest.mark.parametrize("kind", [torch.amp.GradScaler, type("Own", (torch.amp.GradScaler,), {})])
def test_an_overflow_of_the_optimisers_own_gradients(kind: Any) -> None:
    mine, others = optimizer(), optimizer()
    scaler = kind("cpu")
    scaling, apart = LossScaling(mine), LossScaling(others)
    for factor, wanted in ((1.0, False), (float("inf"), True), (1.0, False)):
        for of, one in ((mine, factor), (others, 1.0)):
            of.zero_grad()
            backward(scaler, of, one)
            scaler.unscale_(of)
        assert scaling.leaves_out() is wanted
        assert apart.leaves_out() is False
        scaler.update()
        assert scaling.leaves_out() is False, "updated: it says nothing of the next step"


def test_a_scaler_that_the_script_makes_later_is_found_by_a_search() -> None:
    mine = optimizer()
    scaling = LossScaling(mine)
    assert not scaling.leaves_out()
    scaler = torch.amp.GradScaler("cpu")
    backward(scaler, mine, float("nan"))
    scaler.unscale_(mine)
    assert not scaling.leaves_out()
    assert scaling.leaves_out(search=True)
    assert scaling.leaves_out()


def test_one_that_is_off_leaves_nothing_out() -> None:
    mine = optimizer()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    backward(scaler, mine, float("inf"))
    scaler.unscale_(mine)
    assert not LossScaling(mine).leaves_out(search=True)


def test_gradients_that_are_not_unscaled_are_refused() -> None:
    mine = optimizer()
    scaler = torch.amp.GradScaler("cpu")
    backward(scaler, mine)
    with pytest.raises(UserError, match=r"multiplied by the scale of a GradScaler, 65536: call scaler\.unscale_\("):
        LossScaling(mine).leaves_out()
    scaler.unscale_(mine)
    assert not LossScaling(mine).leaves_out()


SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x.sum(1) > 0).long())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, model, optimizer)
    for x, y in DataLoader(data, batch_sampler=job.sampler(data, 10)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        if len(sys.argv) > 1:  # its own steps
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            lowered = sync.step(loss, samples=len(x)).left_out
        else:
            scaler.unscale_(optimizer)
            lowered = sync.step(loss, samples=len(x)).left_out
            scaler.update()
        assert lowered == (scaler.get_scale() < before)
"""
JOB = """
name: scaled
model: {{source: script}}
data: {{source: script, train: 200}}
strategy: {strategy}
limits: {{epochs: 3}}
"""
LONG = pytest.mark.long


@pytest.mark.processes
@pytest.mark.parametrize(
    "strategy",
    [
        "{name: downpour, batch: 10, staleness: 0, rule: {name: sgd, rate: 0.1}, warm_start: null}",
        pytest.param("{name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}, warm_start: null}", marks=LONG),
        pytest.param(
            "{name: downpour, batch: 10, rule: {name: add}, n_push: 3, n_fetch: 3, warm_start: null}", marks=LONG
        ),
        pytest.param("{name: async-easgd, batch: 10, rate: 0.1, period: 2}", marks=LONG),
    ],
)
def test_a_job_goes_on_after_overflows(strategy: str, tmp_path: Path) -> None:
    """The first steps overflow, and one now and then; their samples are done, and they are counted."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    own = ["own"] * ("add" in strategy or "easgd" in strategy)
    summary = launch(tmp_path, JOB.format(strategy=strategy), 2, script, *own)
    assert summary["died"] == []
    assert summary["samples"] == 3 * 200
    assert 2 * 8 <= summary["steps_left_out"] < 50
