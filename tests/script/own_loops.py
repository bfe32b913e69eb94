"""Loops that make their own steps: python own_loops.py gan|closures LOG. A line of LOG for each step: its process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

SAMPLES, BATCH = 1024, 32
KIND, LOG = sys.argv[1:]


class Gan(nn.Module):
    """A generator of one number from four, and a critic of it."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        self.judge = nn.Sequential(nn.Linear(1, 16), nn.LeakyReLU(), nn.Linear(16, 1))


def gan(model: Gan) -> Callable[[torch.Tensor], torch.Tensor]:
    """Two optimisers in turn, on two losses."""
    makes = torch.optim.Adam(model.make.parameters(), lr=0.002, betas=(0.5, 0.9))
    judges = torch.optim.RMSprop(model.judge.parameters(), lr=0.002)
    loss = nn.functional.binary_cross_entropy_with_logits

    def step(real: torch.Tensor) -> torch.Tensor:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = model.make(torch.randn(len(real), 4))
        judges.zero_grad()
        (loss(model.judge(real), ones) + loss(model.judge(fake.detach()), zeros)).backward()
        judges.step()
        makes.zero_grad()
        found = loss(model.judge(fake), ones)
        found.backward()
        makes.step()
        return found

    return step


def closures(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """L-BFGS, which computes the loss several times in a step, beside an average of the weights."""
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    average = torch.optim.swa_utils.AveragedModel(model)

    def step(x: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True) - 1).square().mean()
            loss.backward()
            return loss

        loss: torch.Tensor = optimizer.step(closure)
        average.update_parameters(model)
        return loss

    return step


def score(model: nn.Module, data: TensorDataset) -> float:
    """How far off: the mean of what is made, which is to be 3; or a line's numbers."""
    torch.manual_seed(7)
    if isinstance(model, Gan):
        return abs(float(model.make(torch.randn(500, 4)).mean()) - 3.0)
    return float((next(model.parameters()) - 1).abs().max())


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model: nn.Module = Gan() if KIND == "gan" else nn.Linear(4, 1)
    step = gan(model) if isinstance(model, Gan) else closures(model)
    data = TensorDataset(3 + torch.randn(SAMPLES, 1) / 2 if KIND == "gan" else torch.randn(SAMPLES, 4))
    with open(LOG, "a") as log, dbelief.join() as job:
        sync = dbelief.torch.Sync(job, model)
        for (x,) in DataLoader(data, batch_sampler=job.sampler(data, BATCH)):
            sync.step(step(x), samples=len(x))
            log.write(f"{os.getpid()}\n")
            log.flush()
            time.sleep(0.005)
        sync.evaluate(score, data)


if __name__ == "__main__":
    main()
