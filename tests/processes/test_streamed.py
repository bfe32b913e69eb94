"""Jobs on Parquet files: streamed as in memory, bit for bit; and killed inside an epoch, with no sample skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dbelief.data import sizes
from dbelief.job import load_job

from .conftest import Operator, parameters

pytestmark = pytest.mark.processes

JOB = """
name: table
model: {layers: [{dense: 12}, tanh, {dense: 2}], loss: softmax_cross_entropy}
data: {source: parquet, files: "part-*.parquet", kind: classes, target: label, categories: word, standardize: true,
       window: 2, memory: 1}
strategy: {name: downpour, batch: 20, rule: {name: adagrad, rate: 0.05}, lease: 300, warm_start: null}
limits: {epochs: 4}
evaluate: {every: 1200}
snapshots: {every_s: null}
shards: 2
replicas: 1
seed: 3
threads: 1
"""
ROWS, GROUP, FILES = 1_000, 150, 3


def write_files(folder: Path) -> None:
    """Write the files from a seed."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        x = rng.normal(size=(ROWS, 4)).astype(np.float32)
        columns = {f"x{place}": x[:, place] for place in range(4)}
        words = np.array(["left", "right", "middle"])[rng.integers(0, 3, ROWS)]
        label = np.where(x[:, 0] + (words == "left") > x[:, 1], "yes", "no")
        whole = pa.table({**columns, "word": words, "label": label})
        pq.write_table(whole, folder / f"part-{number}.parquet", row_group_size=GROUP)


def test_streamed_as_in_memory_to_the_bit(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(operator.folder / "cache"))
    write_files(operator.folder)
    job = operator.write_job(JOB)
    for name, streamed in (("table", "true"), ("held", "false")):
        fields = (f"name={name}", f"data.streamed={streamed}", "limits.epochs=2")
        operator.trained(name, job, *(f"--set={field}" for field in fields))
    one, other = (parameters(operator.folder / "runs" / name) for name in ("table", "held"))
    assert one == other
    losses = [[event["loss"] for event in operator.events(name, "evaluation")] for name in ("table", "held")]
    assert losses[0] == losses[1]
    assert operator.summary("table")["test_accuracy"] > 0.8


@pytest.mark.long
def test_a_job_that_is_killed_inside_an_epoch_skips_no_row(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(operator.folder / "cache"))
    write_files(operator.folder)
    job = operator.write_job(JOB.replace("every_s: null", "every_s: 0.5").replace("replicas: 1", "replicas: 2"))
    operator.compute_wait_s = 0.02
    coordinator, address = operator.coordinator(job)
    members = operator.members(address, 2, 2)
    operator.until_samples("table", 3_000)
    for role in (*members, coordinator):
        role.kill()
    assert not (operator.folder / "runs" / "table" / "summary.json").exists()
    coordinator, address = operator.coordinator(job, "--resume")
    members = operator.members(address, 2, 2)
    assert coordinator.ends() == 0
    assert [member.ends() for member in members] == [0] * 4
    summary = operator.summary("table")
    described = load_job(job)
    assert summary["samples"] == 4 * sizes(described.data, described.folder)[0]
    assert summary["pushes_trained_twice"] <= 2
