"""A loop with an `Accelerator` as a replica of a job.

    accelerator = Accelerator(gradient_accumulation_steps=2)
    with dbelief.join() as job:                                                                      # 1
        loader = DataLoader(train, batch_sampler=job.sampler(train, 16, accumulate=2))               # 2
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        sync = dbelief.integrations.AccelerateSync(job, accelerator, model)                          # 3
        for epoch in job.epochs():                                                                   # 4
            for x, y in loader:
                with accelerator.accumulate(model):
                    loss = criterion(model(x), y)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                sync.step(loss)                                                                      # 5

A plain script does not have the numbered lines.
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from dbelief.errors import UserError
from dbelief.script.job import ScriptJob
from dbelief.script.user_code import located
from dbelief.torch.scores import Score, Scored
from dbelief.torch.sync import PushedStep

from .framework_sync import FrameworkSync, refuse_resume


class AccelerateSync:
    """A prepared module, kept in step with the job.

    A prepared loader draws a batch ahead, and ends where that waits for a step: `job.epochs()` begins it again.

    Parameters
    ----------
    job : ScriptJob
        Its loader has `batch_sampler=job.sampler(dataset, batch_size, accumulate)`, with the accelerator's
        `gradient_accumulation_steps`.
    accelerator : accelerate.Accelerator
        Of one process. It may save its state, and not load it: a job resumes by `dbelief run --resume`.
    model : torch.nn.Module
        Of `accelerator.prepare`.

    Raises
    ------
    UserError
        The accelerator is one of several processes.
    ModelError
        The shards would make the steps; or see `dbelief.torch.Sync`.
    """

    def __init__(self, job: ScriptJob, accelerator: Accelerator, model: torch.nn.Module) -> None:
        if accelerator.num_processes > 1:
            with located():
                raise UserError(
                    f"accelerate runs {accelerator.num_processes} processes, whose gradients it averages itself: start "
                    "the script by dbelief run, not by accelerate launch; each replica has one process"
                )
        self._accelerator = accelerator
        accelerator.register_load_state_pre_hook(_refuse)
        self._sync = FrameworkSync(job, accelerator.unwrap_model(model), "accelerate")

    def step(self, loss: torch.Tensor) -> PushedStep | None:
        """Count a batch, and mark the step that the last one of an accumulation has made.

        Parameters
        ----------
        loss
            Of the batch: its mean over the samples, as given to `accelerator.backward`.

        Returns
        -------
        PushedStep or None
            None: gradients are accumulated.

        Raises
        ------
        UserError, NonFinite, RuntimeFailure
            See `dbelief.torch.Sync.step`; or the sampler's `accumulate` is not the accelerator's.
        """
        batches = self._accelerator.gradient_accumulation_steps
        self._sync.check_accumulation(batches)
        return self._sync.step() if self._sync.add(loss.detach() / batches) else None

    def evaluate(self, score: Score, data: Any = None) -> Scored | None:
        """Run the evaluations that the job wants of this replica.

        Parameters
        ----------
        score
            See `dbelief.torch.Sync.evaluate`.
        data
            What `score` takes.

        Returns
        -------
        Scored or None
            See `dbelief.torch.Sync.evaluate`.
        """
        return self._sync.sync.evaluate(score, data)


def _refuse(models: Any, folder: str) -> None:
    refuse_resume(f"accelerator.load_state({str(folder)!r})")
