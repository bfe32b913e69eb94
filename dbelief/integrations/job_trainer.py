"""A `Trainer` of Hugging Face transformers as a replica of a job.

    with dbelief.join() as job:                                                                      # 1
        trainer = dbelief.integrations.JobTrainer(job, model=model, args=args, train_dataset=train)  # 2
        trainer.train()

A plain script does not have the numbered lines.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from dbelief.errors import UserError
from dbelief.job.metrics import name_of
from dbelief.script.job import ScriptJob
from dbelief.script.user_code import located

from .framework_sync import FrameworkSync, refuse_resume

log = logging.getLogger(__name__)

_WITHOUT_END = ("constant", "constant_with_warmup")
"""Schedules that do not depend on the number of steps."""


_Base: Any = Trainer if TYPE_CHECKING else object


class TrainerMixin(_Base):
    """For a subclass of a `Trainer`: `class OwnTrainer(TrainerMixin, Seq2SeqTrainer)`.

    The job decides when training ends, whatever `num_train_epochs` and `max_steps` say, and when it is evaluated, on
    `eval_dataset` where the job has validation data. The learning rate follows its schedule by the job's progress. Logs
    are those of replica 0; checkpoints are left to the job.

    Parameters
    ----------
    job : ScriptJob
        Made by `dbelief.join()`.
    *args, **kwargs
        Of the `Trainer`.

    Raises
    ------
    UserError
        The arguments ask for several processes or devices, for the best of several checkpoints, or for batches of
        another size than they say; or the rate's schedule needs an end, and the job has none.
    ModelError
        When training begins: the shards would make the steps; or see `dbelief.torch.Sync`.
    """

    def __init__(self, job: ScriptJob, *args: Any, **kwargs: Any) -> None:
        self.job = job
        self._sync: FrameworkSync | None = None
        super().__init__(*args, **kwargs)
        with located():
            _check(self)
        self.add_callback(_Steps(self))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As of the `Trainer`, until the job needs no more samples.

        Raises
        ------
        UserError
            It is to resume from a checkpoint.
        """
        if resume_from_checkpoint:
            refuse_resume("train(resume_from_checkpoint=...)")
        self._sync = FrameworkSync(self.job, self.model, "transformers")
        return super().train(None, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        """The loader of the `Trainer`, with the job's samples."""
        usual = super().get_train_dataloader()
        batch_size, accumulate = self._train_batch_size, self.args.gradient_accumulation_steps
        return DataLoader(
            usual.dataset,
            batch_sampler=self.job.sampler(usual.dataset, batch_size, accumulate),
            collate_fn=usual.collate_fn,
            num_workers=usual.num_workers,
            pin_memory=usual.pin_memory,
            prefetch_factor=usual.prefetch_factor,
            persistent_workers=usual.persistent_workers,
            worker_init_fn=usual.worker_init_fn,
        )

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Numbers of the loop, whose epochs have no limit, and whose steps are those of the whole job."""
        _, per_epoch, examples, _, batch, in_epoch, _ = super().set_initial_training_values(*args, **kwargs)
        total = self.job.progress.total
        steps = sys.maxsize if total is None else math.ceil(total / batch)
        return sys.maxsize, per_epoch, examples, total or examples, batch, in_epoch, steps

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule that the arguments name, by the job's progress."""
        given = self.lr_scheduler is not None
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if given or self.args.lr_scheduler_type in _WITHOUT_END:
            return scheduler
        with located():
            return _by_progress(scheduler, self.job, num_training_steps, self.args.lr_scheduler_type.value)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As of the `Trainer`: it returns what a batch adds to the loss of its step."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        assert self._sync is not None, "train has begun"
        self._sync.add(loss.detach())
        return loss

    def is_world_process_zero(self) -> bool:
        """Whether this process writes logs: replica 0."""
        return bool(super().is_world_process_zero()) and self.job.replica == 0

    def mark_step(self) -> None:
        """Mark a step that the optimiser has made."""
        assert self._sync is not None, "train has begun"
        self._sync.step()

    def evaluate_for_job(self) -> None:
        """Run the evaluations that the job wants of this replica."""
        if self.eval_dataset is not None and self.job.membership.data.validation:
            assert self._sync is not None, "train has begun"
            self._sync.sync.evaluate(self._score)

    def _score(self, model: torch.nn.Module, data: Any) -> dict[str, float]:
        found = self.evaluate()
        named = {name: found[f"eval_{name}"] for name in map(name_of, self.job.job.evaluate.metrics)}
        if "eval_accuracy" in found:
            named["accuracy"] = found["eval_accuracy"]
        return {"loss": found["eval_loss"], **named}


class JobTrainer(TrainerMixin, Trainer):
    """A `Trainer` as a replica of a job. See `TrainerMixin`."""


class _Steps(TrainerCallback):
    """Marks the optimiser's steps, and ends the trainer with the job."""

    def __init__(self, trainer: TrainerMixin) -> None:
        self._trainer, self._job = trainer, trainer.job
        self._epochs: Iterator[int] = iter(())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.save_strategy != "no" or args.eval_strategy != "no":
            log.info("checkpoints and evaluations are the job's: save_strategy and eval_strategy have no effect")
        self._epochs = self._job.epochs()
        next(self._epochs, None)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.mark_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = control.should_evaluate = False
        self._trainer.evaluate_for_job()
        control.should_training_stop = self._job.over

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = control.should_evaluate = False
        control.should_training_stop = next(self._epochs, None) is None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.evaluate_for_job()


def _check(trainer: Any) -> None:
    args = trainer.args
    if args.world_size > 1 or args.n_gpu > 1 or args.deepspeed or args.fsdp:
        raise UserError(
            f"transformers trains by {args.world_size} processes and {args.n_gpu} GPUs, or by DeepSpeed or FSDP: each "
            "replica has one process and one device; start the script by dbelief run, with CUDA_VISIBLE_DEVICES of one"
        )
    for name in ("load_best_model_at_end", "auto_find_batch_size"):
        if getattr(args, name):
            raise UserError(
                f"TrainingArguments({name}=True) changes this replica alone: the job keeps its best model (limits."
                "patience in the job file), and its batches have one size"
            )
    if trainer.model_init is not None:
        raise UserError("Trainer(model_init=...) makes another model when training begins: give model=...")


def _by_progress(scheduler: Any, job: ScriptJob, steps: int, kind: str) -> Any:
    """Have a schedule's place be the job's progress: a replica makes a share of the job's steps."""
    if not isinstance(scheduler, LambdaLR):
        raise UserError(f"lr_scheduler_type {kind} is no function of the step; choose linear, cosine or constant, say")
    if job.progress.total is None:
        raise UserError(
            f"lr_scheduler_type {kind} needs an end, and the job has no limit of samples: {' or '.join(_WITHOUT_END)}"
        )

    def at(usual: Any) -> Any:
        return lambda _: usual(round(job.progress.fraction * steps))

    scheduler.lr_lambdas = [at(usual) for usual in scheduler.lr_lambdas]
    return scheduler
