"""Stacks trained by real processes: the first, the second on it, then both at once, on two replicas."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.data.digits import load_digits

from .conftest import Operator
from .untrained import first_loss

pytestmark = pytest.mark.processes

JOB = """
name: deep
model:
  stacks:
    - {window: 4, block: 2, maps: 2, pool: 2, contrast: {size: 1}}
    - {window: 2, block: 1, maps: 2, pool: 2}
  image: [8, 8, 1]
data: {source: digits}
strategy: {name: downpour, batch: 32, rule: {name: adam, rate: 0.01}}
limits: {epochs: 3}
evaluate: {keep: last}
shards: 1
device: cpu
"""


@pytest.mark.long
def test_one_after_the_other_then_both(operator: Operator) -> None:
    job, runs = operator.write_job(JOB), operator.folder / "runs"

    def trained(name: str, **fields: str) -> tuple[float, float]:
        """Test loss of a run, at its start and at its end."""
        fields = {name.replace("__", "."): value for name, value in {"name": name, **fields}.items()}
        settings = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
        start = first_loss(job, fields)
        return start, operator.trained(name, job, *settings)["test_loss"]

    first = trained("first", model__train="1")
    below = (runs / "first" / "model.safetensors").read_bytes()
    second = trained("second", model__trained="[runs/first]")
    both = trained("both", model__train="all", model__trained="[runs/first, runs/second]", replicas="2")
    assert first[1] < 0.5 * first[0]
    assert second[1] < 0.8 * second[0]
    assert both[0] == pytest.approx(first[1] + second[1], rel=1e-5)  # greedy: each one's own loss
    assert both[1] < both[0]
    assert (runs / "first" / "model.safetensors").read_bytes() == below
    tensors = {name: load_file(runs / name / "model.safetensors") for name in ("first", "second", "both")}
    assert set(tensors["second"]) == {"stack2.weight", "stack2.alpha"}
    assert set(tensors["both"]) == {*tensors["first"], *tensors["second"]}
    digits = load_digits(["train"]).train
    assert digits is not None
    np.savez(operator.folder / "digits.npz", inputs=digits.inputs.astype("float32"), targets=digits.targets)
    report = operator.start("report", "report", "runs/second", "--images", "digits.npz", "--output", "drawn")
    assert report.ends() == 0, report.log.read_text()
    assert "of the other half" in report.log.read_text()
    assert (operator.folder / "drawn" / "stimuli.png").stat().st_size > 0
