"""A script's job: `with dbelief.join() as job`.

The script brings its module, its optimiser and its data; it leases ranges of the data like any replica, and a script
that fails is replaced without a sample being skipped. It is started by `dbelief run` or `dbelief worker -- SCRIPT`,
which set `DBELIEF_*` variables, or by hand with an address.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from dbelief.errors import DbeliefError, JobError, UserError
from dbelief.job import Job, ScriptModel
from dbelief.security.identity import FOLDER, load
from dbelief.training.schedule import total_samples
from dbelief.training.session import JobContext

from .deep_folder import warn_of_deep_folder
from .main_guard import check_first_run, unguarded_line
from .membership import Membership
from .sampler import LeasedBatchSampler, Supply
from .settings import ScriptSettings
from .user_code import exit_code_of, line_of, located

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Progress of a job over all its replicas, as last known here: at most a second old.

    Attributes
    ----------
    samples
        Samples trained.
    total
        Samples after which the job ends; None where only time limits it.
    epoch
        Samples trained, divided by those of the training set.
    """

    samples: int
    total: int | None
    epoch: float

    @property
    def fraction(self) -> float:
        """Share of the job's samples that is trained, 0 to 1; 0 where the job has no such limit."""
        return min(1.0, self.samples / self.total) if self.total else 0.0


class ScriptJob:
    """A job that this script is a replica of; made by `join`.

    Attributes
    ----------
    membership
        For what trains, as `dbelief.torch.Sync`.
    """

    def __init__(self, membership: Membership) -> None:
        self.membership = membership

    @property
    def job(self) -> Job:
        """The job file as the run uses it."""
        return self.membership.job

    def sampler(self, dataset: Sized, batch_size: int, accumulate: int = 1) -> LeasedBatchSampler:
        """A batch sampler for a data loader: its batches are leased to this script as they are drawn.

        Parameters
        ----------
        dataset
            Map-style, with as many samples as `data.train` says.
        batch_size
            Samples in a batch.
        accumulate
            Batches of one step, whose gradients are accumulated: the samples of a step are of one lease then, and the
            last ones of a lease are as many batches, of fewer samples.

        Returns
        -------
        LeasedBatchSampler

        Raises
        ------
        DataError
            The dataset is a stream, or has another length; the size of batches does not fit the strategy.
        """
        with located():
            member = self.membership
            return LeasedBatchSampler(dataset, batch_size, member.data.train, self.job.seed, member, accumulate)

    def epochs(self) -> Iterator[int]:
        """Numbers of the epochs, for loops that do something after each: within, an iteration of a loader ends with it.

        Returns
        -------
        iterator of int
            The epochs in which this replica has samples, until the job is over, or its last ones are drawn here and not
            stepped.
        """
        member = self.membership
        member.by_epoch = True
        try:
            while not member.over or member.drawn.undrawn:
                while not member.drawn.undrawn and not member.over:
                    answer = member.request()
                    if answer.supply is Supply.DRAINED and member.drawn.pending:
                        member.drawn.undraw_undelivered()  # by a loader whose loop was left
                        if not member.drawn.undrawn:  # what the job waits for is drawn here, and not stepped
                            return
                    member.pause(answer.pause_s)
                epoch = member.drawn.epoch
                if epoch is not None:
                    yield epoch
            if not member.drawn.pending:
                member.settle()
        finally:
            member.by_epoch = False

    @property
    def over(self) -> bool:
        """Whether the job needs no more samples."""
        return self.membership.over

    @property
    def progress(self) -> Progress:
        """Progress over all replicas, for learning-rate schedules."""
        samples, train = self.membership.job_samples, self.membership.data.train
        return Progress(samples, total_samples(self.job.limits, train), samples / train)

    @property
    def replica(self) -> int:
        """Number of this replica, from 0."""
        return self.membership.replica

    def close(self) -> None:
        """Leave the job, as at the end of a `with` block; samples drawn and not stepped are leased to others."""
        self.membership.close("the script ended", failed=False)

    def __enter__(self) -> Self:
        """The job itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the job. An error of the script is shown with its traceback, and in one line with the script's line."""
        if not isinstance(error, Exception):
            ends = error is None or (isinstance(error, SystemExit) and not error.code)
            try:
                self.close() if ends else self.membership.close(f"{type(error).__name__}: {error}", failed=True)
                return
            except Exception as failure:  # the last exchange may fail here
                error = failure
        own = isinstance(error, DbeliefError)
        line = line_of(error)
        self.membership.close(line, failed=True)
        if not own:
            traceback.print_exception(error)
        log.error(line)
        raise SystemExit(exit_code_of(error)) from None


def join(
    address: str | None = None,
    patience_s: float | None = None,
    name: str | None = None,
    shared_memory: bool | None = None,
    direct_streams: bool | None = None,
) -> ScriptJob:
    """Join the job of the coordinator at `host:port`; the membership begins with the script's module.

    Parameters
    ----------
    address
        None: that of the variable DBELIEF_COORDINATOR, which `dbelief run` and `dbelief worker -- SCRIPT` set.
    patience_s
        Seconds to wait for the coordinator's answer; None: DBELIEF_PATIENCE, or 60.
    name
        Name of this replica, the same at each start: its earlier incarnation ends then. None: DBELIEF_NAME.
    shared_memory
        As of `dbelief worker`; None: DBELIEF_SHARED_MEMORY, or yes.
    direct_streams
        As of `dbelief worker`; None: DBELIEF_DIRECT_STREAMS, or yes.

    Returns
    -------
    ScriptJob
        For a `with` block, at whose end the script leaves the job.

    Raises
    ------
    UserError
        There is no address; or this is a process of a data loader, which runs the script again.
    JobError
        The job does not take its model and data from a script.
    Unavailable
        The coordinator does not answer for `patience_s`.
    """
    with located():
        check_first_run()
    settings = ScriptSettings.of_environment()
    address = address or settings.coordinator
    if not address:
        raise UserError(
            "dbelief.join: no coordinator is named: start the script by `dbelief run --job JOB SCRIPT`, or give "
            "join(address='host:port')"
        )
    warn_of_deep_folder()
    if folder := os.environ.get(FOLDER):
        load(Path(folder), ("worker",))
    settings = replace(settings, patience_s=settings.patience_s if patience_s is None else patience_s)
    task = JobContext.fetch(address, settings.patience_s, settings.folder)
    if not isinstance(task.job.model, ScriptModel):
        raise JobError(f"job {task.job.name} has a model of its own; a script joins those with model source: script")
    settings = replace(
        settings,
        name=name or settings.name,
        threads=settings.threads or task.job.threads,
        shared_memory=settings.shared_memory if shared_memory is None else shared_memory,
        direct_streams=settings.direct_streams if direct_streams is None else direct_streams,
    )
    return ScriptJob(Membership(task, settings, unguarded_line()))
