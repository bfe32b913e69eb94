"""Whole jobs on a real Ray cluster of three nodes, all on this machine."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.job import load_job
from dbelief.launch.child_process import ChildProcess
from dbelief.launch.ray import member
from dbelief.launch.ray.actor import MemberActor, MemberStart
from dbelief.launch.ray.cluster import RayCluster
from dbelief.launch.ray.member import RayMember
from dbelief.process.temporary_folder import remove_left
from dbelief.rundir.summary import has_ended
from tests.dbelief.launch.processes import soon
from tests.dbelief.launch.ray.conftest import NODE
from tests.dbelief.launch.ray.members import members, names
from tests.deploy.digits_job import (
    FLOOR,
    JOB,
    LONG,
    PROGRAM,
    SAMPLES,
    SHORT,
    DigitsJob,
    ends_well,
    scaled_stopped_and_resumed,
)
from tests.script.test_whole import JOB as WHOLE_JOB
from tests.script.test_whole import WHOLE

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

ray = pytest.importorskip("ray")


@pytest.mark.usefixtures("connected")
def test_members_are_named_actors_and_leave_nothing(cluster: Any, job: DigitsJob) -> None:
    training = job.train(LONG)
    soon(lambda: job.trains, "it does not train")
    assert names() == [f"dbelief digits {name}" for name in ("ps-0", "ps-1", "worker-0", "worker-1")]
    address = (job.run / "address").read_text()
    assert len(members(address)) == 4
    secrets = [(job.run / "credentials" / role / "token").read_text().strip() for role in ("ps", "worker")]
    assert job.operate("stop", "runs/digits").returncode == 0
    ends_well(training, 60)
    soon(lambda: not names(), "actors are left")
    assert not members(address)
    logs = [*Path(cluster.head_node.get_session_dir_path(), "logs").rglob("*"), *(job.run / "logs").iterdir()]
    text = b"".join(file.read_bytes() for file in logs if file.is_file())
    assert len(text) > 1_000
    assert [secret for secret in secrets if secret.encode() in text] == []


def test_status_scale_stop_and_resume(job: DigitsJob) -> None:
    ended = scaled_stopped_and_resumed(job)
    assert ended["epochs"] > ended["epochs_before"]
    assert ended["test_accuracy"] > FLOOR


@pytest.mark.usefixtures("connected")
def test_a_node_that_vanishes_and_one_that_comes(cluster: Any, job: DigitsJob) -> None:
    training = job.train(LONG, replication=2)
    soon(lambda: job.trains, "it does not train")
    cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0])
    cluster.add_node(**NODE)
    soon(lambda: any("start 2" in name for name in names()), "no member was started again")
    ends_well(training, 240)
    assert job.summary["samples"] == LONG * SAMPLES
    assert job.summary["test_accuracy"] > FLOOR


def test_members_end_with_a_killed_launcher(job: DigitsJob) -> None:
    training = job.train(LONG)
    soon(lambda: job.trains, "it does not train")
    address = (job.run / "address").read_text()
    training.send_signal(signal.SIGKILL)
    training.communicate(timeout=60)
    soon(lambda: not members(address), "members go on")
    soon(lambda: not list(Path(tempfile.gettempdir()).glob("dbelief-credentials-*")), "credentials are left")
    assert not has_ended(job.run)
    remove_left(Path(tempfile.gettempdir()))  # of the launcher


def test_a_notebook_trains_with_one_call(job: DigitsJob) -> None:
    (job.folder / "job.yaml").write_text(JOB.format(epochs=SHORT, replication=1))
    script = "import dbelief; print(dbelief.ray.train('job.yaml', workers=3, shards=1).summary.samples)"
    ends_well(job.start(PROGRAM[0], "-c", script), 120)
    assert job.summary["samples"] == SHORT * SAMPLES
    assert {file.name for file in (job.run / "logs").glob("worker-*")} == {f"worker-{n}.log" for n in range(3)}


@pytest.mark.usefixtures("connected")
def test_a_worker_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "LOOK_S", 0.2)
    monkeypatch.setattr(member, "ROOM_S", 0.5)
    (tmp_path / "job.yaml").write_text(JOB.format(epochs=SHORT, replication=1))
    cluster, log = RayCluster(), tmp_path / "worker-0.log"
    job = load_job(tmp_path / "job.yaml", {"device": "cuda"})
    cluster.reserve(job)
    way = RayMember(cluster, job, "worker", "worker-0", ray.put(b"\n"), "")
    assert way.fate(way.start(["worker"], log).wait(60))[0] == 1
    cluster.close()
    assert ray.is_initialized(), "the connection is not its own"
    waits, *_, error = log.read_text().splitlines()
    assert waits.startswith("waits for room in the Ray cluster: a worker; free are ")
    assert error.startswith("Error: no room in the Ray cluster within 0.5 s for a worker; free are ")


@pytest.mark.usefixtures("connected")
def test_shards_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.launch.ray.cluster.ROOM_S", 0.5)
    monkeypatch.setattr("dbelief.launch.ray.cluster.share_of", lambda cpus, members: 100.0)
    (tmp_path / "job.yaml").write_text(JOB.format(epochs=SHORT, replication=1))
    cluster = RayCluster()
    with pytest.raises(RuntimeFailure, match=r"no room in the Ray cluster within 0.5 s for 2 shards with 100 CPU each"):
        cluster.reserve(load_job(tmp_path / "job.yaml"))
    cluster.close()


def test_a_script_of_ones_own(job: DigitsJob) -> None:
    (job.folder / "job.yaml").write_text(WHOLE_JOB)
    words = ["run", "--on", "ray", "--quiet", "--job", "job.yaml", "--workers", "2", str(WHOLE), str(job.folder)]
    ends_well(job.start(*PROGRAM, *words), 200)
    (run,) = (job.folder / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["samples"] == 6 * 70


@pytest.mark.usefixtures("connected")
def test_what_hinders_an_actor_is_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemberActor):
        def start(self, order: MemberStart) -> tuple[str, str]:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(member, "MemberActor", Broken)
    (tmp_path / "job.yaml").write_text(JOB.format(epochs=SHORT, replication=1))
    cluster, log = RayCluster(), tmp_path / "worker-0.log"
    way = RayMember(cluster, load_job(tmp_path / "job.yaml"), "worker", "worker-0", ray.put(b"\n"), "")
    child = ChildProcess("worker-0", ["worker"], log, way=way)
    child.start()
    child.wait(60)
    cluster.close()
    assert re.search(r"^worker-0 was lost with its actor on no node: .*No space left on device", child.fate())
