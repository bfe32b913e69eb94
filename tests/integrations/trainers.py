"""A network trained by a framework's loop: python trainers.py plain|script FRAMEWORK FOLDER ACCUMULATE.

As a plain program, which draws the samples in the order of the job, or as a replica of a job. Both write the module's
state to FOLDER, and a line of FOLDER/steps for each step: the process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset

import dbelief
from dbelief.data import permutation

SAMPLES, BATCH, SEED, LETTERS, LENGTH = 100, 4, 3, 12, 8
"""The last step of an epoch has half the samples of the others where two batches are accumulated."""


class Sequences(Dataset):
    """Letters that follow each other by a constant distance."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.size, self.first = size, first

    def __len__(self) -> int:
        """Number of sequences."""
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """A sequence, which is its own target."""
        start, distance = divmod(index + self.first, 3)
        letters = (start + (distance + 1) * torch.arange(LENGTH)) % LETTERS
        return {"input_ids": letters, "labels": letters}


def network() -> nn.Module:
    """A transformer of one layer, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=LETTERS, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(SEED)
    made: nn.Module = GPT2LMHeadModel(config)
    return made


def plain_batches(accumulate: int) -> Iterator[list[int]]:
    """Two epochs in the order of the job's permutations."""
    for epoch in range(2):
        order = permutation(SAMPLES, SEED, epoch).tolist()
        for first in range(0, SAMPLES, BATCH * accumulate):
            step = order[first : first + BATCH * accumulate]
            size = len(step) // accumulate
            yield from (step[place : place + size] for place in range(0, len(step), size))


def score(model: nn.Module, data: Dataset) -> float:
    """The mean loss."""
    batch: dict[str, torch.Tensor] = next(iter(DataLoader(data, batch_size=len(data))))
    loss: torch.Tensor = model(**batch).loss
    return float(loss)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """A rule under which a gradient of rounding alone, as that of the bias of keys, moves nothing."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_transformers(model: nn.Module, train: Dataset, validation: Dataset, accumulate: int, job: Any) -> None:
    """Train by a `Trainer`, whose arguments ask for more than a job has."""
    from transformers import Trainer, TrainingArguments

    class Plain(Trainer):
        def get_train_dataloader(self) -> DataLoader:
            return DataLoader(train, batch_sampler=list(plain_batches(accumulate)))

    more: dict[str, Any] = {"save_strategy": "no"}
    if job is not None:
        more = {"save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 2, "logging_steps": 2}
    args = TrainingArguments(
        per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulate, lr_scheduler_type="constant",
        num_train_epochs=1, use_cpu=True, report_to="none", output_dir="trained", **more,
    )  # fmt: skip
    words: Any = {
        "model": model, "args": args, "train_dataset": train, "eval_dataset": validation,
        "optimizers": (optimizer_of(model), None),
    }  # fmt: skip
    trainer = Plain(**words) if job is None else dbelief.integrations.JobTrainer(job, **words)
    trainer.train()


def by_lightning(model: nn.Module, train: Dataset, validation: Dataset, accumulate: int, job: Any) -> None:
    """Train by a `Trainer` of Lightning."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.environments import LightningEnvironment

    class Own(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.network(**batch).loss
            self.log("train", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return optimizer_of(self)

        def forward(self, **batch: torch.Tensor) -> Any:
            return self.network(**batch)

    callbacks: list[Any] = []
    if job is None:
        batches: Any = list(plain_batches(accumulate))
    else:
        batches = job.sampler(train, BATCH, accumulate)
        callbacks = [dbelief.integrations.JobCallback(job, score, validation), ModelCheckpoint("trained")]
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, accumulate_grad_batches=accumulate, callbacks=callbacks, logger=False,
        enable_progress_bar=False, enable_checkpointing=job is not None, plugins=[LightningEnvironment()],
    )  # fmt: skip
    module = Own().train()
    trainer.fit(module, DataLoader(train, batch_sampler=batches))


def by_accelerate(model: nn.Module, train: Dataset, validation: Dataset, accumulate: int, job: Any) -> None:
    """Train in a loop with an `Accelerator`."""
    from accelerate import Accelerator

    accelerator, optimizer = Accelerator(cpu=True, gradient_accumulation_steps=accumulate), optimizer_of(model)
    batches = list(plain_batches(accumulate)) if job is None else job.sampler(train, BATCH, accumulate)
    loader: Any = DataLoader(train, batch_sampler=batches)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    sync = None if job is None else dbelief.integrations.AccelerateSync(job, accelerator, model)
    for _ in range(1) if job is None else job.epochs():
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if sync is not None:
                sync.step(loss)
                sync.evaluate(score, validation)
    if sync is not None:
        sync.evaluate(score, validation)


def main() -> None:
    """Train, and write the outcome."""
    way, framework, folder, accumulate = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    loop = {"transformers": by_transformers, "lightning": by_lightning, "accelerate": by_accelerate}[framework]
    torch.set_num_threads(1)
    model, train, validation = network().train(), Sequences(SAMPLES), Sequences(20, SAMPLES)
    if way == "plain":
        loop(model, train, validation, accumulate, None)
    else:
        log = open(folder / "steps", "a", buffering=1)  # noqa: SIM115  (until the process ends)

        def write(*_: Any) -> None:
            log.write(f"{os.getpid()}\n")
            time.sleep(0.005)

        register_optimizer_step_post_hook(write)
        with dbelief.join() as job:
            loop(model, train, validation, accumulate, job)
    torch.save(model.state_dict(), folder / f"{way}.pt")


if __name__ == "__main__":
    main()
