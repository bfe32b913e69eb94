"""Scripts that make their own steps: what they must do, and loops that no rule of the shards could make."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError
from tests.processes.conftest import Operator, wait_for

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from dbelief.torch.own_steps import OwnSteps  # noqa: E402  (after the check for torch)

LOOPS = Path(__file__).with_name("own_loops.py")
SAMPLES = 1024
JOB = """
name: own
model: {{source: script}}
data: {{source: script, train: 1024, validation: 1}}
strategy: {strategy}
limits: {{epochs: {epochs}}}
deadlines: {{beat_s: 2, lease_s: 1}}
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("loop", "strategy", "epochs", "off"),
    [
        ("gan", "{name: downpour, batch: 32, staleness: 0, rule: {name: add}, warm_start: null}", 30, 2.0),
        ("gan", "{name: diloco, batch: 32, steps: 4, outer: {name: nesterov, rate: 0.7, mu: 0.6}, delay: 4}", 30, 2.0),
        ("gan", "{name: diloco, batch: 32, steps: 4, outer: {name: nesterov, rate: 0.7, mu: 0.6}, quorum: 1}", 30, 2.0),
        ("closures", "{name: async-easgd, batch: 32, rate: 0.1, period: 2, overlap: true}", 30, 0.01),
    ],
)
def test_one_of_two_is_killed_midway(
    loop: str, strategy: str, epochs: int, off: float, operator: Operator, tmp_path: Path
) -> None:
    job, log = str(operator.write_job(JOB.format(strategy=strategy, epochs=epochs))), tmp_path / "steps"
    words = ["--quiet", "--job", job, "--workers", "2", str(LOOPS), loop, str(log)]
    launcher = operator.start("run", "run", *words)

    def processes() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    wait_for(lambda: len(processes()) >= epochs * 8 and len({*processes()}) == 2, "a quarter of the steps, by two")
    os.kill(int(processes()[-1]), signal.SIGKILL)
    assert launcher.ends() == 0, launcher.log.read_text()
    summary = operator.summary("own")
    assert len(summary["died"]) == 1
    assert summary["samples"] == epochs * SAMPLES
    assert summary["pushes_lost"] == 0
    # Untrained the GAN is 3 off; where it is after so few steps depends on the order of the pushes.
    assert summary["validation_loss"] < off


def own() -> tuple[Any, Any, OwnSteps]:
    parameter = torch.nn.Parameter(torch.ones(3))
    steps = OwnSteps([parameter])
    steps.loaded()
    return parameter, torch.optim.SGD([parameter], lr=0.0), steps


def test_a_script_without_a_step_is_refused_at_its_first_mark() -> None:
    parameter, _, steps = own()
    parameter.sum().backward()
    with pytest.raises(UserError, match=r"makes its own steps; call optimizer\.step\(\) and optimizer\.zero_grad\(\)"):
        steps.mark()


def test_a_step_at_rate_0_is_one() -> None:
    parameter, optimizer, steps = own()
    parameter.sum().backward()
    optimizer.step()
    assert steps.mark() is False
    assert steps.mark() is True, "left out, as a scaler does"
    optimizer.step()
    assert steps.mark() is False


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_overflow_at_the_first_step_is_no_mistake(value: float) -> None:
    parameter, _, steps = own()
    assert steps.mark() is True, "its gradients were cleared already"
    parameter.grad = torch.full((3,), value)
    assert steps.mark() is True


def test_a_step_without_an_optimiser_is_one() -> None:
    parameter, _, steps = own()
    parameter.sum().backward()
    parameter.data -= parameter.grad
    assert [steps.mark() for _ in range(3)] == [False] * 3


def test_its_hook_goes_with_it() -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    before = len(hooks)
    _, _, steps = own()
    assert len(hooks) == before + 1
    del steps
    assert len(hooks) == before
