"""Status of a run by its folder, during the run and after its end; reflection of its servers."""

from __future__ import annotations

import json
import re
import signal

import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from dbelief.rpc.channel import open_channel

from .conftest import Operator, dbelief, wait_for

pytestmark = pytest.mark.processes

JOB = """
name: found
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: sgd, rate: 0.05}, warm_start: null}
limits: {wall_s: 300}
shards: 1
replicas: 1
"""


def services(address: str) -> set[str]:
    with open_channel(address) as channel:
        return set(ProtoReflectionDescriptorDatabase(channel).get_services())


@pytest.mark.long
def test_a_run_is_found_by_its_folder(operator: Operator) -> None:
    train = operator.start("train", "train", "--quiet", str(operator.write_job(JOB)))
    run = operator.folder / "runs" / "found"
    wait_for((run / "address").exists, "the coordinator's address")
    operator.until_samples("found", 100)
    told = json.loads(dbelief("status", "--json", str(run)))
    assert (told["job"], told["state"], told["run_folder"]) == ("found", "training", str(run))
    assert sorted((m["role"], m["id"]) for m in told["members"]) == [("ps", 0), ("worker", 0)]
    assert "dbelief.v1.Coordinator" in services((run / "address").read_text())
    shard = re.search(r"shard 0 of job found on (\S+)", (run / "logs" / "ps-0.log").read_text())
    assert shard is not None
    assert "dbelief.v1.Parameters" in services(shard.group(1))
    train.process.send_signal(signal.SIGINT)
    assert train.ends() == 130
    assert not (run / "address").exists()
    assert json.loads(dbelief("status", "--json", str(run)))["reason"] == "stopped by Ctrl-C"
