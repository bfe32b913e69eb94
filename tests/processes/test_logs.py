"""JSON logs: every line of every process of a run is an object with its role and job."""

from __future__ import annotations

import json

import pytest

from .conftest import Operator

pytestmark = pytest.mark.processes

JOB = """
name: logged
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: sgd, rate: 0.05}, warm_start: null}
limits: {epochs: 1}
shards: 1
replicas: 1
"""


@pytest.mark.long
def test_every_line_is_an_object_that_says_whose_it_is(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBELIEF_LOG", "json")
    train = operator.start("train", "train", str(operator.write_job(JOB)))
    assert train.ends() == 0, train.log.read_text()
    told = [json.loads(line) for line in train.log.read_text().splitlines()]
    assert told[-1]["message"].startswith("logged: 1,257 samples trained")
    for name in ("coordinator", "ps-0", "worker-0"):
        role, _, number = name.partition("-")
        lines = [
            json.loads(line)
            for line in (operator.folder / "runs" / "logged" / "logs" / f"{name}.log").read_text().splitlines()
        ]
        assert {line["level"] for line in lines} == {"info"}
        last = lines[-1]
        assert (last["job"], last["role"], last.get("id")) == ("logged", role, int(number) if number else None)
        assert last["step"] > 0


def test_launcher_reads_json_output_of_children(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBELIEF_LOG", "json")
    (operator.folder / "runs" / "logged" / "snapshots").mkdir(parents=True)
    train = operator.start("train", "train", "--resume", str(operator.write_job(JOB)))
    assert train.ends() == 2
    said = json.loads(train.log.read_text().splitlines()[-1])
    assert said["message"].endswith("snapshots: no complete snapshot set to resume from")
    assert "{" not in said["message"]
