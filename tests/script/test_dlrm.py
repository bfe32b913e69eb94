"""The recommendation model of `examples/scripts`: what is drawn, its job, and a run of two workers."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from dbelief.evaluation.click_measures import ClickMeasures
from dbelief.job import parse_job

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = pytest.mark.torch

from tests.script.test_whole import launch  # noqa: E402  (after the check for torch)

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
STEPS, BATCH = 300, 512


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The names of the plain script."""
    return runpy.run_path(str(SCRIPTS / "dlrm.py"))


def entropy(share: float) -> float:
    """Log loss of the constant predictor."""
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def test_keys_follow_zipfs_law_and_clicks_their_probabilities(script: dict[str, Any]) -> None:
    samples = 20_000
    numbers, keys, clicks, probabilities = script["drawn"](samples, 3)
    again = script["drawn"](samples, 3)
    assert all(map(torch.equal, again, (numbers, keys, clicks, probabilities)))
    assert not torch.equal(script["drawn"](samples, 4)[1], keys)
    assert (numbers.shape, keys.shape) == ((samples, 13), (samples, 26))
    for own, rows in zip(keys.split(13, 1), (1_000_000, 5_000_000), strict=True):
        each = rows // 13
        ranks = own - each * torch.arange(13)
        assert 0 <= ranks.min() <= ranks.max() < each, "each column has a range of its own"
        for rank in range(3):
            expected = math.log(1 + 1 / (rank + 1)) / math.log(each)
            assert (ranks == rank).double().mean().item() == pytest.approx(expected, rel=0.05)
    assert clicks.mean().item() == pytest.approx(probabilities.mean().item(), abs=0.01)
    best = torch.nn.functional.binary_cross_entropy(probabilities, clicks).item()
    assert best < entropy(clicks.mean().item()) - 0.1, "what is known of a sample says much of its click"


def test_measures_are_those_of_a_finer_histogram(script: dict[str, Any]) -> None:
    _, _, clicks, probabilities = script["drawn"](5_000, 0)
    sums, expected = script["no_sums"](), ClickMeasures()
    for part in torch.arange(5_000).split(512):
        script["add"](sums, probabilities[part].logit(), clicks[part])
        expected.add(probabilities[part], clicks[part])
    loss, auc = script["measures"](sums)
    assert loss == pytest.approx(expected.overall.log_loss, rel=1e-5)
    assert auc == pytest.approx(expected.auc, abs=1e-3)


def test_the_job_of_the_example_is_one(script: dict[str, Any]) -> None:
    job = parse_job((SCRIPTS / "dlrm.yaml").read_text(), SCRIPTS, "dlrm.yaml")
    assert list(job.tables) == list(script["ROWS"])
    assert {table.width for table in job.tables.values()} == {script["WIDTH"]}
    assert job.strategy.batch == script["BATCH"]


@pytest.mark.long
@pytest.mark.processes
def test_two_workers_learn_what_a_constant_does_not_know(tmp_path: Path) -> None:
    samples = STEPS * BATCH
    job = (SCRIPTS / "dlrm.yaml").read_text().replace("train: 200000", f"train: {samples}")
    summary = launch(tmp_path, job, 2, SCRIPTS / "dlrm_job.py", str(samples))
    assert summary["samples"] == samples
    sums = load_file(tmp_path / "runs/dlrm/model.safetensors")["sums"][:-1]
    assert sums.sum() == samples, "each sample was counted once"
    constant = entropy(sums[sums.size // 2 :].sum() / samples)
    metrics = summary["validation_metrics"]
    assert metrics["progressive_log_loss"] < constant - 0.05
    assert summary["validation_loss"] < constant - 0.05
    assert metrics["auc"] > 0.74  # measured: 0.77 after 60,000 samples
