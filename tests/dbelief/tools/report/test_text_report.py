"""The text report of a run folder, during the run and after its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import UserError
from dbelief.rundir.summary import Summary, write_summary
from dbelief.tools.report.text_report import account, in_words, shares
from tests.dbelief.monitor.test_live_view import ROUNDS
from tests.terminal import shown

TRAINING: list[dict[str, Any]] = [
    {"event": "state", "state": "ready", "reason": ""},
    {"event": "progress", "samples": 1200, "epoch": 1.5, "loss": 0.25, "staleness": 1.0},
    {"event": "evaluation", "set": "validation", "loss": 0.5, "accuracy": 0.875},
    {"event": "member", "what": "joined", "role": "replica", "id": 1, "reason": ""},
    {"event": "member", "what": "died", "role": "replica", "id": 1, "reason": "silent for 5.1 s"},
    {"event": "takeover", "elapsed_s": 65.0},
]
BATCH: list[dict[str, Any]] = [
    {"event": "pass", "iteration": 1, "seconds": 0.2, "launched": 2, "won": 1},
    {"event": "pass", "iteration": 1, "seconds": 0.4, "launched": 1, "won": 0},
    {"event": "iteration", "iteration": 1, "loss": 0.75, "gradient_norm": 0.0125, "evaluations": 2},
    {"event": "rolled_back", "iterations": 1, "set": "1"},
    {"event": "pass", "iteration": 1, "seconds": 1.5, "launched": 0, "won": 0},
]
END: dict[str, Any] = {"event": "state", "state": "failed", "reason": "out of memory"}
BATCH_END = {"iterations": 9, "evaluations": 12, "loss": 0.5, "gradient_norm": None} | {
    "backups_launched": 7,
    "backups_won": 3,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "job.yaml").write_text("name: mnist")
    return folder


def log(run: Path, events: list[dict[str, Any]]) -> None:
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def ended(run: Path, **other: Any) -> None:
    names = {name: 0 for name, field in Summary.model_fields.items() if field.is_required()}
    known = {"job": "mnist", "reason": "out of memory", "samples_per_replica": {}, "samples": 2400, "epochs": 3.0}
    write_summary(run / "summary.json", names | known | {"wall_s": 7.5, "test_accuracy": 0.96875} | other)


def told(run: Path) -> dict[str, str]:
    job, facts = account(run)
    assert job == "mnist"
    rows = (line.split("  ", 1) for line in shown(facts))
    return {name: value.strip() for name, value in rows}


def test_report_of_a_running_job(run: Path) -> None:
    log(run, TRAINING)
    assert told(run) == {
        "job": "mnist",
        "state": "training: no end is recorded, so it runs or was killed",
        "time": "1:05",
        "samples": "1,200, 1.50 epochs",
        "loss": "0.2500",
        "staleness": "1.00 versions",
        "validation": "87.50 %, loss 0.5000",
        "test": "–",
        "failed": "replica 1 (silent for 5.1 s), coordinator",
    }


def test_report_of_a_running_batch_job(run: Path) -> None:
    log(run, BATCH)
    rows = told(run)
    assert rows["state"] == "not begun"
    assert rows["iterations"] == "1, in 2 evaluations"
    assert (rows["loss"], rows["gradient norm"]) == ("0.75", "0.0125")
    assert rows["passes"] == "3, median 400 ms, longest 1.5 s"
    assert rows["backups"] == "3 (1 won)"
    assert rows["rolled back"] == "1 iteration, done again"
    assert rows["failed"] == "none"
    assert "staleness" not in rows


def test_report_of_an_ended_job_uses_its_summary(run: Path) -> None:
    log(run, [*TRAINING, END])
    ended(run, pushes_trained_twice=2)
    rows = told(run)
    assert rows["state"] == "failed: out of memory"
    assert (rows["samples"], rows["time"]) == ("2,400, 3.00 epochs", "7 s")
    assert rows["test"] == "96.88 %, loss 0.0000"
    assert rows["pushes"] == "0 lost, 2 trained twice"


def test_report_of_a_job_in_lockstep(run: Path) -> None:
    log(run, [{**event, "rounds": 7} if event["event"] == "progress" else event for event in TRAINING])
    assert (told(run)["age"], told(run)["rounds"]) == ("1.00 rounds", "7")
    log(run, [*TRAINING, END])
    ended(run, rounds=ROUNDS, staleness_mean=0.25)
    rows = told(run)
    assert (rows["age"], rows["rounds"]) == ("0.25 rounds", "1,200, of 3.75 replicas")
    assert (rows["late pushes"], rows["computing"]) == ("12, by 1.50 rounds on average", "88 % of the replicas' time")


def test_shared_memory_bytes_are_reported_separately(run: Path) -> None:
    log(run, [*TRAINING, END])
    shared = {"shared_sent": 3 << 20, "shared_received": 1 << 20}
    replicas = {"0": {"sent": 0, "received": 0, **shared}, "1": {"sent": 1024, "received": 2048, **shared}}
    ended(run, bytes_per_replica={**replicas, "2": {"sent": 1024, "received": 0}})
    assert told(run)["replicas' bytes"] == "0: 3 MiB sent, 1 MiB received through shared memory"
    text = " ".join(" ".join(shown(account(run)[1], width=120)).split())
    assert "1: 1 KiB sent, 2 KiB received; 3 MiB sent, 1 MiB received through shared memory" in text
    assert "2: 1 KiB sent, 0 B received" in text


def test_a_batch_method_that_has_ended(run: Path) -> None:
    log(run, [*BATCH, END])
    ended(run, **BATCH_END)
    rows = told(run)
    assert rows["iterations"] == "9, in 12 evaluations"
    assert (rows["loss"], rows["gradient norm"], rows["backups"]) == ("0.5", "–", "7 (3 won)")


def test_summary_from_before_a_resume_is_ignored(run: Path) -> None:
    log(run, [END, *TRAINING])
    ended(run)
    assert told(run)["samples"] == "1,200, 1.50 epochs"


def test_a_log_without_lines_is_no_mistake(run: Path) -> None:
    log(run, [])
    assert told(run)["loss"] == "–"


def test_a_folder_without_a_run_is_one_line(run: Path) -> None:
    with pytest.raises(UserError, match=r"mnist: holds no events\.jsonl: the run has not begun$"):
        account(run)
    with pytest.raises(UserError, match=r"is no run folder: it holds no job\.yaml$"):
        account(run.parent)


def test_shares_are_of_all_replicas_together() -> None:
    found = shares(
        {"0": {"compute": 5.0, "fetch": 1.0, "push": 2.0, "data": 1.0, "wait": 1.0}, "1": {"compute": 8.0, "wait": 2.0}}
    )
    assert found == pytest.approx({"compute": 0.65, "data": 0.05, "communicate": 0.15, "wait": 0.15})
    assert in_words(found) == "compute 65 %, data 5 %, communicate 15 %, wait 15 %"


def test_no_reports_give_no_shares() -> None:
    assert shares({}) == shares({"0": {}}) == {}
