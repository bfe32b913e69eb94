"""Reports of one of several ranks during a lease and at its end."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.core.push import Pusher, PushResult
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MemberView
from dbelief.rpc.pb import coordination_pb2 as wire
from worker.comm import Communicator, run_ranks
from worker.pipeline.buffers import PushStats
from worker.pipeline.phases import PhaseTimer
from worker.progress_reporter import ProgressReporter


class Coordinator:
    """Keeps the reports that it receives."""

    def __init__(self) -> None:
        self.reports: list[wire.ReportRequest] = []

    def call(self, method: str, request: wire.ReportRequest) -> wire.ReportReply:
        assert method == "Report"
        self.reports.append(request)
        return wire.ReportReply()


class Anything:
    """Metrics and a log that no test reads."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *values: Any) -> Any:
        return self


def trained(comm: Communicator, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, lost: int = 0) -> None:
    """One rank reports a lease of three pushes, none of them too early to report; the first has lost some before it."""
    monkeypatch.setattr("worker.progress_reporter.REPORT_EVERY_S", -1.0)
    session: Any = SimpleNamespace(
        ranks=comm,
        sequences={},
        member=MemberView(cast("CoordinatorClient", coordinator), wire.ROLE_REPLICA, 3, 7, 0),
        parameters=SimpleNamespace(figures=lambda: wire.WireFigures(sent=100, received=10 + comm.rank, residual=0.5)),
        pusher=Pusher(3, 7, comm.rank),
    )
    nothing: Any = Anything()
    phases = PhaseTimer()
    reporter = ProgressReporter(session, nothing, phases, nothing)
    phases.end("wait")
    reporter.begin(1)
    for sequence in (1, 2, 3):
        slot = PushStats(sequence=sequence, samples=10, steps=1, loss_sum=1.0)
        reporter.acknowledged(slot, PushResult(0.0, 0, lost if sequence == 1 else 0))
    reporter.end()
    assert session.sequences == {"w": 3}


def test_lease_of_several_ranks_reports_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member without reports is removed; but what one rank's shards have, those of others may not."""
    coordinator = Coordinator()
    run_ranks(2, lambda comm: trained(comm, coordinator, monkeypatch))
    assert [report.HasField("progress") for report in coordinator.reports] == [False, False, False, True]
    assert coordinator.reports[-1].progress.samples == 30
    assert {(report.replica, report.incarnation) for report in coordinator.reports} == {(3, 7)}
    waited = [report.seconds["wait"] for report in coordinator.reports]
    assert waited[0] > 0
    assert waited == sorted(waited), "each report shows what the time went into"
    traffic = coordinator.reports[-1].wire
    assert (traffic.sent, traffic.received, traffic.residual) == (200, 10 + 11, 1.0), "of both ranks"


@pytest.mark.parametrize(("lost", "reported"), [((0, 4), 4), ((5, 5), 5), ((3, 0), 3)])
def test_what_a_shard_of_any_rank_lost_is_reported_once(
    lost: tuple[int, int], reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator()
    run_ranks(2, lambda comm: trained(comm, coordinator, monkeypatch, lost[comm.rank]))
    assert coordinator.reports[-1].progress.lost == reported
