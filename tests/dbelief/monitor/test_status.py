"""Asking how a job goes: by address, by run folder, once or until it ends."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from dbelief.cli.inspect_run import print_status, show_top
from dbelief.core.push import STALENESS, StalenessHistogram
from dbelief.errors import RuntimeFailure, Unavailable, UserError
from dbelief.monitor import status as module
from dbelief.monitor.status import JobLocation, get_status, to_dict, watch
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.pb import coordination_pb2_grpc as stubs
from dbelief.rpc.server.server import Server
from dbelief.rundir.folder import ADDRESS
from dbelief.rundir.summary import Summary
from dbelief.telemetry.metric_specs import TABLE

JOB = """
name: digits
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}
limits: {wall_s: 60}
"""
SUMMARY = dict.fromkeys(name for name, field in Summary.model_fields.items() if field.is_required()) | {
    "test_metrics": {}, "validation_metrics": {}, "phase_seconds": {}, "bytes_per_replica": {}, "residual_lost": 0.0,
    "job": "digits", "seed": 0, "reason": "diverged", "samples": 7, "samples_per_replica": {}, "epochs": 0.5,
    "steps": 1, "pushes": 1, "pushes_trained_twice": 0, "wall_s": 2.0, "replicas": 1, "shards": 1, "members_lost": 0,
    "died": [], "pushes_lost": 0, "parameters": 650, "state": "failed",
    "trained": False, "evaluation_failed": {}, "steps_left_out": 0, "last_leg_s": None,
    "rounds": None, "delays": None, "steps_per_replica": {}, "pushes_per_replica": {}, "lease_samples": 0,
    "processors": {},
}  # fmt: skip


class Coordinator(stubs.CoordinatorServicer):
    """Tells one state after the other, and the last one for ever."""

    Join = Beat = Lease = Report = Stop = Scale = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.states = [wire.STATE_READY]
        self.asked = 0

    def Status(self, request: wire.StatusRequest, context: grpc.ServicerContext) -> wire.StatusReply:
        self.asked += 1
        state = self.states[min(self.asked, len(self.states)) - 1]
        reply = wire.StatusReply(job="digits", state=state, samples=self.asked, loss=math.nan, validation_loss=math.nan)
        reply.wall_limit_s = 60.0
        reply.members.add(role=wire.ROLE_SHARD, id=1, name="host:7", state="waiting", samples=0, silent_s=0.5)
        reply.members.add(role=wire.ROLE_CLIENT, id=0, name="host:8", state="training", samples=5)
        return reply


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def address(coordinator: Coordinator) -> Iterator[str]:
    server = Server("127.0.0.1:0", lambda s: stubs.add_CoordinatorServicer_to_server(coordinator, s))
    yield server.address
    server.close(grace_s=0.0)


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    server = Server("127.0.0.1:0", lambda _: None)
    server.close(grace_s=0.0)
    return server.address


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    return folder


def ended(folder: Path) -> None:
    (folder / "summary.json").write_text(json.dumps(SUMMARY))


def test_a_place_is_an_address_or_a_run_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert JobLocation.of("host.example:7070") == JobLocation("host.example:7070")
    assert JobLocation.of("[::1]:7070") == JobLocation("[::1]:7070")
    assert JobLocation.of(str(run)) == JobLocation(None, run)
    (run / ADDRESS).write_text("127.0.0.1:1")
    monkeypatch.chdir(run)
    assert JobLocation.of(".") == JobLocation("127.0.0.1:1", run)
    with pytest.raises(UserError, match=r"^runs/other: neither a run folder nor HOST:PORT of a coordinator$"):
        JobLocation.of("runs/other")
    with pytest.raises(UserError, match=r"is no run folder: it holds no job\.yaml$"):
        JobLocation.of(str(run.parent))


def test_batch_status_as_plain_values() -> None:
    batch = wire.BatchStatus(iteration=3, pass_number=5, portions_done=1, portions=9, backups=2)
    batch.loss = batch.gradient_norm = batch.step = math.nan
    status = wire.StatusReply(job="digits", state=wire.STATE_READY)
    assert to_dict(status)["batch"] is None
    status.batch.CopyFrom(batch)
    assert to_dict(status)["batch"] == {
        "iteration": 3, "iterations": None, "loss": None, "gradient_norm": None, "step": None, "evaluations": 0,
        "pass": 5, "portions_done": 1, "portions": 9, "bundles": 0, "backups_launched": 2, "backups_won": 0,
    }  # fmt: skip


def test_rounds_as_plain_values() -> None:
    status = wire.StatusReply(job="digits", state=wire.STATE_READY)
    assert to_dict(status)["rounds"] is None
    figures = {"rounds": 3, "pushes_per_round": 1.5, "late_pushes": 1, "sent_per_sample": 8.0, "computing": 0.5}
    status.rounds.CopyFrom(wire.RoundStatus(**figures, late_age=math.nan, received_per_sample=math.nan))  # type: ignore[arg-type]
    assert to_dict(status)["rounds"] == {**figures, "late_age": None, "received_per_sample": None}


@pytest.mark.processes
def test_status_by_address_and_by_run_folder(address: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / ADDRESS).write_text(address)
    for where in (address, str(run)):
        print_status(where, True)
        told = json.loads(capsys.readouterr().out)
        assert (told["job"], told["state"], told["loss"], told["wall_limit_s"]) == ("digits", "training", None, 60.0)
        assert [(m["role"], m["id"], m["samples"]) for m in told["members"]] == [("ps", 1, None), ("client", 0, 5)]
    print_status(address, False)
    shown = capsys.readouterr().out
    assert "shard 1" in shown
    assert "client 0" in shown


@pytest.mark.processes
def test_missing_coordinator_is_a_one_line_error(nobody: str, run: Path) -> None:
    with pytest.raises(Unavailable, match=rf"^{nobody}: no coordinator answers there \(Connection refused\); name"):
        get_status(JobLocation(nobody))
    stranger = Server("127.0.0.1:0", lambda _: None)
    try:
        with pytest.raises(RuntimeFailure, match=f"^{stranger.address}: the process there is not a coordinator"):
            get_status(JobLocation(stranger.address))
    finally:
        stranger.close(grace_s=0.0)
    with pytest.raises(RuntimeFailure, match=r"no coordinator answers, and there is no summary\.json"):
        get_status(JobLocation(nobody, run))


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("it speaks TLS: give --credentials", r"a process is at \S+, and it speaks TLS: give --credentials$"),
        ("", r"the run is not up yet, or was killed \(--resume continues it\)$"),
    ],
)
def test_a_run_that_does_not_answer_names_the_cause(
    why: str, said: str, nobody: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dbelief.monitor.status.why_not", lambda _: why)
    with pytest.raises(RuntimeFailure, match=f"no coordinator answers, and there is no summary.json: {said}"):
        get_status(JobLocation(nobody, run))


@pytest.mark.processes
def test_ended_run_folder_shows_its_summary(
    address: str, nobody: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(run)
    other = run.rename(tmp_path / "digits.previous")
    # No address; one that nobody answers at; one that another job's coordinator has got since.
    for place in (JobLocation(None, other), JobLocation(nobody, other), JobLocation(address, other)):
        told = get_status(place)
        assert isinstance(told, Summary)
        assert told.reason == "diverged"
    print_status(str(other), True)
    assert json.loads(capsys.readouterr().out) == SUMMARY
    assert show_top(str(other)) == 1
    assert "diverged" in capsys.readouterr().out


@pytest.mark.processes
@pytest.mark.parametrize(("last", "code"), [(wire.STATE_DONE, 0), (wire.STATE_FAILED, 1)])
def test_a_job_is_watched_until_it_ends(
    coordinator: Coordinator, address: str, last: wire.State.ValueType, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    coordinator.states = [wire.STATE_EMPTY, wire.STATE_READY, wire.STATE_CLOSING, last]
    assert show_top(address) == code
    assert coordinator.asked == 4


@pytest.mark.processes
def test_a_coordinator_that_goes_while_it_is_watched(
    address: str, run: Path, monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    shown: list[str] = []

    def show(status: object) -> None:
        shown.append(str(status))

    def gone(self: object, curves: bool = False) -> wire.StatusReply:
        if curves:
            raise Unavailable("gone")
        return coordinator.Status(wire.StatusRequest(), None)  # type: ignore[arg-type]

    monkeypatch.setattr(CoordinatorClient, "status", gone)
    with pytest.raises(RuntimeFailure, match=f"^{address}: the coordinator of job digits is gone, after 1 samples$"):
        watch(JobLocation(address), show, threading.Event())
    ended(run)
    assert isinstance(watch(JobLocation(address, run), show, threading.Event()), Summary)
    assert len(shown) == 2


def test_staleness_counts_use_the_metric_buckets() -> None:
    (row,) = (row for row in TABLE["worker"] if row.name == "staleness")
    assert row.buckets == STALENESS
    counts = list(range(len(STALENESS) + 1))
    told = to_dict(wire.StatusReply(state=wire.STATE_READY, staleness=counts))["staleness"]
    assert [row["pushes"] for row in told] == counts
    assert [row["up_to"] for row in told] == [*STALENESS, None]
    spread = StalenessHistogram()
    for staleness in (0.0, 0.5, 1.0, 5.0, 128.0, 128.5, 1e9):
        spread.add(staleness)
    assert [(row, count) for row, count in zip([*STALENESS, None], spread.counts, strict=True) if count] == [
        (0, 1), (1, 2), (6, 1), (128, 1), (None, 2),
    ]  # fmt: skip
