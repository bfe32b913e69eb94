"""A replica's life: leases asked for, trained or evaluated, and reported, until there is nothing more to do.

Where the model is cut over several ranks, each of them lives through all of it: the first one asks, all hear the
answer, and what they did is reported when the shards of all ranks have it.
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
    """One life of one model replica, or of one rank of it.

    Parameters
    ----------
    session
        Its place in the job.
    model
        The session's, or this rank's part of it.
    interrupted
        Set when the process is asked to end: the lease at hand is finished first.
    meeting
        Where the others are met, with a strategy whose workers form groups.
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
        self._broken: tuple[int, str] = 0, ""  # generation of a group that came to no next step, and why
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
        """Work until the job is over, or this process is asked to end; returns why.

        Raises
        ------
        Failure
            What ended it otherwise; the coordinator has been told where it can be reached.
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
            if not isinstance(error, Rejected):  # which all ranks may be about to hear of together
                self._ranks.abort(error)  # before anything that may take long: what is still to be pushed, say
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
        """Whether this rank speaks to the coordinator."""
        return self._ranks.rank == 0

    def _next_assignment(self) -> wire.LeaseReply | None:
        """What all ranks are to do next; None where the process of any of them is asked to end."""
        if self._ranks.total(self._interrupted.is_set()):
            return None
        return self._broadcast_reply(self._ask, wire.LeaseReply)

    def _broadcast_reply(self, ask: Callable[[], Reply], kind: type[Reply]) -> Reply:
        """What the coordinator answers the first rank, on all ranks."""
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
        """See whether a stop is the job's end, or that of this life only: then a launcher is to start another."""
        if not self._leads:
            return
        member = self._session.member
        with contextlib.suppress(Unavailable):
            member.beat(patience_s=0.0)
        if member.lost:
            raise Rejected(member.lost)

    def write_record(self, folder: Path | None) -> None:
        """Write the log for a replay, where the job asks for one."""
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
        # Each rank hears of its own shards only; and when all have said it, all shards have the lease.
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
        """Book a mini-batch whose step the group has made."""
        self._exchanged(done, PushResult(0.0))

    def _push(self, slot: GradientBuffer) -> PushResult:
        return self._session.push(
            slot.gradient, slot.versions, slot.sequence, slot.rate, slot.samples, slot.clock, slot.sent
        )

    def _exchanged(self, done: PushStats, pushed: PushResult) -> None:
        """Book an exchange that is done."""
        self._session.sequences[PARAMETERS] = done.sequence
        self._acknowledged(done, pushed)

    def _acknowledged(self, slot: PushStats, pushed: PushResult) -> None:
        """On the push thread: book a push that is done, and report now and then."""
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
            else:  # what this rank's shards have, those of others may not: told is only that the lease comes on
                self._report()

    def _report_progress(self) -> None:
        with self._told_lock:
            progress = wire.Progress()
            progress.CopyFrom(self._told)
        self._report(progress=progress, wire=self._figures())

    def _figures(self) -> wire.WireFigures:
        """What all ranks have sent and received; for one rank, or all of them at the same time."""
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
        """Compute a bundle on all ranks, and tell of it when all their shards have it."""
        bundles.compute(bundle)
        bundles.flush()
        self._ranks.barrier()
        for done in self._unreported:
            self._report(bundle=done)
        self._unreported.clear()
        self._show()

    def next_bundle(self, turn: int, holds: list[int]) -> wire.Bundle | None:
        """Ask for the next bundle while one is still computed; None: not now, or never where ranks go together."""
        if self._ranks.size > 1:
            return None
        reply: wire.LeaseReply = self._session.member.call(
            "Lease", wire.LeaseRequest(turn=turn, holds=holds, ahead=True)
        )
        return reply.bundle if reply.HasField("bundle") else None

    def report_alive(self) -> None:
        """Tell the coordinator now and then that work comes on: who tells nothing for long is given up."""
        if time.monotonic() - self._reported_s > MOVED_EVERY_S:
            self._report()

    def done(self, done: wire.BundleDone) -> None:
        """On the push thread: every segment holds a bundle."""
        if self._leads:
            self._metrics.pushes_total.inc()
            self._metrics.samples_total.inc(done.samples)
            self._metrics.loss.set(done.loss_sum / done.samples)
        if self._ranks.size > 1:
            self._unreported.append(done)
        else:
            self._report(bundle=done, wire=self._figures())

    def failed(self, failed: wire.BundleFailed) -> None:
        """A bundle could not be computed; the coordinator decides who tries again."""
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
            # The vector may have died with a shard: then the coordinator does not ask for it again.
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

    # -- telling -----------------------------------------------------------------------------------------

    def _report(self, **fields: Any) -> wire.ReportReply:
        self._reported_s = time.monotonic()
        if not self._leads:
            return wire.ReportReply()
        request = wire.ReportRequest(seconds=self._phases.seconds, staleness=self._spread.counts, **fields)
        reply: wire.ReportReply = self._session.member.call("Report", request)
        return reply
