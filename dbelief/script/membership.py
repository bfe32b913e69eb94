"""Membership of a script in a job: its leases, its reports, its evaluations."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from dbelief.core.lease import DataLease
from dbelief.errors import UserError
from dbelief.job import Job, ScriptData
from dbelief.process.log import set_context
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.session import JobContext, OwnModel, Session

from .drawn import DrawnBatch, DrawnBatches, LockstepBlock
from .progress import ScriptProgress
from .sampler import Answer, Supply
from .settings import ScriptSettings

log = logging.getLogger(__name__)

_SUPPLY = {wire.SUPPLY_DRAINED: Supply.DRAINED, wire.SUPPLY_OVER: Supply.OVER}


class Membership:
    """One incarnation of a script in a job; a member once it has a model.

    Attributes
    ----------
    job
        The job file.
    settings
        Of this membership.
    data
        The job's section of data.
    drawn
        Account of the samples drawn and stepped.
    by_epoch
        Whether an iteration of a sampler ends with an epoch.
    over
        Whether the job needs no more samples.
    replica
        Number of this replica, once it has joined.
    before_compute
        Called with a batch that was drawn and is computed next.
    while_waiting
        Called while the script waits for samples: what has been acknowledged meanwhile is reported.
    settle
        Called at the script's end: it waits for the exchange under way.
    at_end
        Called at the script's good end, when all exchanges are answered.
    unguarded
        See `unguarded_line`.
    waited
        Whether the script has waited for samples since its last fetch of parameters.
    """

    def __init__(self, task: JobContext, settings: ScriptSettings, unguarded: int = 0) -> None:
        assert isinstance(task.job.data, ScriptData)
        self.job: Job = task.job
        self.data, self.settings = task.job.data, settings
        self.drawn = DrawnBatches()
        self.by_epoch = self.over = self.waited = False
        self.replica, self.unguarded = 0, unguarded
        self.before_compute: Callable[[DrawnBatch], None] = lambda batch: None
        self.while_waiting: Callable[[], None] = lambda: None
        self.settle: Callable[[], None] = lambda: None
        self.at_end: Callable[[], None] = lambda: None
        self._task = task
        self._session: Session | None = None
        self._reports: ScriptProgress | None = None
        self._evaluates = False

    def open(self, model: OwnModel) -> Session:
        """Join with a model, and wait until the job trains.

        Raises
        ------
        UserError, RuntimeFailure
            See `Session.open`; or there is a model already.
        """
        if self._session is not None:
            raise UserError("this job has a module already: one Sync for each dbelief.join()")
        self._session = Session.open(
            self._task,
            wire.ROLE_REPLICA,
            self.settings.number,
            self.settings.name,
            shares_memory=self.settings.shared_memory,
            direct=self.settings.direct_streams,
            brought=model,
        )
        session = self._session
        self._reports, self.replica = ScriptProgress(session), session.pusher.replica
        set_context(role="worker", job=self.job.name, id=self.replica, step=lambda: session.next_sequence() - 1)
        log.info(f"replica {self.replica} of job {self.job.name}: {os.path.basename(sys.argv[0]) or 'a script'}")
        return self._session

    @property
    def session(self) -> Session:
        """The session, once there is a model.

        Raises
        ------
        UserError
            There is none yet.
        """
        if self._session is None:
            raise UserError("samples are drawn before there is a module: make dbelief.torch.Sync(job, ...) first")
        return self._session

    @property
    def reports(self) -> ScriptProgress:
        """Progress of this script."""
        assert self._reports is not None
        return self._reports

    @property
    def job_samples(self) -> int:
        """Samples that all replicas have trained, as last known."""
        return self._reports.job_samples if self._reports is not None else 0

    @property
    def lockstep(self) -> int | None:
        """See `Source.lockstep`."""
        strategy = self.job.strategy
        return strategy.clock_samples if strategy.staleness is not None else None

    def request(self) -> Answer:
        """See `Source.request`."""
        if self.over:
            return Answer(Supply.OVER)
        assert self.session is not None, "there is a model"
        self.reports.phases.end("compute")
        reply = self.reports.request_work(self.drawn.last_lease, wire.WANTS_TRAINING)
        self.reports.phases.end("wait")
        work = reply.WhichOneof("work")
        if work == "training":
            t = reply.training
            self.drawn.receive(
                DataLease(t.lease, t.epoch, t.start, t.stop, t.samples_before, t.clock, t.member_epoch, t.stride or 1),
                LockstepBlock(t.before_block, tuple(t.block)) if t.block else None,
            )
            return Answer(Supply.RECEIVED)
        if work == "stop" or reply.supply == wire.SUPPLY_OVER:
            self.over = True
            return Answer(Supply.OVER)
        self.waited = True
        return Answer(_SUPPLY.get(reply.supply, Supply.LATER), reply.wait_s or 0.01)

    def pause(self, seconds: float) -> None:
        """See `Source.pause`."""
        self.while_waiting()
        runtime.sleep(seconds)
        if self._reports is not None:
            self._reports.phases.end("wait")

    def give_back(self, batches: list[DrawnBatch], again: bool) -> None:
        """Report samples that were drawn and are not trained here, before the next push passes them.

        `again`: they are leased again; else they are done.
        """
        if again:
            skipped = [wire.SkippedSamples(lease=b.lease.id, start=b.start, stop=b.stop) for b in batches]
            self.reports.report(skipped=skipped)
        else:
            self.reports.passed(batches[-1])

    def evaluate(self, run: Callable[[wire.EvaluationLease], None]) -> None:
        """Run the evaluations that are due; at the end of the job wait for them, until it needs none."""
        self._evaluates = True
        self.reports.phases.end("compute")
        try:
            self._evaluate(run)
        finally:
            self.reports.phases.end("wait")

    def _evaluate(self, run: Callable[[wire.EvaluationLease], None]) -> None:
        while True:
            reply = self.reports.request_work(self.drawn.last_lease, wire.WANTS_EVALUATION)
            work = reply.WhichOneof("work")
            if work == "evaluation":
                run(reply.evaluation)
            elif work == "stop" or reply.supply != wire.SUPPLY_OVER or self.drawn.pending or self.drawn.undrawn:
                return  # the job may end only when the samples that this script holds are done
            else:
                self.pause(reply.wait_s or 0.01)

    # -- the end -----------------------------------------------------------------------------------------

    def close(self, reason: str, failed: bool) -> None:
        """Leave the job; samples that are drawn and not stepped are leased to others."""
        if self._session is None:
            return
        session, self._session = self._session, None
        try:
            if not failed:
                self.settle()
                self.at_end()
                self._warn()
                self.reports.flush()
        except Exception as error:  # the others must not wait for this replica until its heartbeat is missed
            session.close(f"{type(error).__name__}: {error}", failed=True)
            raise
        session.close(reason, failed)

    def _warn(self) -> None:
        """Log what a user may not expect of a script that ends now."""
        left = self.drawn.pending_samples
        if left and not self.over:
            log.warning(
                f"the script ends with {left} samples that were drawn and not stepped: they are leased to other "
                "replicas; call sync.step for the rest of an accumulation after the loop"
            )
        if self.data.validation and not self._evaluates:
            log.warning(
                f"data.validation says {self.data.validation} samples, and the script never calls sync.evaluate"
            )
