"""`dbelief train` on a shared machine: another user commands none of its processes, its owner all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.cli.job_control import scale_job, stop_job
from dbelief.monitor.status import JobLocation, get_status

from .conftest import DEADLINE_S, Operator, wait_for

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
]

NOBODY = 65534
JOB = """
name: mine
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.05}, warm_start: null}
limits: {epochs: 100000}
shards: 1
replicas: 1
"""

ATTACK = f"""
import json, os, sys
import grpc
from dbelief.rpc.pb import coordination_pb2, coordination_pb2_grpc, parameters_pb2 as wire, parameters_pb2_grpc
from dbelief.rpc.channel import open_channel
coordinator, shard, home, folder = sys.argv[1:]
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
os.environ["XDG_STATE_HOME"] = home
command = wire.Command(leader_epoch=1 << 40, id=1)
found = []
for channel in (open_channel, grpc.insecure_channel):
    shards = parameters_pb2_grpc.ParametersStub(channel(shard))
    job = coordination_pb2_grpc.CoordinatorStub(channel(coordinator))
    for call, request in (
        (shards.Configure, wire.ConfigureRequest(command=command, stop=True)),
        (shards.Snapshot, wire.SnapshotRequest(command=command, job="mine", folder=folder, set="x")),
        (shards.Restore, wire.RestoreRequest(command=command, job="mine", folder=folder, set="x")),
        (shards.Stats, wire.StatsRequest(job="mine")),
        (job.Join, coordination_pb2.JoinRequest(role=coordination_pb2.ROLE_REPLICA, job="mine", name="me")),
        (job.Status, coordination_pb2.StatusRequest(job=True)),
        (job.Scale, coordination_pb2.ScaleRequest(replicas=9)),
        (job.Report, coordination_pb2.ReportRequest(trouble="nothing")),
        (job.Stop, coordination_pb2.StopRequest(reason="me")),
    ):
        try:
            call(request, timeout={DEADLINE_S})
            found.append("OK")
        except grpc.RpcError as error:
            found.append(error.code().name)
print(json.dumps([os.geteuid(), found]))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Another user's."""
    home = Path(tempfile.mkdtemp())
    os.chown(home, NOBODY, NOBODY)
    yield home
    shutil.rmtree(home)


def test_other_user_commands_nothing_and_owner_everything(operator: Operator, home: Path) -> None:
    operator.compute_wait_s = 0.05
    train = operator.start("train", "train", str(operator.write_job(JOB)), "--quiet")
    run = operator.folder / "runs" / "mine"
    operator.until_samples("mine", 1)
    coordinator = (run / "address").read_text()
    log = run / "logs" / "ps-0.log"
    shard = wait_for(lambda: log.read_text().partition("shard 0 of job mine on ")[2].split("\n")[0], str(log))

    ended = subprocess.run(
        [sys.executable, "-c", ATTACK, coordinator, shard, str(home), str(run / "snapshots" / "x")],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert ended.returncode == 0, ended.stderr
    user, found = json.loads(ended.stdout)
    assert (user, found) == (NOBODY, ["UNAUTHENTICATED"] * 18)
    assert not (run / "snapshots" / "x").exists()

    top = operator.start("top", "top", str(run))
    for where in (coordinator, str(run)):
        status = get_status(JobLocation.of(where))
        assert isinstance(status, dict)
        assert (status["job"], len(status["members"])) == ("mine", 2)
    third = operator.start("third", "worker", "--coordinator", coordinator)
    assert "2 replicas wanted" in scale_job(coordinator, "replica", 2)  # of which `dbelief train` starts one
    operator.until_joined("mine", replicas=3)
    assert "job mine ended: enough" in stop_job(str(run), "enough", DEADLINE_S)
    assert (train.ends(), top.ends(), third.ends()) == (0, 0, 0)
