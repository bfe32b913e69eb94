"""Reports of a replica to the coordinator: its progress in a lease, and the bundles that it has computed.

Pushes are reported as they are acknowledged, while the replica computes. With several ranks a rank's shards may lag
behind those of another: until all have reported the end of a lease, only the fact that it makes progress is reported.

The report on a finished lease travels with the request for the next one: a call less for each lease.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from dbelief.core.push import PARAMETERS, LedgerRow, PushResult, PushStats
from dbelief.core.ranks import all_max
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.record import BatchRecorder
from dbelief.telemetry.metrics import Metrics
from dbelief.training.phases import PhaseTimer
from dbelief.training.push_totals import PushTotals
from dbelief.training.reports import Reports, cache_figures
from dbelief.training.session import Session

log = logging.getLogger(__name__)

REPORT_EVERY_S = 0.5
"""Time between reports within a lease, at least, in seconds; at 0.2 the reports of four replicas, and what the
coordinator stores of them, took a fortieth of a core."""
ALIVE_EVERY_S = 1.0
_STEP = PushResult(0.0)
"""Result of a step among the workers of a group, which pushes nothing."""


class ProgressReporter:
    """Progress of one replica, or of one rank of it; only rank 0 sends reports and sets metrics.

    Parameters
    ----------
    recorder
        Log for a replay; acknowledged pushes are recorded in it.

    Attributes
    ----------
    progress
        Acknowledged pushes of this incarnation.
    """

    def __init__(self, session: Session, metrics: Metrics, phases: PhaseTimer, recorder: BatchRecorder) -> None:
        self._session, self._ranks, self._metrics = session, session.ranks, metrics
        self._phases, self._recorder = phases, recorder
        self._reports = Reports(session.member)
        self._totals = PushTotals(session.sequences.get(PARAMETERS, 0))
        self._lock = runtime.lock()  # guards the totals, and what the metrics have of them
        self._loss = math.nan  # of the last mini-batch
        self._counted, self._classes = wire.Progress(), list(self._totals.staleness)  # what the metrics have of both
        self._exported: dict[str, float] = {}
        self._reported_s = runtime.monotonic()
        self._least_s = min(REPORT_EVERY_S, session.job.deadlines.progress_s / 2)
        self._every_s = 0.0  # between reports within a lease, at least: set by the coordinator
        self._held: wire.ReportRequest | None = None  # of a finished lease, for the next request for work
        self._unreported: list[wire.BundleDone] = []

    @property
    def progress(self) -> wire.Progress:
        """See the class."""
        return self._totals.progress

    @property
    def _leads(self) -> bool:
        return self._ranks.rank == 0

    def report(self, **fields: Any) -> wire.ReportReply:
        """Send a report with these fields of `ReportRequest`, and wait; ranks after the first send nothing."""
        self._reported_s = runtime.monotonic()
        if not self._leads:
            return wire.ReportReply()
        reply = self._reports.send(self._request(**fields))
        self._every_s = reply.report_every_s
        return reply

    def _report_pushes(self) -> None:
        """Begin a report on the pushes; where one travels, the next one has them."""
        if not self._reports.travels:
            self._reported_s = runtime.monotonic()
            if (reply := self._reports.begin(self._request(**self._progress()))) is not None:
                self._every_s = reply.report_every_s

    def _request(self, **fields: Any) -> wire.ReportRequest:
        with self._lock:
            self._export_pushes()
        cached = cache_figures(self._session.caches)
        return wire.ReportRequest(seconds=self._phases.seconds, staleness=self._totals.staleness, **cached, **fields)

    def request_work(self, request: wire.LeaseRequest) -> wire.LeaseReply:
        """Request work, and report all that is acknowledged; on the leading rank only, when no push is under way.

        Each request has the totals: another coordinator may have received the last report, and failed since.
        """
        self._reports.answer()
        now_s = runtime.monotonic()
        if self._held is None and now_s - self._reported_s > REPORT_EVERY_S:
            self._held = self._request(progress=self.progress)  # a worker without work has waited
        request.report.CopyFrom(self._held or wire.ReportRequest(progress=self.progress))
        if self._held is not None:
            self._reported_s = now_s
        reply: wire.LeaseReply = self._session.member.call("Lease", request)
        self._held, self._every_s = None, reply.report_every_s
        return reply

    def flush(self) -> None:
        """Report the lease that was finished, where no request for work follows."""
        self._reports.answer()
        if self._held is not None:
            self._reports.send(self._held)
            self._held = None

    def report_alive(self) -> None:
        """Report progress to the coordinator at intervals; a member without progress reports is removed."""
        if runtime.monotonic() - self._reported_s > max(ALIVE_EVERY_S, self._every_s):
            self.report()

    # -- a lease -----------------------------------------------------------------------------------------

    def acknowledged(self, slot: PushStats, pushed: PushResult = _STEP) -> None:
        """Record an acknowledged push, exchange or group step, and report at intervals; any thread."""
        if slot.sequence:
            self._session.sequences[PARAMETERS] = slot.sequence
            self._recorder.acknowledged(slot.sequence)
        with self._lock:
            row = LedgerRow(slot.sequence, slot.lease, slot.position)
            self._totals.add(row, slot.samples, slot.steps, slot.loss_sum, pushed)
            self._loss = slot.loss_sum / slot.samples
        if self._leads and runtime.monotonic() - self._reported_s > max(self._least_s, self._every_s):
            if self._ranks.size == 1:
                self._report_pushes()
            else:
                self.report()

    def end(self, traffic: wire.Traffic | None = None) -> None:
        """Report the progress of a lease whose pushes are all acknowledged; all ranks do this together.

        The report is sent with the next request for work. `traffic`: of the group that trained it.
        """
        # Each rank counts the losses of its own shards only. When all have reported, all shards have the lease.
        self.progress.lost = all_max(self._ranks, self.progress.lost)
        fields = {**self._progress(), "traffic": traffic}
        if self._leads:
            self._held = self._request(**fields)
        self.export_phases()

    def _progress(self) -> dict[str, Any]:
        """Fields of a report on the pushes."""
        with self._lock:
            progress = _copied(self.progress)
        return {"progress": progress, "wire": self._traffic()}

    def _export_pushes(self) -> None:
        """Add what was acknowledged since the last call to the metrics; the lock is held.

        Not at each push: five metrics cost as much as a tenth of the client's part of a small push.
        """
        before, now = self._counted, self.progress
        if not self._leads or now.pushes == before.pushes:
            return
        self._metrics.pushes_total.inc(now.pushes - before.pushes)
        self._metrics.samples_total.inc(now.samples - before.samples)
        self._metrics.steps_total.inc(now.steps - before.steps)
        self._metrics.loss.set(self._loss)
        seen = [count - known for count, known in zip(self._totals.staleness, self._classes, strict=True)]
        self._metrics.staleness.add(seen, now.staleness_sum - before.staleness_sum)
        self._counted, self._classes = _copied(now), list(self._totals.staleness)

    def _traffic(self) -> wire.WireFigures:
        """Traffic counters summed over all ranks; collective, unless there is only one rank."""
        own, total = self._session.parameters.figures(), self._ranks.total
        return wire.WireFigures(
            sent=int(total(own.sent)),
            received=int(total(own.received)),
            residual=total(own.residual),
            shared_sent=int(total(own.shared_sent)),
            shared_received=int(total(own.shared_received)),
        )

    def export(self) -> None:
        """Add all that the metrics do not have yet."""
        with self._lock:
            self._export_pushes()
        self.export_phases()

    def export_phases(self) -> None:
        """Add the seconds of each phase since the last call to the metrics."""
        for phase, seconds in self._phases.seconds.items():
            self._metrics.phase_seconds_total.labels(phase).inc(seconds - self._exported.get(phase, 0.0))
        self._exported = dict(self._phases.seconds)

    # -- bundles of a batch method -----------------------------------------------------------------------

    def next_bundle(self, turn: int, holds: list[int]) -> wire.Bundle | None:
        """Request the next bundle while one is still being computed; None: none now, or several ranks."""
        if self._ranks.size > 1:
            return None
        request = wire.LeaseRequest(pass_number=turn, held_bundles=holds, prefetch=True)
        reply: wire.LeaseReply = self._session.member.call("Lease", request)
        return reply.bundle if reply.HasField("bundle") else None

    def done(self, done: wire.BundleDone) -> None:
        """Report a bundle that every segment has received; runs on the push thread."""
        if self._leads:
            self._metrics.pushes_total.inc()
            self._metrics.samples_total.inc(done.samples)
            self._metrics.loss.set(done.loss_sum / done.samples)
        if self._ranks.size > 1:
            self._unreported.append(done)
        else:
            self.report(bundle=done, wire=self._traffic())

    def report_bundles(self) -> None:
        """With several ranks: report the bundles that the shards of all ranks have acknowledged."""
        self._ranks.barrier()
        for done in self._unreported:
            self.report(bundle=done)
        self._unreported.clear()

    def failed(self, failed: wire.BundleFailed) -> None:
        """Report a bundle that could not be computed; the coordinator decides which replica retries it."""
        log.warning(f"bundle {failed.bundle} of pass {failed.pass_number} failed: {failed.reason}")
        self.report(failed=failed)


def _copied(progress: wire.Progress) -> wire.Progress:
    copy = wire.Progress()
    copy.CopyFrom(progress)
    return copy
