"""One replica equals the plain PyTorch program to rounding, buffers included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

LOOP = Path(__file__).with_name("loop.py")
JOB = """
name: identity
model: {{source: script}}
data: {{source: script, train: 400}}
strategy: {strategy}
limits: {{epochs: {epochs}}}
seed: 3
shards: {shards}
"""


def run(folder: Path, kind: str, strategy: str, shards: int = 1, **more: int) -> tuple[Any, Any]:
    """States of the module after the plain program, and after the job."""
    words = [kind, str(folder), *(f"{name}={value}" for name, value in more.items())]
    subprocess.run([sys.executable, str(LOOP), "plain", *words], check=True, cwd=folder)
    (folder / "job.yaml").write_text(JOB.format(strategy=strategy, shards=shards, epochs=more.get("epochs", 2)))
    launched = [sys.executable, "-m", "dbelief", "run", "--quiet", "--job", "job.yaml", str(LOOP), "script", *words]
    subprocess.run(launched, check=True, cwd=folder)
    return torch.load(folder / "plain.pt"), torch.load(folder / "script.pt")


def check(folder: Path, plain: Any, script: Any, tolerance: float) -> None:
    losses, others = (json.loads((folder / f"{way}.json").read_text()) for way in ("plain", "script"))
    assert len(losses) == len(others) > 0
    assert losses == pytest.approx(others, rel=tolerance)
    assert plain.keys() == script.keys()
    for name, values in plain.items():
        torch.testing.assert_close(script[name], values, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("sgd", "{name: sgd, rate: 1, weight_decay: 0.001}"),
        ("momentum", "{name: momentum, rate: 1, mu: 0.9}"),
        ("nesterov", "{name: nesterov, rate: 1, mu: 0.9}"),
        ("adagrad", "{name: adagrad, rate: 1, eps: 1.0e-6}"),
        ("adam", "{name: adam, rate: 1}"),
        ("adamw", "{name: adamw, rate: 1, weight_decay: 0.05}"),
    ],
)
def test_a_rule_of_the_shards_makes_the_optimisers_steps(kind: str, rule: str, tmp_path: Path) -> None:
    plain, script = run(tmp_path, kind, f"{{name: downpour, batch: 20, rule: {rule}}}", shards=2)
    check(tmp_path, plain, script, 2e-5)


def test_scheduled_rates_and_accumulation_are_the_scripts(tmp_path: Path) -> None:
    strategy = "{name: downpour, batch: 20, rule: {name: momentum, rate: 1, mu: 0.9}}"
    plain, script = run(tmp_path, "momentum", strategy, accumulate=2, cosine=1, workers=2)
    check(tmp_path, plain, script, 2e-5)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_optimiser_with_groups_and_a_schedule_steps_itself(tmp_path: Path, workers: int) -> None:
    strategy = "{name: downpour, batch: 20, rule: {name: add}}"
    plain, script = run(tmp_path, "groups", strategy, cosine=1, workers=workers, epochs=10, own=1)  # 200 steps
    check(tmp_path, plain, script, 1e-6)


@pytest.mark.parametrize("delay", [0, 4])
def test_elastic_averaging_follows_the_scripts_own_steps(delay: int, tmp_path: Path) -> None:
    overlap = str(bool(delay)).lower()
    strategy = f"{{name: async-easgd, batch: 20, rate: 0.5, rho: 0.5, period: 4, lease: 80, overlap: {overlap}}}"
    plain, script = run(tmp_path, "groups", strategy, own=1, elastic=4, delay=delay)
    for name in [name for name in plain if "running" in name or "batches" in name]:
        del plain[name], script[name]  # averaged as weights are, and by the plain program not
    check(tmp_path, plain, script, 1e-6)


@pytest.mark.parametrize(
    ("cadence", "delay"),
    [
        ("batch: 20, steps: 4", 0),
        ("batch: 20, steps: 4, delay: 3", 3),
        ("batch: 20, steps: 4, delay: 4", 4),
        ("batch: 40, steps: 2, delay: 1", 2),
    ],
)
def test_diloco_of_one_replica_steps_by_what_the_scripts_steps_have_changed(
    cadence: str, delay: int, tmp_path: Path
) -> None:
    """Also where a round's push travels into the next lease, and where the script evaluates meanwhile."""
    strategy = f"{{name: diloco, {cadence}, lease: 160, outer: {{name: nesterov, rate: 0.7, mu: 0.6}}}}"
    plain, script = run(tmp_path, "groups", strategy, shards=2, own=1, diloco=4, delay=delay, evaluates=delay)
    check(tmp_path, plain, script, 1e-5)


def test_diloco_keeps_a_share_of_the_scripts_parameters(tmp_path: Path) -> None:
    strategy = "{name: diloco, batch: 20, steps: 4, delay: 2, blend: 0.3, outer: {name: nesterov, rate: 0.7, mu: 0.6}}"
    plain, script = run(tmp_path, "momentum", strategy, shards=2, own=1, diloco=4, delay=2, keeps=30)
    check(tmp_path, plain, script, 1e-5)


def test_fragments_of_one_replica_leave_its_own_steps_as_they_are(tmp_path: Path) -> None:
    """The outer rule makes the replica's parameters the shards'. Each fragment has one push in each round."""
    strategy = "{name: diloco, batch: 20, steps: 4, fragments: 3, delay: 1, weigh: rate, lease: 160, OUTER}"
    strategy = strategy.replace("OUTER", "outer: {name: sgd, rate: 1}")
    plain, script = run(tmp_path, "momentum", strategy, shards=2, own=1, width=72, pushes=1)
    check(tmp_path, plain, script, 1e-5)
    pushes = json.loads((tmp_path / "pushes.json").read_text())
    fragments = [within for _, _, within in pushes[:3]]
    assert sorted(segment for within in fragments for segment in within) == list(range(sum(map(len, fragments))))
    assert min(map(len, fragments)) > 1
    assert [within for _, _, within in pushes] == fragments * (len(pushes) // 3)
    assert [clock for clock, _, _ in pushes] == [number // 3 for number in range(len(pushes))]
    # Samples times samples a step, over those of a mini-batch: after 2, 3 and 4 steps, then of a lease's last round.
    assert [weight for _, weight, _ in pushes[:6]] == [40, 60, 80, 120, 100, 80]


def test_synchronous_sgd_of_one_replica(tmp_path: Path) -> None:
    strategy = "{name: sync-sgd, form: shards, batch: 20, rule: {name: momentum, rate: 1, mu: 0.9}}"
    plain, script = run(tmp_path, "momentum", strategy, workers=2)
    check(tmp_path, plain, script, 2e-5)
