"""A character GPT that makes its own steps: a replica of a DiLoCo job, the algorithm in one process, or one learner.

    dbelief run --job JOB diloco_script.py FILE SEED            a replica
    python diloco_script.py FILE SEED simulated JOB             all learners of the job, in one process
    python diloco_script.py FILE SEED plain BATCH STEPS         one learner without exchanges

The model and its windows are those of `examples/scripts/char_gpt.py`. All ways begin at the parameters of the seed, and
draw windows in the order of the job's sampler. The last two print loss and accuracy on the test windows as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import dbelief
from dbelief.coordinator.core.states import DatasetSizes
from dbelief.coordinator.scheduling.sizing import leases
from dbelief.core.lease import DataLease
from dbelief.data import permutation
from dbelief.job import Diloco, Job, load_job

TRAIN = 7_808
"""Windows of an epoch: two of them are 488 steps of 32."""
RATE = 0.003

sys.path.append(str(Path(__file__).parents[2] / "examples" / "scripts"))
gpt: Any = importlib.import_module("char_gpt")  # which reads FILE and SEED


class Learner:
    """The module with an inner optimiser of its own."""

    def __init__(self, tokens: int) -> None:
        torch.manual_seed(gpt.SEED)
        self.module = gpt.Gpt(tokens)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=RATE)
        self.module.train()

    def step(self, windows: list[Any]) -> torch.Tensor:
        """An inner step; the mini-batch's loss."""
        x, y = (torch.stack(part) for part in zip(*windows, strict=True))
        loss: torch.Tensor = gpt.loss_of(self.module, x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def train_for_job(learner: Learner, train: Any, test: Any) -> None:
    """Train as a replica."""
    with dbelief.join() as job:
        sync = dbelief.torch.Sync(job, learner.module)
        for indices in job.sampler(train, job.job.strategy.batch):
            loss = learner.step([train[index] for index in indices])
            sync.step(loss, samples=len(indices))
        sync.evaluate(gpt.score, test)


def plain(learner: Learner, train: Any, batch: int, steps: int) -> None:
    """So many steps of one learner."""
    for step in range(steps):
        learner.step(windows_of(train, 0, step * batch, (step + 1) * batch))


def simulated(learners: list[Learner], server: torch.nn.Module, train: Any, job: Job) -> None:
    """DiLoCo (Douillard et al. 2023, algorithm 1), by the outer optimiser of torch."""
    strategy = job.strategy
    assert isinstance(strategy, Diloco)
    outer = torch.optim.SGD(server.parameters(), lr=strategy.outer.rate, momentum=strategy.outer.mu, nesterov=True)
