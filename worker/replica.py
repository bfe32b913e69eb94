"""Main loop of one model replica: request leases, train or evaluate them and report, until the job ends.

If the model is partitioned over several ranks, every rank runs this loop. Rank 0 sends the requests and broadcasts the
replies. Results are reported when the shards of all ranks have acknowledged them.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from dbelief.core.lease import DataLease
from dbelief.core.push import PARAMETERS
from dbelief.core.ranks import all_or_none
from dbelief.data import Samples
from dbelief.errors import (
    DataError,
    DbeliefError,
    JobError,
    ModelError,
    NonFinite,
    RankFailure,
    Rejected,
    Unavailable,
    UserError,
)
from dbelief.evaluation.evaluate import Quality, evaluate, measure
from dbelief.job import Elastic as ElasticSettings
from dbelief.job import Job, PythonModel, Sandblaster, SyncSgd
from dbelief.nn import Model
from dbelief.process.runtime import Event
from dbelief.process.terminal.console import format_error
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.record import BatchRecorder
from dbelief.telemetry.metrics import Metrics
from dbelief.training.keep_alive import keep_alive
from dbelief.training.parameter_buffer import ParameterBuffer
from dbelief.training.phases import PhaseTimer
from dbelief.training.session import Session

from .progress_reporter import ProgressReporter
from .rendezvous import GroupSpec, Rendezvous
from .strategies import factory
from .strategies.diloco import Diloco
from .strategies.downpour import Downpour
from .strategies.elastic import Elastic
from .strategies.group import GroupTrainer
from .strategies.sandblaster import BundleWorker

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", wire.LeaseReply, wire.ReportReply)

WAIT_SHARE, LONGEST_WAIT_S = 1 / 8, 0.1
"""A replica without work retries after this share of the time it has waited, at most after so long: the requests of
many replicas that wait for a straggler, or a failover, are few, and each wait is longer by an eighth at most."""
_USER_ERRORS = tuple(kind.__name__ for kind in (UserError, JobError, DataError, ModelError))
HOLD_S = 1.0
"""Seconds for which a request may be held until there is work, where the coordinator holds requests; an interrupted
replica leaves so much later at most."""


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
    rendezvous
        Rendezvous with the other workers, for strategies whose workers form groups.
    """

    def __init__(
        self,
        session: Session,
        model: Model,
        metrics: Metrics,
        interrupted: Event,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        self._session = session
        self._model = model
        self._ranks = session.ranks
        self._interrupted = interrupted
        self._recorder = BatchRecorder()
        self._phases = PhaseTimer()
        self._reporter = ProgressReporter(session, metrics, self._phases, self._recorder)
        self._unreadable = 0
        self._waited_s = 0.0
        self._last_lease = 0
        if session.data is None or session.data.train is None:
            raise DataError(
                "a replica trains on data, and data.source is none: bring a loop of your own (dbelief.connect)"
            )
        strategy, train = session.job.strategy, session.data.train.read_by(model, session.backend)
        self._bundle_worker: BundleWorker | None = None
        self._trainer: Diloco | Downpour | Elastic | None = None
        self._group_trainer: GroupTrainer | None = None
        self._broken: tuple[int, str] = 0, ""  # generation of the last group that failed, and why
        noted = self._recorder.note if session.job.record else None
        self._rows = factory.table_rows(session)
        phases, acknowledged = self._phases, self._reporter.acknowledged
        if isinstance(strategy, Sandblaster):
            self._bundle_worker = factory.sandblaster(session, model, strategy, train, phases, self._reporter)
        elif rendezvous is not None:
            assert isinstance(strategy, ElasticSettings | SyncSgd), f"{strategy.name} forms no groups"
            self._group_trainer = factory.synchronous(session, model, strategy, train, phases, rendezvous, acknowledged)
        else:
            self._trainer = factory.pushing(session, model, strategy, train, phases, acknowledged, noted, self._rows)

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
                if work == "wait_s":
                    self._wait(reply.wait_s)
                    continue
                self._waited_s = 0.0
                if work == "stop":
                    all_or_none(self._ranks, self._check_membership)
                    return reply.stop
                if work == "training":
                    self._train(reply.training)
                elif work == "bundle":
                    self._compute(reply.bundle)
                else:
                    self._evaluate(reply.evaluation)
            self._reporter.flush()
            return "asked to end"
        except Exception as error:
            if not isinstance(error, Rejected):  # all ranks may be about to raise this one together
                self._ranks.abort(error)  # before anything slow, such as pending pushes
            if isinstance(error, NonFinite) or (isinstance(error, RankFailure) and error.kind == NonFinite.__name__):
                samples = self._reporter.progress.samples
                self._reporter.report(
                    trouble=f"{error}, after {samples:,} samples of this replica; try a lower rate or clip_norm"
                )
            raise
        finally:
            with contextlib.ExitStack() as ends:
                ends.callback(self._reporter.export)  # last: what is submitted is still pushed, also after an error
                for threads in (self._trainer, self._group_trainer, self._bundle_worker):
                    if threads is not None:
                        ends.callback(threads.close)

    def _wait(self, least_s: float) -> None:
        """Pause before the next request; longer the longer this replica has had no work."""
        pause_s = max(least_s, min(WAIT_SHARE * self._waited_s, LONGEST_WAIT_S))
        self._interrupted.wait(pause_s)
        self._waited_s += pause_s  # not measured, so that all ranks of a replica pause alike
        self._phases.end("wait")

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
        request = wire.LeaseRequest(last_lease=self._last_lease, hold_s=HOLD_S)
        if self._bundle_worker is not None:
            self._bundle_worker.check()
            request.pass_number = self._bundle_worker.pass_number
            request.held_bundles.extend(self._bundle_worker.holds)
        if self._group_trainer is not None:
            request.steps = self._group_trainer.steps
            request.broken_generation, request.broken_reason = self._broken
        return self._reporter.request_work(request)

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
            message.samples_before,
            message.clock,
            message.member_epoch,
            message.stride or 1,
        )
        self._phases.end("wait")
        self._last_lease = lease.id
        traffic = None
        if self._group_trainer is not None:
            traffic = self._train_together(self._group_trainer, lease, message.group)
        else:
            assert self._trainer is not None, "a lease, and a batch method trains no leases"
            with _named_samples(lease, self._session.job):
                self._trainer.train(lease, self._session.next_sequence())
        self._reporter.end(traffic)

    def _train_together(self, trainer: GroupTrainer, lease: DataLease, message: wire.Group) -> wire.Traffic | None:
        """Train a lease in a group; the traffic of its sums, for the report."""
        group = GroupSpec.of(message, self._session.pusher.replica)
        with _named_samples(lease, self._session.job):
            why = trainer.train(lease, group)
        if why:
            self._broken = group.generation, why
            log.warning(f"group {group.generation} of {group.size} workers is over: {why}")
        traffic = trainer.traffic(group)
        return traffic.to_wire() if traffic is not None else None

    # -- a batch method ----------------------------------------------------------------------------------

    def _compute(self, bundle: wire.Bundle) -> None:
        assert self._bundle_worker is not None
        following: wire.Bundle | None = bundle
        if self._ranks.size > 1:
            self._compute_together(self._bundle_worker, bundle)
            return
        while following is not None and not self._interrupted.is_set():
            following = self._bundle_worker.compute(following)
            self._reporter.export_phases()

    def _compute_together(self, bundles: BundleWorker, bundle: wire.Bundle) -> None:
        """Compute a bundle on all ranks, and report it when all their shards have acknowledged it."""
        bundles.compute(bundle)
        bundles.flush()
        self._reporter.report_bundles()
        self._reporter.export_phases()

    # -- evaluation --------------------------------------------------------------------------------------

    def _evaluate(self, message: wire.EvaluationLease) -> None:
        session = self._session
        assert session.data is not None
        split = session.data.validation if message.set == "validation" else session.data.test
        assert split is not None, f"asked to evaluate on {message.set} data, and there is none"
        parameters = session.parameters
        copy = ParameterBuffer.make(session.part, len(parameters.placement.spans), session.backend, parameters.array)
        try:
            all_or_none(self._ranks, lambda: self._fetch(message, copy))
        except Rejected:
            # The vector may have been lost with a shard; then the coordinator does not request it again.
            first, self._unreadable = message.lease != self._unreadable, message.lease
            if message.vector != PARAMETERS and first:
                return
            raise
        copy.to_device()
        if self._rows is not None:
            self._rows.begin(copy.versions)
        try:
            quality = self._quality(copy, split)
        except UserError as error:  # of data or model: another replica would fail as well
            self._evaluation_failed(message, str(error))
            if self._ranks.size == 1:
                return
            raise
        except RankFailure as error:
            if error.kind in _USER_ERRORS:
                self._evaluation_failed(message, str(error))
            raise
        found = wire.Evaluation(lease=message.lease, **quality._asdict())
        reply = self._broadcast_reply(lambda: self._reporter.report(evaluation=found), wire.ReportReply)
        if reply.store_as:
            parameters.locate(reply.placement_epoch)  # a replaced shard that still runs would acknowledge them too
            session.assign(reply.store_as, copy.host)
            self._ranks.barrier()
            self._reporter.report(stored_lease=message.lease)
        self._phases.end("wait")

    def _quality(self, copy: ParameterBuffer, split: Samples) -> Quality:
        """Quality of the parameters in a buffer on a split."""
        session, model = self._session, self._session.job.model
        try:
            quality = evaluate(
                self._model, copy.views, split, session.part, session.backend, self._reporter.report_alive
            )
            if session.metrics is None:
                return quality
            with keep_alive(session.member):  # of a model on one rank
                measured = measure(session.metrics, self._model, copy.views, split, session.backend)
            return quality._replace(metrics=measured)
        except (DbeliefError, OSError, MemoryError):
            raise
        except Exception as error:
            if not isinstance(model, PythonModel):
                raise
            raise ModelError(f"{model.python}: {format_error(error)}") from error

    def _evaluation_failed(self, message: wire.EvaluationLease, reason: str) -> None:
        """Report, once for all ranks, that an evaluation cannot be made."""
        if self._leads:
            self._reporter.report(evaluation_failed=wire.EvaluationFailed(lease=message.lease, reason=reason))
            log.error(f"{message.set} evaluation failed: {reason}")
        self._phases.end("wait")

    def _fetch(self, message: wire.EvaluationLease, copy: ParameterBuffer) -> None:
        """Fetch the vector that is to be evaluated."""
        parameters = self._session.parameters
        parameters.locate(message.placement_epoch)  # a replaced shard that still runs may hold another one of this name
        parameters.pull(copy.host, copy.versions, vector=message.vector, exact=True)


@contextlib.contextmanager
def _named_samples(lease: DataLease, job: Job) -> Iterator[None]:
    """Name the samples at which a user's model fails; a `ModelError`, since another process would fail there too."""
    try:
        yield
    except DbeliefError:
        raise
    except Exception as error:
        functions = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
        if not isinstance(job.model, PythonModel) or "loss_and_gradient" not in functions:
            raise
        where = f"samples {lease.start:,} to {lease.stop:,} of the order of epoch {lease.epoch}"
        raise ModelError(f"{job.model.python}: {format_error(error)}, in {where}") from error
