"""Reports of one of several ranks during a lease and at its end."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.core.push import Pusher, PushResult
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MemberView
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.telemetry.metrics import Metrics
from worker.comm import Communicator, run_ranks
from worker.pipeline.buffers import PushStats
from worker.pipeline.phases import PhaseTimer
from worker.progress_reporter import ProgressReporter


class Coordinator:
    """Keeps the reports that it receives, and those that come with a request for work."""

    def __init__(self, report_every_s: float = 0.0) -> None:
        self.reports: list[wire.ReportRequest] = []
        self.with_request: list[wire.ReportRequest] = []
        self._every_s = report_every_s

    def call(self, method: str, request: Any) -> Any:
        if method == "Lease":
            self.with_request += [request.report] if request.HasField("report") else []
            return wire.LeaseReply(wait_s=0.1, report_every_s=self._every_s)
        self.reports.append(request)
        return wire.ReportReply(report_every_s=self._every_s)


class Anything:
    """Metrics and a log that no test reads."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *values: Any) -> Any:
        return self


def a_reporter(
    comm: Communicator, coordinator: Coordinator, metrics: Any = None, progress_s: float = 600.0
) -> ProgressReporter:
    session: Any = SimpleNamespace(
        job=SimpleNamespace(deadlines=SimpleNamespace(progress_s=progress_s)),
        ranks=comm,
        sequences={},
        member=MemberView(cast("CoordinatorClient", coordinator), wire.ROLE_REPLICA, 3, 7, 0),
        parameters=SimpleNamespace(figures=lambda: wire.WireFigures(sent=100, received=10 + comm.rank, residual=0.5)),
        pusher=Pusher(3, 7, comm.rank),
    )
    nothing: Any = Anything()
    phases = PhaseTimer()
    phases.end("wait")
    return ProgressReporter(session, metrics or nothing, phases, nothing)


def train(reporter: ProgressReporter, lease: int = 1, lost: int = 0) -> None:
    """A lease of three pushes; the first has lost some before it."""
    reporter.begin(lease)
    for sequence in (1, 2, 3):
        slot = PushStats(sequence=sequence, samples=10, steps=1, loss_sum=1.0)
        reporter.acknowledged(slot, PushResult(0.0, 0, lost if sequence == 1 else 0))
    reporter.end()
    assert reporter._session.sequences == {"w": 3}


def trained(comm: Communicator, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, lost: int = 0) -> None:
    """One rank reports a lease, none of its pushes too early to report."""
    monkeypatch.setattr("worker.progress_reporter.REPORT_EVERY_S", -1.0)
    train(a_reporter(comm, coordinator), lost=lost)


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


def test_a_finished_lease_is_reported_with_the_request_for_the_next_one() -> None:
    coordinator = Coordinator(report_every_s=0.5)

    def works(comm: Communicator) -> None:
        reporter = a_reporter(comm, coordinator)
        for lease in (1, 2, 3):
            reporter.request_work(wire.LeaseRequest())
            train(reporter, lease)
        assert [report.progress.lease for report in coordinator.with_request] == [1, 2]
        reporter.flush()

    run_ranks(1, works)
    assert [report.progress.samples for report in coordinator.with_request] == [30, 30]
    assert [report.progress.lease for report in coordinator.reports] == [3], "no request for work follows"


def test_a_repeated_request_has_no_report() -> None:
    coordinator = Coordinator(report_every_s=0.5)

    def works(comm: Communicator) -> None:
        reporter = a_reporter(comm, coordinator)
        reporter.request_work(wire.LeaseRequest())
        train(reporter)
        for _ in range(3):
            reporter.request_work(wire.LeaseRequest())
        reporter.flush()

    run_ranks(1, works)
    assert len(coordinator.with_request) == 1
    assert coordinator.reports == []


def test_an_earlier_coordinator_gets_a_report_of_its_own() -> None:
    """It would ignore one in a request, and a loss with it."""
    coordinator = Coordinator(report_every_s=0.0)

    def works(comm: Communicator) -> None:
        reporter = a_reporter(comm, coordinator)
        reporter.request_work(wire.LeaseRequest())
        train(reporter, lost=2)
        reporter.request_work(wire.LeaseRequest())

    run_ranks(1, works)
    assert coordinator.with_request == []
    assert [report.progress.lost for report in coordinator.reports] == [2]


def test_metrics_have_all_pushes_when_a_lease_is_over() -> None:
    """They are updated with the reports, and not at each push."""
    metrics = Metrics("worker")
    coordinator = Coordinator(report_every_s=0.5)

    def works(comm: Communicator) -> None:
        reporter = a_reporter(comm, coordinator, metrics)
        reporter.request_work(wire.LeaseRequest())
        for lease in (1, 2):
            reporter.begin(lease)
            for sequence in (1, 2, 3):
                slot = PushStats(sequence=sequence, samples=10, steps=2, loss_sum=5.0 * sequence)
                reporter.acknowledged(slot, PushResult(float(4 * sequence)))
            reporter.end()

    run_ranks(1, works)
    assert [metrics.value(f"{name}_total") for name in ("pushes", "samples", "steps")] == [6, 60, 12]
    assert metrics.value("loss") == 1.5
    assert (metrics.value("staleness_count"), metrics.value("staleness_sum")) == (6, 48.0)
    assert [metrics.value("staleness_bucket", le=bound) for bound in ("3.0", "4.0", "8.0", "12.0")] == [0, 2, 4, 6]


def test_pushes_of_a_lease_that_failed_are_in_the_metrics() -> None:
    metrics = Metrics("worker")

    def works(comm: Communicator) -> None:
        reporter = a_reporter(comm, Coordinator(), metrics)
        reporter.begin(1)
        reporter.acknowledged(PushStats(sequence=1, samples=10, steps=1, loss_sum=1.0))
        reporter.begin(2)

    run_ranks(1, works)
    assert metrics.value("samples_total") == 10


@pytest.mark.parametrize(("progress_s", "reports"), [(600.0, 0), (1e-9, 3)])
def test_reports_come_before_the_progress_timeout(progress_s: float, reports: int) -> None:
    """A worker whose reports took longer than this would be removed."""

    def rank(comm: Communicator) -> None:
        coordinator = Coordinator()
        train(a_reporter(comm, coordinator, progress_s=progress_s))
        assert len(coordinator.reports) == reports + 1, "one is of the end"

    run_ranks(1, rank, 10.0)
