"""Reports of a replica, and of one of several ranks, during a lease and at its end."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dbelief.core.push import Pusher, PushResult, PushStats
from dbelief.core.ranks import RankGroup, SingleRank
from dbelief.errors import Rejected, Unavailable
from dbelief.process.begun import Begun
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MemberView
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.telemetry.metrics import Metrics
from dbelief.training.phases import PhaseTimer
from worker.comm import Communicator, run_ranks
from worker.progress_reporter import ProgressReporter


class Coordinator:
    """Keeps the reports that it receives, and those that come with each request for work."""

    def __init__(self, report_every_s: float = 0.0) -> None:
        self.reports: list[wire.ReportRequest] = []
        self.with_request: list[wire.ReportRequest] = []
        self._every_s = report_every_s

    def call(self, method: str, request: Any) -> Any:
        if method == "Lease":
            assert request.HasField("report")
            self.with_request.append(request.report)
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
    ranks: RankGroup, coordinator: Coordinator, metrics: Any = None, progress_s: float = 600.0, pushed: int = 0
) -> ProgressReporter:
    """`pushed`: pushes of initial values before."""
    session: Any = SimpleNamespace(
        job=SimpleNamespace(deadlines=SimpleNamespace(progress_s=progress_s)),
        ranks=ranks,
        sequences={"w": pushed} if pushed else {},
        member=MemberView(cast("CoordinatorClient", coordinator), wire.ROLE_REPLICA, 3, 7, 0),
        parameters=SimpleNamespace(figures=lambda: wire.WireFigures(sent=100, received=10 + ranks.rank, residual=0.5)),
        pusher=Pusher(3, 7, ranks.rank),
        caches={"user": SimpleNamespace(reads=8, hits=6)},
    )
    nothing: Any = Anything()
    phases = PhaseTimer()
    phases.end("wait")
    return ProgressReporter(session, metrics or nothing, phases, nothing)


def train(reporter: ProgressReporter, lease: int = 1, lost: int = 0) -> None:
    """A lease of three pushes; the first has lost some before it."""
    before = reporter._session.sequences.get("w", 0)
    for number in (1, 2, 3):
        about = PushStats(lease=lease, position=10 * number, samples=10, steps=1, loss_sum=1.0)
        about.sequence = before + number
        reporter.acknowledged(about, PushResult(0.0, 0, lost if number == 1 else 0))
    reporter.end()
    assert reporter._session.sequences == {"w": before + 3}


def last_push(report: wire.ReportRequest) -> tuple[int, int, int]:
    """Lease, position and number of the last push that a report acknowledges."""
    return report.progress.lease, report.progress.position, report.progress.sequence


def trained(comm: Communicator, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, lost: int = 0) -> None:
    """One rank reports a lease, none of its pushes too early to report; the first rank requests the next."""
    monkeypatch.setattr("worker.progress_reporter.REPORT_EVERY_S", -1.0)
    reporter = a_reporter(comm, coordinator)
    train(reporter, lost=lost)
    if comm.rank == 0:
        reporter.request_work(wire.LeaseRequest())


def test_lease_of_several_ranks_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member without reports is removed; but what one rank's shards have, those of others may not."""
    coordinator = Coordinator()
    run_ranks(2, lambda comm: trained(comm, coordinator, monkeypatch))
    assert [report.HasField("progress") for report in coordinator.reports] == [False, False, False]
    (at_end,) = coordinator.with_request
    assert (at_end.progress.samples, *last_push(at_end)) == (30, 1, 30, 3)
    assert {(report.replica, report.incarnation) for report in coordinator.reports} == {(3, 7)}
    waited = [report.seconds["wait"] for report in (*coordinator.reports, at_end)]
    assert waited[0] > 0
    assert waited == sorted(waited), "each report shows what the time went into"
    assert (dict(at_end.cache_reads), dict(at_end.cache_hits)) == ({"user": 8}, {"user": 6})
    traffic = at_end.wire
    assert (traffic.sent, traffic.received, traffic.residual) == (200, 10 + 11, 1.0), "of both ranks"


