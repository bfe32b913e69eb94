"""A Lightning `Trainer` as a replica of a job.

    with dbelief.join() as job:                                                                      # 1
        loader = DataLoader(train, batch_sampler=job.sampler(train, 16))                             # 2
        trainer = Trainer(callbacks=[dbelief.integrations.JobCallback(job)])                         # 3
        trainer.fit(module, loader)

A plain script does not have the numbered lines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, Timer

from dbelief.errors import UserError
from dbelief.script.job import ScriptJob
from dbelief.script.user_code import located
from dbelief.torch.scores import Score

from .framework_sync import FrameworkSync, refuse_resume

log = logging.getLogger(__name__)


class JobCallback(Callback):
    """Marks the steps of a Lightning `Trainer`, and ends it with the job.

    The job decides when training ends, whatever `max_epochs` and `max_steps` say. An epoch of the trainer is this
    replica's share of one of the job. Loggers are those of replica 0; checkpoints are left to the job.

    Parameters
    ----------
    job : ScriptJob
        The train loader has `batch_sampler=job.sampler(dataset, batch_size, accumulate)`, with the trainer's
        `accumulate_grad_batches`.
    score, data
        Of the job's evaluations, which are made of its parameters; see `dbelief.torch.Sync.evaluate`. None: this
        script evaluates nothing for the job. Lightning's own validation is of the replica's parameters.

    Raises
    ------
    UserError
        When the trainer begins: it is one of several processes, resumes from a checkpoint, or would end early.
    ModelError
        The shards would make the steps; or see `dbelief.torch.Sync`.
    """

    def __init__(self, job: ScriptJob, score: Score | None = None, data: Any = None) -> None:
        self._job, self._score, self._data = job, score, data
        self._sync: FrameworkSync | None = None
        self._epochs: Iterator[int] = iter(())

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what does not go together; leave checkpoints to the job."""
        if stage != "fit":
            return
        with located():
            _check(trainer)
        kept = [callback for callback in trainer.callbacks if not isinstance(callback, Checkpoint)]
        if len(kept) < len(trainer.callbacks):
            log.info("Lightning's checkpoints are off: the job writes snapshots and the model")
            trainer.callbacks = kept

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse to resume."""
        refuse_resume("fit(ckpt_path=...)")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join the job, with the module on its device and before a loader draws."""
        self._sync = FrameworkSync(self._job, pl_module, "Lightning")
        if self._job.replica:
            trainer.loggers = []
        loop = trainer.fit_loop
        loop.max_epochs, loop.min_epochs = -1, None
        loop.epoch_loop.max_steps, loop.epoch_loop.min_steps = -1, None
        self._epochs = self._job.epochs()
        self._next_epoch(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mark a step, where gradients are not accumulated any more."""
        assert self._sync is not None, "fit has begun"
        if pl_module.automatic_optimization:
            self._sync.check_accumulation(trainer.accumulate_grad_batches)
        if self._sync.add(_loss(outputs)):
            self._sync.step()
            self._evaluate()
        trainer.should_stop = self._job.over

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on to the next epoch in which this replica has samples, if there is one."""
        loop = trainer.fit_loop.epoch_loop
        if loop.batch_progress.current.ready < trainer.num_training_batches:  # a share of it: Lightning waits for all
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        self._next_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the job's last evaluation, if it is this replica's."""
        self._evaluate()

    def _next_epoch(self, trainer: Trainer) -> None:
        trainer.should_stop = next(self._epochs, None) is None

    def _evaluate(self) -> None:
        if self._score is not None:
            assert self._sync is not None, "fit has begun"
            self._sync.sync.evaluate(self._score, self._data)


def _check(trainer: Trainer) -> None:
    if trainer.world_size > 1:
        raise UserError(
            f"Lightning runs {trainer.world_size} processes, whose gradients it averages itself: Trainer(devices=1, "
            "num_nodes=1); dbelief run --workers starts more replicas"
        )
    for callback in trainer.callbacks:
        if isinstance(callback, EarlyStopping | Timer):
            raise UserError(
                f"{type(callback).__name__} would end this replica alone: the job decides when training ends, by "
                "limits in the job file (patience, validation_loss, wall_s)"
            )


def _loss(outputs: Any) -> Any:
    """What a batch adds to the loss of its step: Lightning divides by the batches that it accumulates."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return None if loss is None else loss.detach()
