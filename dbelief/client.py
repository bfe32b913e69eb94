"""For people with a loop of their own: join a job, pull parameters, push gradients.

    with dbelief.connect("127.0.0.1:7070") as job:
        while not job.over:
            w = job.pull()                          # {"weight": array, ...}: views of one vector
            job.push({"weight": gradient}, samples=32, loss=loss)

The gradient is of the mean loss over `samples`; the shards apply the job's rule to it. Data leases, evaluation and
early stop are the job's replicas' business: with `data: {source: none}` there are none, and the job ends by samples
or time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from dbelief.errors import JobError, ModelError, Refused
from dbelief.job import Asynchronous, Downpour, Job
from dbelief.pushes import Pushed, Spread
from dbelief.rpc import coordination_pb2 as wire
from dbelief.schedule import rate_at
from dbelief.session import Session, Task


class Client:
    """A member of a job that brings its own gradients. For one thread at a time; made by `connect`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told = wire.Progress()
        self._spread = Spread()
        size, segments = session.layout.size, len(session.parameters.placement.spans)
        self._flat, self._gradient = session.parameters.array(size), session.parameters.array(size)
        self._versions = np.full(segments, -1, np.int64)
        self._views: dict[str, np.ndarray] = session.layout.views(self._flat)

    @property
    def job(self) -> Job:
        """The job file as run."""
        return self._session.job

    @property
    def over(self) -> bool:
        """Whether the job has ended, or is ending, or this member was given up."""
        return self._session.member.over or self._session.member.state >= wire.STATE_CLOSING

    def pull(self) -> Mapping[str, np.ndarray]:
        """The newest parameters by name: float32 views, overwritten by the next pull.

        Cost: one message per segment that changed since the last pull.
        """
        self._session.parameters.pull(self._flat, self._versions)
        return self._views

    def push(
        self,
        gradient: Mapping[str, np.ndarray],
        samples: int = 1,
        loss: float | None = None,
        rate: float | None = None,
    ) -> Pushed:
        """Apply the job's rule to a gradient computed from what was pulled last; returns when all shards have it.

        Parameters
        ----------
        gradient
            By name, shapes as pulled: of the mean loss over `samples`.
        loss
            That mean loss, for people to see; where it is given, divergence is watched for.
        rate
            Learning rate; None: the job's, its schedule run by this client's own samples.

        Raises
        ------
        ModelError
            Where names or shapes are not the model's.
        NotFinite
            Before a byte is sent, where a number is NaN or infinite.
        Refused
            Where the job has ended, or this member was given up.
        Unreachable
            A shard did not answer; whether it has this push is not known, so that later ones are refused.
        """
        if self._versions[0] < 0:
            raise Refused("push() before pull(): a gradient is computed from pulled parameters")
        self._fill(gradient)
        job, told = self._session.job, self._told
        if rate is None:
            rate = rate_at(job, told.samples, job.limits.samples)
        pushed = self._session.push(
            self._gradient, self._versions, self._session.next_sequence(), rate, samples, clock=told.pushes
        )
        told.pushes += 1
        told.samples += samples
        told.staleness_sum += pushed.staleness
        self._spread.add(pushed.staleness)
        told.lost += pushed.lost
        if loss is not None:
            told.steps += 1
            told.loss_sum += loss * samples
        self._report()
        return pushed

    def _fill(self, gradient: Mapping[str, np.ndarray]) -> None:
        views = self._views
        if gradient.keys() != views.keys():
            odd = sorted(gradient.keys() ^ views.keys())
            raise ModelError(f"gradient: {odd[0]!r} is not among both the gradient's and the model's tensors")
        for name, values in gradient.items():
            if np.shape(values) != views[name].shape:
                raise ModelError(f"gradient of {name!r} has shape {np.shape(values)}, wanted {views[name].shape}")
        self._session.layout.flatten({name: np.asarray(values) for name, values in gradient.items()}, self._gradient)

    def _report(self) -> None:
        pusher = self._session.pusher
        request = wire.ReportRequest(
            replica=pusher.replica,
            incarnation=pusher.incarnation,
            progress=self._told,
            staleness=self._spread.counts,
            wire=self._session.parameters.figures(),
        )
        self._session.client.call("Report", request)

    def close(self, reason: str = "its loop ended") -> None:
        """Leave the job."""
        self._session.close(reason)

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job, saying why."""
        self.close(f"{kind.__name__}: {error}" if kind is not None else "its loop ended")


def connect(address: str, patience_s: float = 60.0, shared_memory: bool = True) -> Client:
    """Join the job of the coordinator at `host:port`, and wait until it trains.

    The first member to come draws the initial values. For speed in a program of its own, call
    `dbelief.rpc.settings.prepare_process()` before anything imports grpc.

    Parameters
    ----------
    shared_memory
        Whether what is pulled and pushed goes through shared memory to shards on this host.

    Raises
    ------
    Unreachable
        Nobody answers for `patience_s`.
    Mistake
        The job's model or data cannot be loaded here, or its replicas wait for each other (`staleness`).
    """
    task = Task.ask(address, patience_s)
    if math.prod(task.job.grid) != 1:
        raise JobError(
            f"grid: a loop of one's own has the model whole, and this job cuts it over {task.job.grid} ranks"
        )
    session = Session.open(task, wire.ROLE_CLIENT, shares_memory=shared_memory)
    if not isinstance(session.job.strategy, Downpour | Asynchronous):
        session.close("refused")
        raise JobError("strategy.name: a loop of one's own pushes gradients as it has them, which is downpour's way")
    if session.job.strategy.staleness is not None:
        session.close("refused")
        raise JobError("strategy.staleness: a loop of one's own runs free, and this job's replicas wait for each other")
    return Client(session)
