"""Asking a job to end or to scale: what is asked of its coordinator, and what is said when it has ended, or has not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dbelief.cli import job_control as module
from dbelief.cli.job_control import scale_job, stop_job
from dbelief.errors import Rejected, RuntimeFailure, Unavailable, UserError
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.server.server import Server
from tests.dbelief.monitor.test_status import JOB, SUMMARY

pytestmark = pytest.mark.processes


class Coordinator(stubs.CoordinatorServicer):
    """Once asked to stop, tells one state after the other, and the last one for ever."""

    Join = Beat = Lease = Report = None  # type: ignore[assignment]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reason = ""
        self.ends: list[wire.State.ValueType] = [wire.STATE_CLOSING, wire.STATE_DONE]
        self.wanted: int | None = None

    def Status(self, request: wire.StatusRequest, context: grpc.ServicerContext) -> wire.StatusReply:
        state: wire.State.ValueType = wire.STATE_READY
        if self.reason:
            state = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        return wire.StatusReply(job="digits", state=state, reason=self.reason, run_folder=str(self.folder))

    def Stop(self, request: wire.StopRequest, context: grpc.ServicerContext) -> wire.StopReply:
        self.reason = request.reason
        return wire.StopReply(state=wire.STATE_CLOSING)

    def Scale(self, request: wire.ScaleRequest, context: grpc.ServicerContext) -> wire.ScaleReply:
        if self.wanted is not None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "nobody can")
        self.wanted = request.replicas or request.shards
        return wire.ScaleReply(before=2, todo="now start some" if request.shards else "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    (folder / "snapshots" / "100-1").mkdir(parents=True)
    (folder / "job.yaml").write_text(JOB)
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture
def coordinator(run: Path) -> Coordinator:
    return Coordinator(run)


@pytest.fixture
def server(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "ANSWER_S", 0.0)
    server = Server("127.0.0.1:0", lambda s: stubs.add_CoordinatorServicer_to_server(coordinator, s))
    yield server
    server.close(grace_s=0.0)


def test_stop_reports_the_end_and_kept_files(coordinator: Coordinator, server: Server, run: Path) -> None:
    told = stop_job(server.address, "enough", 60.0)
    assert told == f"job digits ended: enough; kept: model.safetensors and 1 snapshot set in {run}"
    assert coordinator.reason == "enough"


def test_a_run_folder_elsewhere_is_named(coordinator: Coordinator, server: Server) -> None:
    coordinator.folder = Path("there/digits")
    assert stop_job(server.address, "enough", 60.0) == (
        "job digits ended: enough; its model and last snapshot set are in there/digits on the coordinator's machine"
    )


def test_stop_without_waiting(coordinator: Coordinator, server: Server) -> None:
    coordinator.ends = [wire.STATE_CLOSING]
    assert stop_job(server.address, "enough", None) == "job digits is ending: enough"


def test_slow_stop_is_reported_after_the_deadline(coordinator: Coordinator, server: Server) -> None:
    coordinator.ends = [wire.STATE_CLOSING]
    with pytest.raises(
        RuntimeFailure, match=r"^job digits has not ended within 0\.05 s: it is finishing, and continues to end$"
    ):
        stop_job(server.address, "enough", 0.05)


def test_a_job_that_had_not_begun_leaves_nothing(coordinator: Coordinator, server: Server, run: Path) -> None:
    (run / "model.safetensors").unlink()
    (run / "snapshots" / "100-1").rmdir()
    coordinator.ends = [wire.STATE_FAILED]
    with pytest.raises(
        RuntimeFailure, match=f"^job digits failed: enough; nothing was kept in {run}: it had not begun to"
    ):
        stop_job(server.address, "enough", 60.0)


def test_summary_is_used_after_the_coordinator_ended(
    coordinator: Coordinator, server: Server, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: object) -> wire.StatusReply:
        raise Unavailable("gone")

    monkeypatch.setattr(CoordinatorClient, "status", gone)
    found = {"job": "digits", "state": "ready", "reason": "", "run_folder": str(run)}
    monkeypatch.setattr(module, "get_status", lambda place: found)
    with pytest.raises(RuntimeFailure, match=r"the coordinator of job digits is gone$"):
        stop_job(server.address, "enough", 60.0)
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "state": "done", "reason": "enough"}))
    assert stop_job(server.address, "enough", 60.0).startswith("job digits ended: enough; kept: model.safetensors")


def test_a_job_that_has_ended_already(run: Path) -> None:
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    assert stop_job(str(run), "enough", 60.0) == "job digits has ended already: diverged"
    with pytest.raises(UserError, match=r"^job digits has ended: diverged$"):
        scale_job(str(run), "replica", 3)


def test_more_or_fewer_replicas_are_asked_for(coordinator: Coordinator, server: Server) -> None:
    assert scale_job(server.address, "replica", 5) == "job digits: 5 replicas wanted, 2 there now"
    assert coordinator.wanted == 5
    with pytest.raises(Rejected, match=r"nobody can$"):
        scale_job(server.address, "replica", 1)


def test_scale_reports_wanted_and_present_shards(coordinator: Coordinator, server: Server) -> None:
    assert scale_job(server.address, "shard", 5) == "job digits: 5 shards wanted, 2 there now; now start some"
    assert coordinator.wanted == 5
