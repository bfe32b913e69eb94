"""A script that logs the samples of each step before and after it: python logged.py LOG SLEEP_S [SAMPLES [own]]."""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

SAMPLES = int(sys.argv[3]) if len(sys.argv) > 3 else 240
OWN = "own" in sys.argv


def main() -> None:
    """Train, a step in SLEEP_S seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(SAMPLES, 4), torch.arange(SAMPLES) % 3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(sys.argv[1], "a") as log, dbelief.join() as job:
        sync = dbelief.torch.Sync(job, model, optimizer)
        for x, y in DataLoader(dataset, batch_sampler=job.sampler(dataset, 10), num_workers=1):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            time.sleep(float(sys.argv[2]))
            batch = job.membership.drawn.next()
            assert batch is not None
            first = batch.lease.start
            place = batch.lease.epoch, first + batch.start, first + batch.stop
            for what in ("begun", "done"):
                log.write(json.dumps([what, os.getpid(), *place]) + "\n")
                log.flush()
                if what == "begun":
                    if OWN:
                        optimizer.step()
                        optimizer.zero_grad()
                    sync.step(loss, samples=len(x))


if __name__ == "__main__":
    main()
