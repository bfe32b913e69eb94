"""A script whose model is the number of its steps: python counted.py LOG [NAME=VALUE]... A line of LOG for each batch.

Each step of its own adds 1 to its only parameter, and samples stand in the log with what became of them, and the number
that the parameter is. It steps without an optimiser: to make one takes PyTorch longer than all the rest, and the steps
of an optimiser count in all replicas of a process.

    skips       every so many batches one is skipped (0: none), whose samples go to the next replica, or
    again=0     count as done
    slow        milliseconds in which replica 0 computes a batch
    together    so many replicas begin together
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

SAMPLES, BATCH = 240, 10


class Counter(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(1))


def meet(log: Path, replica: int, replicas: int) -> None:
    """Wait until so many replicas have come here."""
    log.with_name(f"joined-{replica}").touch()
    until_s = time.monotonic() + 120
    while len(list(log.parent.glob("joined-*"))) < replicas:
        assert time.monotonic() < until_s, f"waited for {replicas} replicas"
        time.sleep(0.01)


def train(
    path: Path, address: str | None = None, skips: int = 0, again: int = 1, slow: int = 0, together: int = 1
) -> None:
    """Train, and write the log; `address`: see `dbelief.join`."""
    model, dataset = Counter(), TensorDataset(torch.arange(SAMPLES))
    with open(path, "a") as log, dbelief.join(address) as job:
        sync = dbelief.torch.Sync(job, model)
        meet(path, job.replica, together)
        for number, (x,) in enumerate(DataLoader(dataset, batch_sampler=job.sampler(dataset, BATCH)), 1):
            time.sleep(slow / 1000 if job.replica == 0 else 0.0)
            skipped = bool(skips) and number % skips == 0
            if skipped:
                sync.skip(samples=len(x), again=bool(again))
            else:
                with torch.no_grad():
                    model.steps += 1
                sync.step(-model.steps.detach(), samples=len(x))
            row = {"replica": job.replica, "skipped": skipped, "samples": x.tolist(), "steps": model.steps.item()}
            log.write(json.dumps(row) + "\n")
            log.flush()


if __name__ == "__main__":
    train(Path(sys.argv[1]), None, **{name: int(value) for name, value in (word.split("=") for word in sys.argv[2:])})
