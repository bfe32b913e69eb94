"""Client for custom training loops: join a job, pull parameters, push gradients.

    with dbelief.connect("127.0.0.1:7070") as job:
        while not job.over:
            w = job.pull()                          # {"weight": array, ...}: views of one vector
            job.push({"weight": gradient}, samples=32, loss=loss)

The gradient is of the mean loss over `samples`; the shards apply the job's rule to it. Pushes of such a loop count
towards the job's limits like those of replicas. While a job with data has no replica, its clients evaluate: within
`push`, when an evaluation is due, and when the `with` block ends, for the last validation and the test. With
`data: {source: none}` there is nothing to evaluate, and the job ends by samples or time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.core.push import PARAMETERS, LedgerRow, PushResult
from dbelief.data import Dataset
from dbelief.errors import JobError, ModelError, Rejected, Unavailable, UserError
from dbelief.evaluation.evaluate import evaluate, measure
from dbelief.job import Asynchronous, Downpour, Job
from dbelief.process.runtime import runtime
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.keep_alive import keep_alive
from dbelief.training.push_totals import PushTotals
from dbelief.training.schedule import learning_rate
from dbelief.training.session import JobContext, Session

_ALIVE_EVERY_S = 1.0
"""Interval of progress reports during a long evaluation, in seconds."""


class Client:
    """A member of a job that computes its own gradients. Not thread-safe; created by `connect`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._totals = PushTotals()
        self._reported_s = runtime.monotonic()
        self._closing = False
        self._data: Dataset | None = None
        size, segments = session.layout.size, len(session.parameters.placement.spans)
        self._flat, self._gradient = session.parameters.array(size), session.parameters.array(size)
        self._versions = np.full(segments, -1, np.int64)
        self._views: dict[str, np.ndarray] = session.layout.views(self._flat)

    @property
    def job(self) -> Job:
        """The job file as the run uses it."""
        return self._session.job

    @property
    def data(self) -> Dataset:
        """The job's data: `train`, `validation` and `test`, each with `inputs` and `targets` as arrays.

        Sparse data becomes dense where it is asked for: `gather` gives mini-batches, `inputs` everything.

        A loop that trains on `train` alone leaves the job's evaluations unseen data.

        Raises
        ------
        JobError
            The job has none (`data: {source: none}`).
        """
        if self._session.data is None:
            raise JobError(f"job {self.job.name} has no data: its data.source is none")
        if self._data is None:
            self._data = self._session.data.dense()
        return self._data

    @property
    def over(self) -> bool:
        """Whether the job has ended or is ending, or this member was removed."""
        return self._closing or self._session.member.over or self._session.member.state >= wire.STATE_CLOSING

    def pull(self) -> Mapping[str, np.ndarray]:
        """The newest parameters.

        Cost: one message per segment that changed since the last pull.

        Returns
        -------
        mapping of name to array
            Float32 views, shaped as the model's tensors; overwritten by the next pull.
        """
        self._session.parameters.pull(self._flat, self._versions)
        return self._views

    def push(
        self,
        gradient: Mapping[str, np.ndarray | None],
        samples: int = 1,
        loss: float | None = None,
        rate: float | None = None,
    ) -> PushResult:
        """Apply the job's rule to a gradient computed from the last pull; returns when all shards have it.

        Cost: a message per segment, and one to the coordinator; sometimes an evaluation, where the job has data and no
        replica.

        Parameters
        ----------
        gradient
            By name, shapes as pulled: of the mean loss over `samples`. None: this tensor took no part, and the rule
            leaves it as it is.
        samples
            Size of the mini-batch, which counts towards the job's limits.
        loss
            That mean loss, for display; where it is given, divergence is detected.
        rate
            Learning rate; None: the job's, with its schedule evaluated at this client's own samples.

        Returns
        -------
        PushResult
            Staleness of the gradient, and what of it was applied before or lost.

        Raises
        ------
        ModelError
            Where names or shapes are not the model's.
        NonFinite
            Before a byte is sent, where a number is NaN or infinite.
        Rejected
            Where the job has ended, or this member was removed.
        Unavailable
            A shard did not answer; whether it has applied this push is unknown, so later pushes are rejected.
        """
        if self._versions[0] < 0:
            raise Rejected("push() before pull(): a gradient is computed from pulled parameters")
        absent = self._fill(gradient)
        job, progress = self._session.job, self._totals.progress
        if rate is None:
            rate = learning_rate(job, progress.samples, job.limits.samples)
        pushed = self._session.push(self._gradient, self._versions, rate, samples, progress.pushes, absent)
        row = LedgerRow(self._session.sequences[PARAMETERS])
        # A step without a loss has no part in the mean loss, which is over the steps.
        steps, loss_sum = (0, 0.0) if loss is None else (1, loss * samples)
        self._totals.add(row, samples, steps, loss_sum, pushed)
        figures = self._session.parameters.figures()
        reply = self._report(progress=progress, staleness=self._totals.staleness, wire=figures)
        if reply.evaluate:
            work = self._lease()
            if work.HasField("evaluation"):
                self._evaluate(work.evaluation)
        return pushed

    def _fill(self, gradient: Mapping[str, np.ndarray | None]) -> Collection[str]:
        """Copy a gradient to the vector that is pushed; returns the names of those that took no part."""
        views = self._views
        if gradient.keys() != views.keys():
            missing, unknown = sorted(views.keys() - gradient.keys()), sorted(gradient.keys() - views.keys())
            what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is no tensor of the model"
            raise ModelError(f"gradient: {what}; wanted {', '.join(views)}")
        full: dict[str, np.ndarray] = {}
        for name, values in gradient.items():
            if values is not None and np.shape(values) != views[name].shape:
                raise ModelError(f"gradient of {name!r} has shape {np.shape(values)}, wanted {views[name].shape}")
            full[name] = np.zeros_like(views[name]) if values is None else np.asarray(values)
        self._session.layout.flatten(full, self._gradient)
        return [name for name, values in gradient.items() if values is None]

    # -- evaluation --------------------------------------------------------------------------------------

    def _evaluate(self, lease: wire.EvaluationLease) -> None:
        """Evaluate a named vector on one of the job's data sets, and store it if the coordinator requests that."""
        session = self._session
        assert session.data is not None, "asked to evaluate, and the job has no data"
        assert session.model is not None, "a loop of one's own has the job's model"
        split = session.data.validation if lease.set == "validation" else session.data.test
        assert split is not None, f"asked to evaluate on {lease.set} data, and there is none"
        values, versions = aligned(session.layout.size, np.float32), np.full(len(self._versions), -1, np.int64)
        session.parameters.locate(lease.placement_epoch)  # as a worker does: see `worker.replica`
        session.parameters.pull(values, versions, vector=lease.vector, exact=True)
        views = session.layout.views(session.backend.to_device(values))
        try:
            quality = evaluate(session.model, views, split, session.layout, session.backend, self._report_alive)
            if session.metrics is not None:
                with keep_alive(session.member):
                    measured = measure(session.metrics, session.model, views, split, session.backend)
                quality = quality._replace(metrics=measured)
        except UserError as error:  # of data or model: the job ends with what it has trained
            self._report(evaluation_failed=wire.EvaluationFailed(lease=lease.lease, reason=str(error)))
            raise
        reply = self._report(evaluation=wire.Evaluation(lease=lease.lease, **quality._asdict()))
        if reply.store_as:
            session.parameters.locate(reply.placement_epoch)
            session.assign(reply.store_as, values)
            self._report(stored_lease=lease.lease)

    def _evaluate_last(self) -> None:
        """Run the evaluations that the job's end depends on, while no replica takes them.

        Raises
        ------
        Unavailable
            No evaluation was assigned for `deadlines.join_s`, and the job has not ended.
        """
        patience_s = self.job.deadlines.join_s
        until_s = runtime.monotonic() + patience_s
        while (work := self._lease()).WhichOneof("work") != "stop":
            if work.HasField("evaluation"):
                self._evaluate(work.evaluation)
                until_s = runtime.monotonic() + patience_s
            elif runtime.monotonic() > until_s:
                raise Unavailable(f"waited {patience_s:g} s for the last evaluations of job {self.job.name}")
            else:
                runtime.sleep(work.wait_s)

    def _report_alive(self) -> None:
        if runtime.monotonic() - self._reported_s > _ALIVE_EVERY_S:
            self._report()

    # -- the coordinator ---------------------------------------------------------------------------------

    def _lease(self) -> wire.LeaseReply:
        reply: wire.LeaseReply = self._session.member.call("Lease", wire.LeaseRequest())
        return reply

    def _report(self, **fields: Any) -> wire.ReportReply:
        self._reported_s = runtime.monotonic()
        reply: wire.ReportReply = self._session.member.call("Report", wire.ReportRequest(**fields))
        self._closing = self._closing or reply.state >= wire.STATE_CLOSING
        return reply

    # -- the end -----------------------------------------------------------------------------------------

    def close(self, reason: str = "its loop ended") -> None:
        """Leave the job; if it is ending, first run its evaluations, where it has data and no replica.

        Parameters
        ----------
        reason
            For the job's events and the coordinator's log.

        Raises
        ------
        Unavailable
            The evaluations are due, and the coordinator did not assign one for `deadlines.join_s`.
        """
        try:
            if self.over and not self._session.member.over:
                self._evaluate_last()
        finally:
            self._session.close(reason)

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job with a reason; after an exception, without the last evaluations."""
        if kind is not None:
            self._session.close(f"{kind.__name__}: {error}", failed=issubclass(kind, Exception))
        else:
            self.close()


def connect(address: str, patience_s: float = 60.0, shared_memory: bool = True, direct_streams: bool = True) -> Client:
    """Join the job of the coordinator at `host:port`, and wait until it trains.

    The first member that joins generates the initial values. For best speed in a program of its own, call
    `dbelief.rpc.grpc_settings.prepare_process()` before anything imports grpc.

    Parameters
    ----------
    address
        `host:port` of the coordinator.
    patience_s
        Seconds to wait for its answer.
    shared_memory
        Whether pulls and pushes use shared memory with shards on this host.
    direct_streams
        Whether small ones over TCP use connections of their own; else those of gRPC.

    Returns
    -------
    Client
        For a `with` block, at whose end this member leaves the job.

    Raises
    ------
    Unavailable
        The coordinator does not answer for `patience_s`.
    JobError
        The job's replicas wait for each other (`staleness`), or its model is cut over ranks (`grid`).
    UserError
        The job's model or data cannot be loaded here.
    """
    task = JobContext.fetch(address, patience_s)
    if math.prod(task.job.grid) != 1:
        raise JobError(
            f"grid: a loop of one's own has the model whole, and this job cuts it over {task.job.grid} ranks"
        )
    session = Session.open(task, wire.ROLE_CLIENT, shares_memory=shared_memory, direct=direct_streams)
    if not isinstance(session.job.strategy, Downpour | Asynchronous):
        session.close("refused")
        raise JobError("strategy.name: a loop of one's own pushes gradients as it has them, which is downpour's way")
    if session.job.strategy.staleness is not None:
        session.close("refused")
        raise JobError("strategy.staleness: a loop of one's own runs free, and this job's replicas wait for each other")
    return Client(session)
