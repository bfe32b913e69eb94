"""Scripts whose model is the number of their steps, while exchanges travel: it has each step once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError

torch = pytest.importorskip("torch", reason="the torch extra is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.processes]

from safetensors.numpy import load_file  # noqa: E402  (after the check for torch)

from tests.equivalence.in_process import whole_job  # noqa: E402
from tests.script import counted  # noqa: E402
from tests.script.test_whole import launch  # noqa: E402

COUNTED = Path(counted.__file__)
EPOCHS = 2
JOB = f"""
name: counted
model: {{{{source: script}}}}
data: {{{{source: script, train: {counted.SAMPLES}}}}}
strategy: {{strategy}}
limits: {{{{epochs: {EPOCHS}}}}}
replicas: {{replicas}}
"""
TRAVELS = "{name: downpour, batch: 10, lease: 60, rule: {name: add}, n_push: 3, n_fetch: 3, overlap: true}"

Run = Callable[..., tuple[dict[str, Any], list[dict[str, Any]]]]


def counted_in(run: Path, log: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary of a run, and the rows of the log; the model is the number of steps in them."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    steps = sum(not row["skipped"] for row in rows)
    assert load_file(run / "model.safetensors")["steps"].tolist() == [steps] == [summary["steps"]]
    assert summary["died"] == []
    return summary, rows


@pytest.fixture(autouse=True)
def _torch_as_before() -> Iterator[None]:
    """What scripts in threads of this process set holds for all of it."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give trained(strategy, replicas, **more): run the script in threads of this process; see `counted_in`."""

    def run(strategy: str, replicas: int, **more: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        def replica(address: str, folder: Path) -> None:
            counted.train(folder / "log", address, **more)

        job = JOB.format(strategy=strategy, replicas=replicas)
        return counted_in(whole_job(job, tmp_path, monkeypatch, replica=replica), tmp_path / "log")

    return run


def samples(rows: Sequence[dict[str, Any]], skipped: bool = False) -> Counter[int]:
    return Counter(one for row in rows if row["skipped"] is skipped for one in row["samples"])


def test_skipped_samples_go_to_the_next_replica(tmp_path: Path) -> None:
    """A push travels, and further steps are not pushed yet, where a batch is skipped. All are merged once."""
    job, log = JOB.format(strategy=TRAVELS, replicas=2), str(tmp_path / "log")
    launch(tmp_path, job, 2, COUNTED, log, "skips=5", "together=2")
    summary, rows = counted_in(tmp_path / "runs/counted", tmp_path / "log")
    assert any(row["skipped"] for row in rows)
    assert summary["samples"] == EPOCHS * counted.SAMPLES
    assert samples(rows) == dict.fromkeys(range(counted.SAMPLES), EPOCHS)


def test_skipped_samples_count_as_done(trained: Run) -> None:
    summary, rows = trained(TRAVELS, 1, skips=5, again=0)
    skipped = samples(rows, skipped=True)
    assert skipped.total() == 90
    assert summary["samples"] == EPOCHS * counted.SAMPLES - 90
    assert samples(rows) + skipped == dict.fromkeys(range(counted.SAMPLES), EPOCHS)
    pushes = unpushed = 0
    for number, row in enumerate(rows, 1):
        unpushed += not row["skipped"]
        if unpushed and (row["skipped"] or unpushed == 3 or number % 6 == 0):
            pushes, unpushed = pushes + 1, 0
    assert summary["pushes"] == pushes, "steps before skipped samples are pushed before those count as done"


def test_in_rounds_a_batch_cannot_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The script that tries ends while its first push travels, and another trains what it has not."""

    def replica(address: str, folder: Path) -> None:
        with pytest.raises(SystemExit) as ended:
            counted.train(folder / "log", address, skips=4)
        codes.append(ended.value.code)
        counted.train(folder / "more", address)

    codes = list[object]()
    job = JOB.format(strategy="{name: diloco, batch: 10, steps: 2, delay: 2}", replicas=1)
    run = whole_job(job, tmp_path, monkeypatch, replica=replica)
    assert codes == [UserError.exit_code]
    (line,) = [number for number, text in enumerate(COUNTED.read_text().splitlines(), 1) if "sync.skip(" in text]
    assert f"{COUNTED}:{line}: sync.skip: replicas wait for each other's steps" in caplog.text
    assert len((tmp_path / "log").read_text().splitlines()) == 3, "the push of the first round travels"
    assert json.loads((run / "summary.json").read_text())["samples"] == EPOCHS * counted.SAMPLES


@pytest.mark.parametrize(("staleness", "period"), [(2, 1), (4, 2)])
def test_a_slow_replica_and_a_bound_of_staleness(staleness: int, period: int, trained: Run) -> None:
    cadence = f"n_push: {period}, n_fetch: {period}, overlap: true, staleness: {staleness}"
    strategy = f"{{name: downpour, batch: 10, rule: {{name: add}}, warm_start: null, {cadence}}}"
    summary, rows = trained(strategy, 2, slow=20, together=2)
    assert summary["samples"] == EPOCHS * counted.SAMPLES
    assert samples(rows) == dict.fromkeys(range(counted.SAMPLES), EPOCHS)
    lead = most = 0
    for row in rows:
        lead += 1 if row["replica"] else -1
        most = max(most, abs(lead))
    # A step's push travels while the next one is made, and the slow one's last row may not be written yet.
    assert most <= staleness + 2 * period
