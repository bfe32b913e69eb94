"""Scripts whose model is the number of their steps, while exchanges travel: it has each step once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

from safetensors.numpy import load_file  # noqa: E402  (after the check for torch)

from tests.script.test_faults import run_script  # noqa: E402
from tests.script.test_whole import launch  # noqa: E402

COUNTED = Path(__file__).with_name("counted.py")
SAMPLES, EPOCHS = 240, 2
JOB = f"""
name: counted
model: {{{{source: script}}}}
data: {{{{source: script, train: {SAMPLES}}}}}
strategy: {{strategy}}
limits: {{{{epochs: {EPOCHS}}}}}
"""
TRAVELS = "{name: downpour, batch: 10, lease: 60, rule: {name: add}, n_push: 3, n_fetch: 3, overlap: true}"


def trained(folder: Path, strategy: str, workers: int, *words: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary, and the rows of the log; the model is the number of steps in them."""
    log = folder / "log"
    summary = launch(folder, JOB.format(strategy=strategy), workers, COUNTED, str(log), *words)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    steps = sum(not row["skipped"] for row in rows)
    assert load_file(folder / "runs/counted/model.safetensors")["steps"].tolist() == [steps] == [summary["steps"]]
    assert summary["died"] == []
    return summary, rows


def samples(rows: Sequence[dict[str, Any]], skipped: bool = False) -> Counter[int]:
    return Counter(one for row in rows if row["skipped"] is skipped for one in row["samples"])


def test_skipped_samples_go_to_the_next_replica(tmp_path: Path) -> None:
    """A push travels, and further steps are not pushed yet, where a batch is skipped. All are merged once."""
    summary, rows = trained(tmp_path, TRAVELS, 2, "skips=5", "together=2")
    assert any(row["skipped"] for row in rows)
    assert summary["samples"] == EPOCHS * SAMPLES
    assert samples(rows) == dict.fromkeys(range(SAMPLES), EPOCHS)


def test_skipped_samples_count_as_done(tmp_path: Path) -> None:
    summary, rows = trained(tmp_path, TRAVELS, 1, "skips=5", "again=0")
    skipped = samples(rows, skipped=True)
    assert skipped.total() == 90
    assert summary["samples"] == EPOCHS * SAMPLES - 90
    assert samples(rows) + skipped == dict.fromkeys(range(SAMPLES), EPOCHS)
    pushes = unpushed = 0
    for number, row in enumerate(rows, 1):
        unpushed += not row["skipped"]
        if unpushed and (row["skipped"] or unpushed == 3 or number % 6 == 0):
            pushes, unpushed = pushes + 1, 0
    assert summary["pushes"] == pushes, "steps before skipped samples are pushed before those count as done"


def test_in_rounds_a_batch_cannot_be_skipped(tmp_path: Path) -> None:
    job = JOB.format(strategy="{name: diloco, batch: 10, steps: 2, delay: 2}")
    ended = run_script(tmp_path, job, 1, COUNTED, "log", "skips=4")
    assert ended.returncode == 1
    (line,) = [number for number, text in enumerate(COUNTED.read_text().splitlines(), 1) if "sync.skip(" in text]
    assert f"{COUNTED}:{line}: sync.skip: replicas wait for each other's steps" in ended.stderr
    assert len((tmp_path / "log").read_text().splitlines()) == 3, "the push of the first round travels"


@pytest.mark.parametrize(("staleness", "period"), [(2, 1), (4, 2)])
def test_a_slow_replica_and_a_bound_of_staleness(staleness: int, period: int, tmp_path: Path) -> None:
    cadence = f"n_push: {period}, n_fetch: {period}, overlap: true, staleness: {staleness}"
    strategy = f"{{name: downpour, batch: 10, rule: {{name: add}}, warm_start: null, {cadence}}}"
    summary, rows = trained(tmp_path, strategy, 2, "slow=20", "together=2")
    assert summary["samples"] == EPOCHS * SAMPLES
    assert samples(rows) == dict.fromkeys(range(SAMPLES), EPOCHS)
    lead = most = 0
    for row in rows:
        lead += 1 if row["replica"] else -1
        most = max(most, abs(lead))
    # A step's push travels while the next one is made, and the slow one's last row may not be written yet.
    assert most <= staleness + 2 * period
