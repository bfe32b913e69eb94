"""Reports of a script to the coordinator: what of its pushes is acknowledged."""

from __future__ import annotations

from typing import Any, NamedTuple

from dbelief.core.push import PARAMETERS, LedgerRow, PushResult
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.phases import PhaseTimer
from dbelief.training.push_totals import PushTotals
from dbelief.training.reports import Reports, cache_figures
from dbelief.training.session import Session

from .drawn import DrawnBatch

REPORT_EVERY_S = 0.5
"""Seconds between two reports, at least, but for what travels with requests for work."""


class PushedSteps(NamedTuple):
    """What a push completes; see `PushTotals.add`."""

    row: LedgerRow
    samples: int
    steps: int
    loss_sum: float


class ScriptProgress:
    """Totals of one incarnation of a script.

    Reports at intervals travel while the script computes; one that failed is raised by the next call.

    Attributes
    ----------
    job_samples
        Samples that all replicas have trained, as last known.
    travels
        Whether pushes are under way, or some of a round's follow: residuals change then, and are not reported.
    phases
        Time of the script's loop.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._totals = PushTotals(session.sequences.get(PARAMETERS, 0))
        self._reported_s = runtime.monotonic()
        self._every_s = REPORT_EVERY_S
        self._reported = 0  # pushes
        self._reports = Reports(session.member)
        self.job_samples = 0
        self.travels = False
        self.phases = PhaseTimer()

    def acknowledged(self, steps: PushedSteps, pushed: PushResult) -> None:
        """Record an acknowledged push, and report at intervals."""
        self._totals.add(*steps, pushed)
        self.job_samples += steps.samples
        self.report_at_intervals()

    def left_out(self) -> None:
        """Count a step that a loss scaler left out."""
        self._totals.progress.steps_left_out += 1

    def passed(self, batch: DrawnBatch) -> None:
        """Report the samples up to the end of a batch as done, without a push."""
        progress = self._totals.progress
        progress.lease, progress.position = batch.lease.id, batch.stop
        self.report(progress=progress)

    def report_at_intervals(self) -> None:
        """Begin a report if the last report is old enough: a member without reports is removed."""
        if self._reports.travels:
            return
        self._answer()
        if runtime.monotonic() - self._reported_s > self._every_s:
            self._reported = self._totals.progress.pushes
            self._reports.begin(self._request(progress=self._totals.progress, wire=self._figures()))

    def report(self, **fields: Any) -> wire.ReportReply:
        """Send a report with these fields of `ReportRequest`, and wait for its answer."""
        self._answer()
        reply = self._reports.send(self._request(**fields))
        self._every_s, self.job_samples = max(REPORT_EVERY_S, reply.report_every_s), reply.samples
        return reply

    def _request(self, **fields: Any) -> wire.ReportRequest:
        self._reported_s = runtime.monotonic()
        cached = cache_figures(self._session.caches)
        return wire.ReportRequest(seconds=self.phases.seconds, staleness=self._totals.staleness, **cached, **fields)

    def _answer(self) -> None:
        """Wait for the report under way, if any: the coordinator has the totals in their order."""
        if (reply := self._reports.answer()) is not None:
            self._every_s = max(REPORT_EVERY_S, reply.report_every_s)
            self.job_samples = max(self.job_samples, reply.samples)  # some are counted since then

    def request_work(self, last_lease: int, wants: wire.Wants.ValueType) -> wire.LeaseReply:
        """Request work, and report with it."""
        self._answer()
        self._reported = self._totals.progress.pushes
        report = self._request(progress=self._totals.progress, wire=self._figures())
        request = wire.LeaseRequest(last_lease=last_lease, wants=wants, report=report)
        reply: wire.LeaseReply = self._session.member.call("Lease", request)
        self._every_s, self.job_samples = max(REPORT_EVERY_S, reply.report_every_s), reply.samples
        return reply

    def flush(self) -> None:
        """Report the progress, where a push is not reported yet."""
        self._answer()
        if self._totals.progress.pushes > self._reported:
            self._report_pushes()

    def _report_pushes(self) -> None:
        self._reported = self._totals.progress.pushes
        self.report(progress=self._totals.progress, wire=self._figures())

    def _figures(self) -> wire.WireFigures | None:
        return None if self.travels else self._session.parameters.figures()
