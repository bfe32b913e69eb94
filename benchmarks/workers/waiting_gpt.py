"""The character GPT of `examples/scripts`, which waits in place of computing: a replica of a job, or a rank of DDP.

    dbelief worker --coordinator HOST:PORT -- python waiting_gpt.py
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python waiting_gpt.py BATCH

A step waits for DBELIEF_COMPUTE_WAIT seconds: a third in the forward pass, two thirds in the backward one, spread over
the parts of the model, so that DDP sends gradients of one part while another is waited for. The gradients of all steps
are those of one window. A rank trains until it is terminated; rank 0 prints events of progress.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import dbelief

WORDS = sys.argv[1:]
TOKENS, WINDOW = 65, 16
RATE = 0.001
EVENT_S = 0.2
"""From one event to the next, as of a job."""

sys.argv[1:] = ["no text"]  # char_gpt reads the name of one
sys.path.append(str(Path(__file__).parents[2] / "examples" / "scripts"))
gpt: Any = importlib.import_module("char_gpt")


class KnownPart(torch.autograd.Function):
    """A part of a model that waits in place of computing, and whose gradients are known."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, wait_s: float, known: list[torch.Tensor], *own: Any) -> torch.Tensor:
        """The input; of what it waits for, this pass has a third."""
        context.wait_s, context.known = wait_s, known
        time.sleep(wait_s / 3)
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        """The known gradients of the parameters."""
        time.sleep(2 * context.wait_s / 3)
        return gradient, None, None, *context.known


class WaitingGpt(torch.nn.Module):
    """The GPT; its call waits, and returns a number whose `backward` waits and sets the known gradients."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gpt = gpt.Gpt(TOKENS)
        window = torch.randint(TOKENS, (1, WINDOW + 1))
        gpt.loss_of(self.gpt, window[:, :-1], window[:, 1:]).backward()
        modules = [[self.gpt.tokens, self.gpt.positions], *([layer] for layer in self.gpt.layers), [self.gpt.norm]]
        parts = [[own for module in part for own in module.parameters()] for part in modules]
        self._parts = [(own, [one.grad for one in own]) for own in parts]
        self._wait_s = wait_s / len(parts)
        self.gpt.zero_grad()

    def forward(self) -> torch.Tensor:
        """A loss."""
        x = torch.ones((), requires_grad=True)
        for own, known in self._parts:
            x = KnownPart.apply(x, self._wait_s, known, *own)
        return x


def train_for_job(model: WaitingGpt, optimizer: torch.optim.Optimizer) -> None:
    """Train as a replica, with the script's own steps or by the shards' rule."""
    with dbelief.join() as job:
        strategy: Any = job.job.strategy
        data: Any = job.job.data
        own_steps = strategy.rule.name == "add"
        sync = dbelief.torch.Sync(job, model, None if own_steps else optimizer)
        for batch in job.sampler(range(data.train), strategy.batch):
            loss = model()
            loss.backward()
            if own_steps:
                optimizer.step()
                optimizer.zero_grad()
            sync.step(loss, samples=len(batch))


def train_by_ddp(model: WaitingGpt, optimizer: torch.optim.Optimizer, batch: int) -> None:
    """Train as a rank; one alone is torch without DDP."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    replicated: Any = model
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        replicated = torch.nn.parallel.DistributedDataParallel(model)
    samples, began_s, printed_s = 0, time.monotonic(), 0.0
    while True:
        replicated().backward()
        optimizer.step()
        optimizer.zero_grad()
        samples += batch * ranks
        elapsed_s = time.monotonic() - began_s
        if rank == 0 and elapsed_s - printed_s >= EVENT_S:
            printed_s = elapsed_s
            print(json.dumps({"elapsed_s": elapsed_s, "samples": samples}), flush=True)


def main() -> None:
    """Train by what has started this process."""
    model = WaitingGpt(float(os.environ["DBELIEF_COMPUTE_WAIT"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    if "RANK" in os.environ:
        train_by_ddp(model, optimizer, int(WORDS[0]))
    else:
        train_for_job(model, optimizer)


if __name__ == "__main__":
    main()
