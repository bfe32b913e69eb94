"""A character GPT that makes its own steps: a replica of a DiLoCo job, the algorithm in one process, or one learner.

    dbelief run --job JOB diloco_script.py FILE SEED WINDOWS RATE BETA          a replica
    python diloco_script.py FILE SEED WINDOWS RATE BETA simulated JOB           all learners of the job, in one process
    python diloco_script.py FILE SEED WINDOWS RATE BETA plain BATCH STEPS       one learner without exchanges

The model and its windows are those of `examples/scripts/char_gpt.py`, but the output has weights of its own, and torch
draws the initial values. The first WINDOWS are an epoch, the others the test set; RATE and BETA, of the mean of
gradients, are those of AdamW. All ways begin at the parameters of the seed, and take windows in the order of the job's
sampler. The last two print loss and accuracy on the test set, and the number of parameters, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

import dbelief
from dbelief.coordinator.core.states import DatasetSizes
from dbelief.coordinator.scheduling.sizing import leases
from dbelief.core.lease import DataLease
from dbelief.data import permutation
from dbelief.job import Diloco, Job, load_job
from dbelief.job.strategies.rules import MomentumRule
from dbelief.training.schedule import total_samples

TRAIN, RATE, BETA, WORDS = int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), sys.argv[6:]

del sys.argv[3:]  # of what follows FILE and SEED, char_gpt would read more
sys.path.append(str(Path(__file__).parents[2] / "examples" / "scripts"))
gpt: Any = importlib.import_module("char_gpt")


def new_module(tokens: int) -> Any:
    """The example's GPT, whose output does not share the token embedding's weights, with torch's initial values."""
    torch.manual_seed(gpt.SEED)
    module = gpt.Gpt(tokens)
    module.output = torch.nn.Linear(gpt.WIDTH, tokens)
    for own in module.modules():
        if hasattr(own, "reset_parameters"):
            own.reset_parameters()
    return module


class Learner:
    """The module, and its inner optimiser."""

    def __init__(self, tokens: int) -> None:
        self.module = new_module(tokens).train()
        self._optimizer = torch.optim.AdamW(self.module.parameters(), lr=RATE, betas=(BETA, 0.999))

    def step(self, windows: Any, indices: list[int]) -> Any:
        """Make an inner step; the mean loss of the mini-batch."""
        inputs, targets = (torch.stack(parts) for parts in zip(*(windows[index] for index in indices), strict=True))
        loss = gpt.loss_of(self.module, inputs, targets)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss


def train_for_job(learner: Learner, train: Any, test: Any) -> None:
    """Train as a replica."""
    with dbelief.join() as job:
        strategy: Any = job.job.strategy
        sync = dbelief.torch.Sync(job, learner.module)
        for indices in job.sampler(train, strategy.batch):
            sync.step(learner.step(train, indices), samples=len(indices))
        sync.evaluate(gpt.score, test)


def train_alone(learner: Learner, train: Any, batch: int, steps: int) -> None:
    """Make so many steps."""
    for first in range(0, steps * batch, batch):
        learner.step(train, _indices(*divmod(first, len(train)), batch))


def simulate(server: torch.nn.Module, learners: list[Learner], train: Any, job: Job) -> None:
    """Train the server's module by DiLoCo (Douillard et al. 2023, algorithm 1), with leases as the coordinator's."""
    strategy = job.strategy
    assert isinstance(strategy, Diloco)
    rule = strategy.outer
    assert isinstance(rule, MomentumRule)
    outer = torch.optim.SGD(server.parameters(), lr=rule.rate, momentum=rule.mu, nesterov=True)
    pool = leases(job, DatasetSizes(len(train), 1, 0), total_samples(job.limits, len(train)))
    while pool.left:
        size = pool.even_size(len(learners))
        block = [(learner, pool.grant(number, number + 1, size=size)) for number, learner in enumerate(learners)]
        for first in range(0, size, strategy.clock_samples):
            members = [(learner, lease) for learner, lease in block if lease is not None and lease.samples > first]
            make_round(server, outer, members, train, first, strategy)


def make_round(
    server: torch.nn.Module,
    outer: torch.optim.Optimizer,
    members: list[tuple[Learner, DataLease]],
    train: Any,
    first: int,
    strategy: Diloco,
) -> None:
    """Make the round that begins at position `first` of each lease."""
    ends = [min(first + strategy.clock_samples, lease.samples) for _, lease in members]
    samples = sum(end - first for end in ends)
    for own in server.parameters():
        own.grad = torch.zeros_like(own)
    for (learner, lease), end in zip(members, ends, strict=True):
        learner.module.load_state_dict(server.state_dict())
        for start in range(first, end, strategy.batch):
            learner.step(train, _indices(lease.epoch, lease.start + start, min(strategy.batch, end - start)))
        for own, local in zip(server.parameters(), learner.module.parameters(), strict=True):
            assert own.grad is not None
            own.grad += (own.detach() - local.detach()) * ((end - first) / samples)
    outer.step()


def _indices(epoch: int, start: int, count: int) -> list[int]:
    """Windows from a place of an epoch's order on."""
    indices: list[int] = permutation(TRAIN, gpt.SEED, epoch)[start : start + count].tolist()
    return indices


def main() -> None:
    """Train, and print the result where there is no job to report it to."""
    torch.set_num_threads(1)
    text = gpt.FILE.read_text()
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([letters[letter] for letter in text])
    end = TRAIN * gpt.CONTEXT
    train, test = gpt.Windows(tokens[: end + 1]), gpt.Windows(tokens[end:])
    learner = Learner(len(letters))
    match WORDS:
        case ["plain", batch, steps]:
            train_alone(learner, train, int(batch), int(steps))
        case ["simulated", file]:
            job = load_job(Path(file))
            simulate(learner.module, [Learner(len(letters)) for _ in range(job.replicas)], train, job)
        case _:
            train_for_job(learner, train, test)
            return
    parameters = sum(own.numel() for own in learner.module.parameters())
    print(json.dumps([*gpt.score(learner.module, test), parameters]))


main()
