from typing import Any

from rich.console import RenderableType

from dbelief.monitor.status_table import outcome, overview
from dbelief.rundir.summary import Summary
from tests.dbelief.monitor.test_live_view import ROUNDS
from tests.terminal import shown

STATUS: dict[str, Any] = {
    "job": "digits",
    "state": "ready",
    "reason": "",
    "waiting_for": "",
    "samples": 12_570,
    "total_samples": 50_280,
    "epoch": 10.0,
    "loss": 0.123456,
    "validation_accuracy": 0.9555,
    "validation_loss": 0.25,
    "test_accuracy": None,
    "test_loss": None,
    "samples_per_s": 8123.4,
    "staleness_mean": 2.25,
    "elapsed_s": 65.4,
    "shards": 1,
    "run_folder": "runs/[digits]",
    "members": [
        {
            "id": 0,
            "role": "ps",
            "name": "host:7",
            "state": "waiting",
            "samples": None,
            "staleness": None,
            "last_seen_s": 0.25,
        },
        {
            "id": 3,
            "role": "worker",
            "name": "host:8",
            "state": "died",
            "samples": 6000,
            "staleness": 1.5,
            "last_seen_s": 61.0,
        },
    ],
}


SUMMARY = Summary(
    job="digits",
    seed=0,
    reason="epochs: 30 reached",
    test_accuracy=0.9833,
    test_loss=0.0625,
    validation_accuracy=None,
    validation_loss=None,
    samples=37_710,
    samples_per_replica={"0": 20_000, "1": 17_710},
    epochs=30.0,
    steps=2370,
    pushes=2370,
    pushes_trained_twice=1,
    staleness_mean=None,
    wall_s=17.25,
    replicas=2,
    shards=2,
    members_lost=1,
    parameters=4810,
)
BATCH = {
    "iteration": 12, "iterations": 48, "loss": 0.25, "gradient_norm": None, "step": 1.0, "evaluations": 13, "pass": 14,
    "portions_done": 3, "portions": 60, "bundles": 200, "backups_launched": 3, "backups_won": 2,
}  # fmt: skip


def drawn(what: RenderableType) -> list[list[str]]:
    return [line.split(maxsplit=1) for line in shown(what)]


def test_overview_lists_members() -> None:
    rows = {line[0]: line[1].rstrip() for line in drawn(overview(STATUS)) if line}
    assert rows["state"] == "ready"
    assert rows["progress"] == "12,570 of 50,280 samples, 25 %, epoch 10.00"
    assert rows["validation"] == "95.55 %, loss 0.2500"
    assert rows["test"] == "–"
    assert rows["staleness"] == "2.25 versions"
    assert rows["run"] == "folder  runs/[digits]"
    assert rows["shard"].split() == ["0", "waiting", "host:7", "–", "–", "0.2", "s"]
    assert rows["replica"].split() == ["3", "died", "host:8", "6,000", "1.50", "61.0", "s"]


def test_waiting_reason_is_beside_the_state() -> None:
    waiting = {**STATUS, "state": "empty", "waiting_for": "1 of 2 shards", "members": [], "total_samples": None}
    rows = dict(drawn(overview(waiting)))
    assert rows["state"].rstrip() == "empty: waiting for 1 of 2 shards"
    assert rows["progress"].rstrip() == "12,570 samples, epoch 10.00"
    assert "member" not in rows


def test_outcome_of_an_ended_run() -> None:
    rows = {name: value.rstrip() for name, value in drawn(outcome(SUMMARY))}
    assert rows["state"] == "ended: epochs: 30 reached"
    assert rows["test"] == "98.33 %, loss 0.0625"
    assert rows["by"] == "replica  0: 20,000, 1: 17,710"
    assert rows["pushes"] == "2,370, of them trained twice 1"
    assert rows["staleness"] == "– versions"


def named(what: RenderableType) -> dict[str, str]:
    """By the name before two blanks."""
    rows = (line.split("  ", 1) for line in shown(what))
    return {row[0]: row[-1].strip() for row in rows}


def test_overview_of_a_batch_method() -> None:
    rows = named(overview({**STATUS, "batch": BATCH}))
    assert rows["progress"] == "12 of 48 iterations, 25 %"
    assert (rows["loss"], rows["gradient norm"], rows["last step"]) == ("0.2500", "–", "1")
    assert rows["evaluations"] == "13; pass 14: 3 of 60 portions"
    assert rows["bundles"] == "200, backups 3 (2 won)"
    assert rows["replica 3"].split() == ["died", "host:8", "6,000", "61.0", "s"]
    assert "staleness" not in rows


ROUND_ROWS = {
    "rounds": "1,200, of 3.75 replicas",
    "late pushes": "12, by 1.50 rounds on average",
    "bytes a sample": "1.23 kB sent, 617 B received",
    "computing": "88 % of the replicas' time",
}


def test_overview_of_a_job_in_lockstep() -> None:
    rows = named(overview({**STATUS, "rounds": ROUNDS}))
    assert rows["age"] == "2.25 rounds"
    assert ROUND_ROWS.items() <= rows.items()
    assert rows["member"].split() == ["state", "process", "samples", "age", "last", "seen"]
    before = dict.fromkeys(ROUNDS) | {"rounds": 0, "late_pushes": 0}
    rows = named(overview({**STATUS, "rounds": before}))
    assert (rows["rounds"], rows["late pushes"], rows["bytes a sample"]) == ("0, of – replicas", "0", "–")


def test_outcome_of_a_job_in_lockstep() -> None:
    rows = named(outcome(Summary(**{**SUMMARY.model_dump(), "rounds": ROUNDS, "staleness_mean": 0.25})))
    assert rows["age"] == "0.25 rounds"
    assert ROUND_ROWS.items() <= rows.items()


def test_outcome_of_a_batch_method() -> None:
    end = {"iterations": 48, "evaluations": 50, "loss": 0.25, "gradient_norm": 0.0125}
    rows = named(outcome(Summary(**{**SUMMARY.model_dump(), **end, "backups_launched": 3, "backups_won": 2})))
    assert rows["iterations"] == "48, in 50 evaluations"
    assert rows["loss"] == "0.25, gradient norm 0.0125"
    assert rows["backups"] == "3 (2 won)"
    assert rows["samples"] == "37,710, 30.00 epochs"
    assert not {"staleness", "pushes"} & rows.keys()