@pytest.mark.parametrize(("lost", "reported"), [((0, 4), 4), ((5, 5), 5), ((3, 0), 3)])
def test_what_a_shard_of_any_rank_lost_is_reported_once(
    lost: tuple[int, int], reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator()
    run_ranks(2, lambda comm: trained(comm, coordinator, monkeypatch, lost[comm.rank]))
    assert [report.progress.lost for report in coordinator.with_request] == [reported]


def test_what_was_lost_in_several_leases_adds_up() -> None:
    """Shards of each rank lose pushes before different leases; no push is counted twice."""
    coordinator = Coordinator()

    def works(comm: Communicator) -> None:
        reporter = a_reporter(comm, coordinator)
        for lease, lost in ((1, (0, 4)), (2, (0, 0)), (3, (3, 3))):
            train(reporter, lease, lost[comm.rank])
            if comm.rank == 0:
                reporter.request_work(wire.LeaseRequest())

    run_ranks(2, works)
    assert [report.progress.lost for report in coordinator.with_request] == [4, 4, 7]


def test_a_finished_lease_is_reported_with_the_request_for_the_next_one() -> None:
    coordinator = Coordinator(report_every_s=0.5)
    reporter = a_reporter(SingleRank(), coordinator, pushed=1)
    for lease in (1, 2, 3):
        reporter.request_work(wire.LeaseRequest())
        train(reporter, lease)
    assert [last_push(report) for report in coordinator.with_request] == [(0, 0, 1), (1, 30, 4), (2, 30, 7)]
    reporter.flush()
    assert [report.progress.samples for report in coordinator.with_request] == [0, 30, 60], "totals since it joined"
    assert [report.progress.pushes for report in coordinator.with_request] == [0, 3, 6], "without initial values"
    assert [last_push(report) for report in coordinator.reports] == [(3, 30, 10)], "no request for work follows"
    assert coordinator.reports[0].progress.samples == 90


def test_a_repeated_request_reports_the_same() -> None:
    """Another coordinator may have received the first, and failed since."""
    coordinator = Coordinator(report_every_s=0.5)
    reporter = a_reporter(SingleRank(), coordinator)
    reporter.request_work(wire.LeaseRequest())
    train(reporter)
    for _ in range(3):
        reporter.request_work(wire.LeaseRequest())
    reporter.flush()
    first, *others = (report.progress for report in coordinator.with_request)
    assert first == wire.Progress()
    assert len(others) == 3
    assert others == [others[0]] * 3
    assert others[0].samples == 30
    assert coordinator.reports == [], "nothing is left to report"


def test_a_request_that_was_not_answered_keeps_the_report() -> None:
    coordinator = Coordinator(report_every_s=0.5)
    reporter = a_reporter(SingleRank(), coordinator)
    train(reporter, lost=2)

    def away(method: str, request: Any) -> Any:
        raise Unavailable("no coordinator")

    here, coordinator.call = coordinator.call, away  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        reporter.request_work(wire.LeaseRequest())
    coordinator.call = here  # type: ignore[method-assign]
    reporter.request_work(wire.LeaseRequest())
    (report,) = coordinator.with_request
    assert (report.progress.lost, last_push(report)) == (2, (1, 30, 3))
    assert report.seconds["wait"] > 0, "the whole report"


def test_steps_of_a_group_have_no_number() -> None:
    """They push nothing: what initial values had stays the last number, and positions are reported."""
    coordinator = Coordinator()
    reporter = a_reporter(SingleRank(), coordinator, pushed=1)
    for step in (1, 2):
        reporter.acknowledged(PushStats(lease=4, position=16 * step, samples=8, steps=1, loss_sum=1.0))
    reporter.end()
    reporter.request_work(wire.LeaseRequest())
    assert reporter._session.sequences == {"w": 1}
    (report,) = coordinator.with_request
    assert (report.progress.samples, *last_push(report)) == (16, 4, 32, 0)


def test_metrics_have_all_pushes_when_a_lease_is_over() -> None:
    """They are updated with the reports, and not at each push."""
    metrics = Metrics("worker")
    coordinator = Coordinator(report_every_s=0.5)
    reporter = a_reporter(SingleRank(), coordinator, metrics)
    reporter.request_work(wire.LeaseRequest())
    for lease in (1, 2):
        for number in (1, 2, 3):
            slot = PushStats(lease=lease, position=10 * number, samples=10, steps=2, loss_sum=5.0 * number)
            slot.sequence = 3 * (lease - 1) + number
            reporter.acknowledged(slot, PushResult(float(4 * number)))
        reporter.end()
    assert [metrics.value(f"{name}_total") for name in ("pushes", "samples", "steps")] == [6, 60, 12]
    assert metrics.value("loss") == 1.5
    assert (metrics.value("staleness_count"), metrics.value("staleness_sum")) == (6, 48.0)
    assert [metrics.value("staleness_bucket", le=bound) for bound in ("3.0", "4.0", "8.0", "12.0")] == [0, 2, 4, 6]


class AtOnce(Begun[Any]):
    """On the calling thread."""

    def __init__(self, call: Callable[[], Any], name: str) -> None:
        super().__init__(call, name)
        self.result()


def test_pushes_are_acknowledged_while_a_report_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another coordinator takes seconds to take over: no push waits for it, but the next request for work."""
    monkeypatch.setattr("worker.progress_reporter.REPORT_EVERY_S", -1.0)
    coordinator, asked, may_answer = Coordinator(), threading.Event(), threading.Event()
    here = coordinator.call

    def slow(method: str, request: Any) -> Any:
        if method == "Report":
            asked.set()
            assert may_answer.wait(60)
        return here(method, request)

    coordinator.call = slow  # type: ignore[method-assign]
    reporter = a_reporter(SingleRank(), coordinator)
    train(reporter)
    assert asked.wait(60)
    assert (coordinator.reports, coordinator.with_request) == ([], [])
    may_answer.set()
    reporter.request_work(wire.LeaseRequest())
    assert [last_push(report) for report in coordinator.reports] == [(1, 10, 1)], "one at a time"
    assert [last_push(report) for report in coordinator.with_request] == [(1, 30, 3)]


def test_a_report_that_is_refused_ends_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.progress_reporter.REPORT_EVERY_S", -1.0)
    coordinator = Coordinator()

    def removed(method: str, request: Any) -> Any:
        raise Rejected("this replica was removed")

    coordinator.call = removed  # type: ignore[method-assign]
    reporter = a_reporter(SingleRank(), coordinator)
    reporter.acknowledged(PushStats(sequence=1, lease=1, position=10, samples=10, steps=1, loss_sum=1.0))
    with pytest.raises(Rejected, match="removed"):
        reporter.request_work(wire.LeaseRequest())


@pytest.mark.parametrize(("progress_s", "reports"), [(600.0, 0), (1e-9, 3)])
def test_reports_come_before_the_progress_timeout(
    progress_s: float, reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose reports took longer than this would be removed."""
    monkeypatch.setattr("dbelief.training.reports.Begun", AtOnce)
    coordinator = Coordinator()
    reporter = a_reporter(SingleRank(), coordinator, progress_s=progress_s)
    train(reporter)
    reporter.request_work(wire.LeaseRequest())
    assert [report.progress.pushes for report in coordinator.reports] == [1, 2, 3][:reports]
    assert [report.progress.pushes for report in coordinator.with_request] == [3]


def test_what_no_report_has_told_is_exported_at_the_end() -> None:
    """Pushes that were acknowledged after the last report, before the replica failed."""
    metrics = Metrics("worker")
    reporter = a_reporter(SingleRank(), Coordinator(), metrics)
    reporter.acknowledged(PushStats(sequence=1, lease=1, position=10, samples=10, steps=1, loss_sum=20.0))
    assert not metrics.value("pushes_total")
    reporter.export()
    reporter.export()
    assert [metrics.value(f"{name}_total") for name in ("pushes", "samples", "steps")] == [1, 10, 1]
    assert metrics.value("loss") == 2.0
    assert (metrics.value("phase_seconds_total", phase="wait") or 0) > 0


def test_who_waits_for_work_reports_the_time_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    reporter = a_reporter(SingleRank(), coordinator)
    reporter.request_work(wire.LeaseRequest())
    monkeypatch.setattr("worker.progress_reporter.REPORT_EVERY_S", -1.0)
    reporter.request_work(wire.LeaseRequest())
    first, second = coordinator.with_request
    assert not first.seconds
    assert second.seconds["wait"] > 0
    assert second.progress.samples == 0
