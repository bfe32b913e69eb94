"""What all frameworks have in common: a drawn batch is one step of theirs, which the sampler gives in micro-batches.

A framework counts batches for the accumulation of gradients, and ends it early at the end of a loader whose length it
knows. A lease ends where the framework does not know it. So the sampler draws the samples of a whole step, and gives
them in as many batches as the framework accumulates: no step is of two leases, and none is left at their end.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from dbelief.errors import ModelError, UserError
from dbelief.job import AddRule, Diloco, Downpour, Elastic, SyncSgd
from dbelief.script.drawn import DrawnBatch
from dbelief.script.job import ScriptJob
from dbelief.script.user_code import located
from dbelief.torch.sync import PushedStep, Sync


def refuse_resume(call: str) -> NoReturn:
    """Raise UserError: this call of a framework would have the replica begin elsewhere than the job."""
    with located():
        raise UserError(
            f"{call}: replicas begin at the job's parameters; a job is continued by dbelief run --resume, and begins "
            "at a model by start_from in the job file"
        )


class FrameworkSync:
    """A module that a framework trains by steps of its own, kept in step with the job.

    Parameters
    ----------
    job : ScriptJob
        Its strategy is one with which the script makes its own steps.
    module : torch.nn.Module
        See `Sync`.
    framework
        Its name, for errors.

    Attributes
    ----------
    sync
        For evaluations.

    Raises
    ------
    ModelError
        The shards would make the steps; or see `Sync`.
    """

    def __init__(self, job: ScriptJob, module: torch.nn.Module, framework: str) -> None:
        with located():
            _check_strategy(job, framework)
        self.sync = Sync(job, module)
        self._drawn = job.membership.drawn
        self._framework = framework
        self._shares: list[torch.Tensor | float | None] = []
        self._loss: torch.Tensor | float = 0.0

    @property
    def batch(self) -> DrawnBatch:
        """The oldest batch that is drawn and not stepped.

        Raises
        ------
        UserError
            There is none: the loader's batches are not the job's.
        """
        batch = self._drawn.next()
        if batch is None:
            with located():
                raise UserError(
                    f"{self._framework} trains a batch that is not the job's: make the loader with "
                    "batch_sampler=job.sampler(dataset, batch_size)"
                )
        return batch

    def check_accumulation(self, batches: int) -> None:
        """Check that the framework accumulates the gradients of so many batches as the sampler gives for a step.

        Raises
        ------
        UserError
            It does not.
        """
        if self.batch.parts != batches:
            with located():
                raise UserError(
                    f"{self._framework} accumulates {batches} batches for a step, and the sampler gives "
                    f"{self.batch.parts}: job.sampler(dataset, batch_size, accumulate={batches})"
                )

    def add(self, share: torch.Tensor | float | None) -> bool:
        """Count a micro-batch, with what it adds to the loss of its step, if it has a loss; whether it was the last."""
        self._shares.append(share)
        return len(self._shares) == self.batch.parts

    def step(self) -> PushedStep:
        """Mark the framework's step after the last micro-batch. See `Sync.step`."""
        known: list[Any] = [share for share in self._shares if share is not None]
        self._shares.clear()
        if known:
            self._loss = sum(known[1:], known[0])
        return self.sync.step(self._loss, samples=self.batch.stop - self.batch.start)


def _check_strategy(job: ScriptJob, framework: str) -> None:
    strategy = job.job.strategy
    if isinstance(strategy, Elastic):
        return
    if isinstance(strategy, Downpour | SyncSgd | Diloco) and isinstance(strategy.rule, AddRule):
        return
    raise ModelError(
        f"{framework} makes its own steps, and strategy {strategy.name} has a rule with which the shards make them: "
        "choose diloco, elastic averaging, or downpour with rule: {name: add}"
    )
