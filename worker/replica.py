"""Main loop of one model replica: request leases, train or evaluate them and report, until the job ends.

If the model is partitioned over several ranks, every rank runs this loop. Rank 0 sends the requests and broadcasts the
replies. Results are reported when the shards of all ranks have acknowledged them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dbelief.core.lease import DataLease
from dbelief.core.push import PARAMETERS, PushResult, StalenessHistogram
from dbelief.core.ranks import all_max, all_or_none
from dbelief.errors import DataError, NonFinite, RankFailure, Rejected, Unavailable
from dbelief.job import Elastic as ElasticSettings
from dbelief.job import Sandblaster, SyncSgd
from dbelief.nn import Model
from dbelief.process.console import announce
from dbelief.rpc import coordination_pb2 as wire
from dbelief.rundir.worker_record import Recorder
from dbelief.telemetry.metrics import Metrics
from dbelief.training.evaluation import evaluate
from dbelief.training.session import Session

from .pipeline.buffers import GradientBuffer, ParameterBuffer, PushStats
from .rendezvous import GroupSpec, Rendezvous
from .strategies import factory
from .strategies.downpour import Downpour, PhaseTimer
from .strategies.elastic import Elastic
from .strategies.group import GroupTrainer
from .strategies.sandblaster import BundleWorker

Reply = TypeVar("Reply", wire.LeaseReply, wire.ReportReply)

REPORT_EVERY_S = 0.2
MOVED_EVERY_S = 1.0


class Replica:
    """One incarnation of one model replica, or of one rank of it.

    Parameters
    ----------
    session
        Connection of this replica to the job.
    model
        The session's model, or this rank's part of it.
    interrupted
        Set when the process is interrupted; the current lease is finished first.
    meeting
        Rendezvous with the other workers, for strategies whose workers form groups.
    """

    def __init__(
        self,
        session: Session,
        model: Model,
        metrics: Metrics,
        interrupted: threading.Event,
        meeting: Rendezvous | None = None,
    ) -> None:
        self._session = session
        self._model = model
        self._ranks = session.ranks
        self._metrics = metrics
        self._interrupted = interrupted
        self._recorder = Recorder()
        self._phases = PhaseTimer()
        self._shown: dict[str, float] = {}
        self._told = wire.Progress()
        self._told_lock = threading.Lock()
        self._spread = StalenessHistogram()
        self._reported_s = time.monotonic()
        self._unreadable = 0
        self._unreported: list[wire.BundleDone] = []
        if session.data is None or session.data.train is None:
            raise DataError(
                "a replica trains on data, and data.source is none: bring a loop of your own (dbelief.connect)"
            )
        strategy, train = session.job.strategy, session.data.train
        self._bundles: BundleWorker | None = None
        noted = self._noted if session.job.record else None
        self._trains: Downpour | Elastic | None = None
        self._together: GroupTrainer | None = None
        self._broken: tuple[int, str] = 0, ""  # generation of the last group that failed, and why
        if isinstance(strategy, Sandblaster):
            self._bundles = factory.sandblaster(session, model, strategy, train, self._phases, self)
        elif meeting is not None:
            assert isinstance(strategy, ElasticSettings | SyncSgd), f"{strategy.name} forms no groups"
            ways = self._phases, meeting, self._stepped
            self._together = factory.synchronous(session, model, strategy, train, *ways)
        elif isinstance(strategy, ElasticSettings):
            self._trains = factory.elastic(session, model, strategy, train, self._phases, self._exchanged, noted)
        else:
            assert not isinstance(strategy, SyncSgd), "its workers have a meeting"
            told = self._push, self._acknowledged, noted
            self._trains = factory.downpour(session, model, strategy, train, self._phases, *told)

    def run(self) -> str:
        """Process leases until the job ends or this process is interrupted; return the reason.

        Raises
        ------
        RuntimeFailure
            Any other failure. A gradient that is not finite is reported to the coordinator first.
        """
        try:
            while (reply := self._next_assignment()) is not None:
                work = reply.WhichOneof("work")
                if work == "stop":
                    all_or_none(self._ranks, self._check_membership)
                    return reply.stop
                if work == "training":
                    self._train(reply.training)
                elif work == "bundle":
                    self._compute(reply.bundle)
                elif work == "evaluation":
                    self._evaluate(reply.evaluation)
                else:
                    self._interrupted.wait(reply.wait_s)
                    self._phases.end("wait")
            return "asked to end"
        except Exception as error:
            if not isinstance(error, Rejected):  # all ranks may be about to raise this one together
                self._ranks.abort(error)  # before anything slow, such as pending pushes
            if isinstance(error, NonFinite) or (isinstance(error, RankFailure) and error.kind == NonFinite.__name__):
                samples = self._told.samples
                self._report(trouble=f"{error}, {samples} samples into its lease; try a lower rate or clip_norm")
            raise
        finally:
            for threads in (self._trains, self._together, self._bundles):
                if threads is not None:
                    threads.close()

    @property
    def _leads(self) -> bool:
        """Whether this rank communicates with the coordinator."""
        return self._ranks.rank == 0

    def _next_assignment(self) -> wire.LeaseReply | None:
        """Next assignment of all ranks; None if the process of any rank is interrupted."""
        if self._ranks.total(self._interrupted.is_set()):
            return None
        return self._broadcast_reply(self._ask, wire.LeaseReply)

    def _broadcast_reply(self, ask: Callable[[], Reply], kind: type[Reply]) -> Reply:
        """Reply of the coordinator to rank 0, on all ranks."""
        if self._ranks.size == 1:
            return ask()
        return kind.FromString(self._ranks.share(ask().SerializeToString() if self._leads else b""))

    def _ask(self) -> wire.LeaseReply:
        request = wire.LeaseRequest(next_sequence=self._session.next_sequence())
        if self._bundles is not None:
            self._bundles.check()
            request.turn = self._bundles.pass_number
            request.holds.extend(self._bundles.holds)
        if self._together is not None:
            request.last, request.steps = self._told.lease, self._together.steps
            request.broken, request.why = self._broken
        reply: wire.LeaseReply = self._session.member.call("Lease", request)
        return reply

    def _check_membership(self) -> None:
        """Check whether a stop ends the job or only this incarnation.

        Raises
        ------
        Rejected
            Only this incarnation ends; the launcher is expected to start another one.
        """
        if not self._leads:
            return
        member = self._session.member
        with contextlib.suppress(Unavailable):
            member.beat(patience_s=0.0)
        if member.lost:
            raise Rejected(member.lost)

    def write_record(self, folder: Path | None) -> None:
        """Write the log for a replay, if the job requests one."""
        self._recorder.write(folder, self._session.pusher)

    # -- training ----------------------------------------------------------------------------------------

    def _train(self, message: wire.TrainingLease) -> None:
        lease = DataLease(
            message.lease,
            message.epoch,
            message.start,
            message.stop,
            message.first_sequence,
            message.samples_before,
            message.clock,
            message.member_epoch,
            message.stride or 1,
        )
        if lease.first_sequence != self._session.next_sequence():
            raise Rejected(
                f"lease {lease.id} begins at push {lease.first_sequence}, not {self._session.next_sequence()}"
            )
        self._phases.end("wait")
        with self._told_lock:
            self._told = wire.Progress(lease=lease.id)
        if self._together is not None:
            self._train_together(self._together, lease, message.group)
        else:
            assert self._trains is not None, "a lease, and a batch method trains no leases"
            self._trains.train(lease)
        # Each rank counts the losses of its own shards only. When all have reported, all shards have the lease.
        self._told.lost = all_max(self._ranks, self._told.lost)
        self._report_progress()
        self._show()

    def _train_together(self, together: GroupTrainer, lease: DataLease, message: wire.Group) -> None:
        group = GroupSpec.of(message, self._session.pusher.replica)
        why = together.train(lease, group)
        if (traffic := together.traffic(group)) is not None:
            self._report(traffic=traffic.to_wire())
        if why:
            self._broken = group.generation, why
            announce(f"group {group.generation} of {group.size} workers is over: {why}")

    def _stepped(self, done: PushStats) -> None:
        """Record a mini-batch whose group step is complete."""
        self._exchanged(done, PushResult(0.0))

    def _push(self, slot: GradientBuffer) -> PushResult:
        return self._session.push(
            slot.gradient, slot.versions, slot.sequence, slot.rate, slot.samples, slot.clock, slot.sent
        )

    def _exchanged(self, done: PushStats, pushed: PushResult) -> None:
        """Record a completed exchange."""
        self._session.sequences[PARAMETERS] = done.sequence
        self._acknowledged(done, pushed)

    def _acknowledged(self, slot: PushStats, pushed: PushResult) -> None:
        """Record an acknowledged push and report at intervals; runs on the push thread."""
        self._recorder.acknowledged(slot.sequence)
        with self._told_lock:
            told = self._told
            told.pushes += 1
            told.samples += slot.samples
            told.steps += slot.steps
            told.loss_sum += slot.loss_sum
            told.staleness_sum += pushed.staleness
            self._spread.add(pushed.staleness)
            told.lost += pushed.lost
        if not self._leads:
            return
        self._metrics.pushes_total.inc()
        self._metrics.samples_total.inc(slot.samples)
        self._metrics.steps_total.inc(slot.steps)
        self._metrics.loss.set(slot.loss_sum / slot.samples)
        self._metrics.staleness.observe(pushed.staleness)
        if time.monotonic() - self._reported_s > REPORT_EVERY_S:
            if self._ranks.size == 1:
                self._report_progress()
            else:  # other ranks' shards may lag behind this rank's: report only that the lease makes progress
                self._report()

    def _report_progress(self) -> None:
        with self._told_lock:
            progress = wire.Progress()
            progress.CopyFrom(self._told)
        self._report(progress=progress, wire=self._figures())

    def _figures(self) -> wire.WireFigures:
        """Traffic counters summed over all ranks; collective, unless there is only one rank."""
        own, total = self._session.parameters.figures(), self._ranks.total
        return wire.WireFigures(
            sent=int(total(own.sent)),
            received=int(total(own.received)),
            residual=total(own.residual),
            shared_sent=int(total(own.shared_sent)),
            shared_received=int(total(own.shared_received)),
        )

    def _show(self) -> None:
        for phase, seconds in self._phases.seconds.items():
            self._metrics.phase_seconds_total.labels(phase).inc(seconds - self._shown.get(phase, 0.0))
        self._shown = dict(self._phases.seconds)

    def _noted(self, lease: DataLease, step: int, versions: Any) -> None:
        self._recorder.note(lease, step, versions)

    # -- a batch method ----------------------------------------------------------------------------------

    def _compute(self, bundle: wire.Bundle) -> None:
        assert self._bundles is not None
        following: wire.Bundle | None = bundle
        if self._ranks.size > 1:
            self._compute_together(self._bundles, bundle)
            return
        while following is not None and not self._interrupted.is_set():
            following = self._bundles.compute(following)
            self._show()

    def _compute_together(self, bundles: BundleWorker, bundle: wire.Bundle) -> None:
        """Compute a bundle on all ranks, and report it when all their shards have acknowledged it."""
        bundles.compute(bundle)
        bundles.flush()
        self._ranks.barrier()
        for done in self._unreported:
            self._report(bundle=done)
        self._unreported.clear()
        self._show()

    def next_bundle(self, turn: int, holds: list[int]) -> wire.Bundle | None:
        """Request the next bundle while one is still being computed; None: none now, or several ranks."""
        if self._ranks.size > 1:
            return None
        reply: wire.LeaseReply = self._session.member.call(
            "Lease", wire.LeaseRequest(turn=turn, holds=holds, ahead=True)
        )
        return reply.bundle if reply.HasField("bundle") else None

    def report_alive(self) -> None:
        """Report progress to the coordinator at intervals; a member without progress reports is removed."""
        if time.monotonic() - self._reported_s > MOVED_EVERY_S:
            self._report()

    def done(self, done: wire.BundleDone) -> None:
        """Report a bundle that every segment has received; runs on the push thread."""
        if self._leads:
            self._metrics.pushes_total.inc()
            self._metrics.samples_total.inc(done.samples)
            self._metrics.loss.set(done.loss_sum / done.samples)
        if self._ranks.size > 1:
            self._unreported.append(done)
        else:
            self._report(bundle=done, wire=self._figures())

    def failed(self, failed: wire.BundleFailed) -> None:
        """Report a bundle that could not be computed; the coordinator decides which replica retries it."""
        announce(f"bundle {failed.bundle} of pass {failed.turn} failed: {failed.reason}")
        self._report(failed=failed)

    # -- evaluation --------------------------------------------------------------------------------------

    def _evaluate(self, message: wire.EvaluationLease) -> None:
        session = self._session
        assert session.data is not None
        split = session.data.validation if message.set == "validation" else session.data.test
        assert split is not None, f"asked to evaluate on {message.set} data, and there is none"
        parameters = session.parameters
        copy = ParameterBuffer.make(session.part, len(parameters.placement.spans), session.backend, parameters.array)
        try:
            vector = message.vector
            all_or_none(self._ranks, lambda: parameters.pull(copy.host, copy.versions, vector=vector, exact=True))
        except Rejected:
            # The vector may have been lost with a shard; then the coordinator does not request it again.
            first, self._unreadable = message.lease != self._unreadable, message.lease
            if message.vector != PARAMETERS and first:
                return
            raise
        copy.to_device()
        loss, accuracy = evaluate(self._model, copy.views, split, session.part, session.backend, self.report_alive)
        found = wire.Evaluation(lease=message.lease, loss=loss, accuracy=accuracy)
        reply = self._broadcast_reply(lambda: self._report(evaluation=found), wire.ReportReply)
        if reply.keep_as:
            session.assign(reply.keep_as, copy.host)
            self._ranks.barrier()
            self._report(kept=message.lease)
        self._phases.end("wait")

    # -- reporting ---------------------------------------------------------------------------------------

    def _report(self, **fields: Any) -> wire.ReportReply:
        self._reported_s = time.monotonic()
        if not self._leads:
            return wire.ReportReply()
        request = wire.ReportRequest(seconds=self._phases.seconds, staleness=self._spread.counts, **fields)
        reply: wire.ReportReply = self._session.member.call("Report", request)
        return reply
