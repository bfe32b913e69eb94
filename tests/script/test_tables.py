"""Rows of tables in scripts: as a plain program with dense embeddings, on several workers, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

from dbelief.job import parse_job  # noqa: E402
from dbelief.monitor.event_text import event_text  # noqa: E402
from dbelief.sparse.table import number_tables  # noqa: E402  (after the check for torch)
from tests.script.rows import BATCH, IDS, SAMPLES, Clicks, dataset, new_out  # noqa: E402
from tests.script.test_whole import launch  # noqa: E402

FIRST_AND_LAST = slice(0, 5), slice(-5, None)
ROWS = Path(__file__).with_name("rows.py")
JOB = """
name: rows
model: {source: script}
data: {source: script, train: 240}
strategy: {name: downpour, batch: 20, lease: 20, rule: {name: sgd, rate: 0.1}, warm_start: null}
schedule: {kind: step, every: 240, factor: 0.5}
limits: {epochs: 3}
shards: 2
tables:
  user: {width: 4, rule: {name: adagrad, rate: 0.05}, init: uniform(0.5), buckets: 3}
  item: {width: 2, rule: {name: lazy-adam, rate: 0.02}, init: uniform(0.5)}
"""
SYNCHRONOUS = "{name: sync-sgd, form: shards, batch: 20, rule: {name: sgd, rate: 0.1}}"


def plain(order: list[list[int]], every: int) -> tuple[list[float], list[np.ndarray]]:
    """Losses, and rows at the end, of the same job by torch alone, with dense embeddings, for batches in this order.

    Rates are halved each `every` samples.
    """
    sections = parse_job(JOB, Path(), "job").tables
    keys = np.arange(IDS) - 10, np.arange(IDS) * 10**12
    first = [torch.from_numpy(one.initial(own)) for one, own in zip(number_tables(sections, 0, 1), keys, strict=True)]
    user = torch.nn.Embedding.from_pretrained(first[0], freeze=False)
    item = torch.nn.EmbeddingBag.from_pretrained(first[1], freeze=False, mode="sum", sparse=True)
    module = new_out(Clicks(user, item))
    optimizers: list[Any] = [
        torch.optim.SGD(module.out.parameters(), lr=0.1),
        torch.optim.Adagrad(user.parameters(), lr=0.05, eps=1e-12),
        torch.optim.SparseAdam(item.parameters(), lr=0.02),
    ]
    _, users, items, clicks = dataset().tensors
    losses = []
    for number, own in enumerate(order):
        logits = module(users[own] + 10, items[own] // 10**12)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, clicks[own])
        for one, rate in zip(optimizers, (0.1, 0.05, 0.02), strict=True):
            one.zero_grad()
            one.param_groups[0]["lr"] = rate * 0.5 ** (number * BATCH // every)
        loss.backward()
        for one in optimizers:
            one.step()
        losses.append(loss.item())
    return losses, [user.weight.detach().numpy(), item.weight.detach().numpy()]


def ends(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in folder.glob("end-*.json")]


@pytest.mark.parametrize(("epochs", "every"), [(3, 240), pytest.param(84, 5_000, marks=pytest.mark.long)])
def test_one_worker_is_the_plain_program_with_dense_embeddings(epochs: int, every: int, tmp_path: Path) -> None:
    """Adagrad, and Adam as `SparseAdam` has it, each with a rate of its own that follows the schedule."""
    job = JOB.replace("epochs: 3", f"epochs: {epochs}").replace("every: 240", f"every: {every}")
    launch(tmp_path, job, 1, ROWS, str(tmp_path))
    (end,) = ends(tmp_path)
    order = [own for own, _ in end["losses"]]
    assert len(order) == epochs * SAMPLES // BATCH
    losses, rows = plain(order, every)
    assert [loss for _, loss in end["losses"]] == pytest.approx(losses, rel=1e-5)
    gaps = [np.max(np.abs(found - expected)) for found, expected in zip(end["rows"], rows, strict=True)]
    print(f"largest difference after {len(order)} steps: {gaps[0]:.1e} (Adagrad), {gaps[1]:.1e} (SparseAdam)")
    assert max(gaps) <= 1e-6


@pytest.mark.parametrize("strategy", ["downpour", "sync-sgd"])
def test_rows_pulled_ahead(strategy: str, tmp_path: Path) -> None:
    """In lockstep they are those of the step; free running, those of the step before where it has changed them."""
    job = JOB if strategy == "downpour" else re.sub("strategy: .*", f"strategy: {SYNCHRONOUS}", JOB)
    losses, stale = [], []
    for what in ("", "ahead"):
        (folder := tmp_path / f"run-{what}").mkdir()
        stale.append(launch(folder, job, 1, ROWS, str(folder), what)["staleness_mean"])
        (end,) = ends(folder)
        losses.append(end["losses"])
    assert [own for own, _ in losses[0]] == [own for own, _ in losses[1]]
    assert (losses[0] == losses[1]) is (strategy == "sync-sgd")
    assert stale[0] == 0
    assert (stale[1] > 0) is (strategy == "downpour")
    first, last = (np.mean([loss for _, loss in losses[1][part]]) for part in FIRST_AND_LAST)
    assert last < first


@pytest.mark.parametrize(("strategy", "copies"), [("downpour", 2), ("sync-sgd", 1)])
def test_two_workers_one_of_which_is_killed(strategy: str, copies: int, tmp_path: Path) -> None:
    job = JOB.replace("limits: {epochs: 3}", "limits: {epochs: 12}")
    if strategy == "sync-sgd":
        job = re.sub("strategy: .*", f"strategy: {SYNCHRONOUS}", job)
    job = job.replace("shards: 2", f"shards: 2\nreplication: {copies}")
    summary = launch(tmp_path, job.replace("every: 240", "every: 2400"), 2, ROWS, str(tmp_path), "9")
    assert (tmp_path / "died").exists()
    assert summary["samples"] == 12 * SAMPLES
    found = ends(tmp_path)
    first, last = (np.mean([loss for one in found for _, loss in one["losses"][part]]) for part in FIRST_AND_LAST)
    assert last < 0.92 * first


def read_by_the_user(
    folder: Path, job: str, what: str, wanted: str, *options: str, workers: int = 1, code: int = 1
) -> str:
    """All that a run says, in which a line is as wanted, and ends with an exit code."""
    (folder / "job.yaml").write_text(job)
    words = ["run", "--quiet", "--job", "job.yaml", "--workers", str(workers), *options, str(ROWS), str(folder), what]
    ended = subprocess.run(
        [sys.executable, "-m", "dbelief", *words], check=False, cwd=folder, capture_output=True, text=True
    )
    said = ended.stderr + ended.stdout
    assert "Traceback" not in said
    found = [match[0] for line in said.splitlines() if (match := re.search(wanted, line))]
    assert found, said
    assert ended.returncode == code, said
    print(f"read by the user, exit code {ended.returncode}: {found[-1]}")
    return said


def test_a_gradient_that_is_not_finite_names_table_and_key(tmp_path: Path) -> None:
    wanted = r"worker-0 ended with exit code 1: the gradient of table 'user' is not finite for key -?\d+"
    lines = read_by_the_user(tmp_path, JOB, "nan", wanted).splitlines()
    assert [line for line in lines if not re.search(wanted, line)] == [], "a line for each start, and one for the run"


def test_a_key_beyond_int64(tmp_path: Path) -> None:
    wanted = r"ended with exit code 2: .*the key 9223372036854775808 is beyond int64: keys are from -2\^63 to 2\^63 - 1"
    said = read_by_the_user(tmp_path, JOB, "beyond", wanted)
    assert len(re.findall(wanted, said)) == 2, "as it happens and at the end: another start cannot help"


def test_a_full_table_trains_on(tmp_path: Path) -> None:
    """Its rows go on to learn; what other keys are pushed is dropped, and counted."""
    job = JOB.replace("buckets: 3}", "buckets: 3, most_rows: 12}").replace("epochs: 3", "epochs: 90")
    read_by_the_user(tmp_path, job, "", "21,600 samples trained", code=0)
    happened = [json.loads(line) for line in (tmp_path / "runs/rows/events.jsonl").read_text().splitlines()]
    lines = [text for one in happened if (text := event_text(one["event"], one)) and "table" in text]
    assert len(lines) == 1
    assert re.search("table user is full", lines[0])
    print(f"read among the events: {lines[0]}")
    (end,) = ends(tmp_path)
    first, last = (np.mean([loss for _, loss in end["losses"][part]]) for part in FIRST_AND_LAST)
    assert last < first


@pytest.mark.long
def test_a_script_that_reads_other_tables_is_refused(tmp_path: Path) -> None:
    wanted = r"replica's module reads rows of (user, and that of the job of item|item, user, and that)[^;]*"
    said = read_by_the_user(tmp_path, JOB.replace("epochs: 3", "epochs: 300"), "other", wanted, workers=2, code=0)
    assert "ended with exit code 2" in said, "another start cannot help"


@pytest.mark.long
def test_a_run_is_not_resumed_with_other_rows(tmp_path: Path) -> None:
    launch(tmp_path, JOB, 1, ROWS, str(tmp_path))
    other = JOB.replace("width: 4", "width: 8").replace("epochs: 3", "epochs: 4")
    wanted = r"^Error: snapshot set \S+: table 'user' has rows of 4 numbers in it, and width 8 in the job file;.*"
    said = read_by_the_user(tmp_path, other, "", wanted, "--resume", code=2)
    assert len([line for line in said.splitlines() if line.startswith("Error: ")]) == 1
