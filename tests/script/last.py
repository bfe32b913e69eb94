"""A script whose last exchange fails while it travels: python last.py gone|rejected breaks|waits PID.

The shard's process, PID, is killed before the exchange begins, or is said to refuse it. It is waited for at the end of
the `with` block, where the loop is left by `break`; else where the loader waits for samples. The script steps without
an optimiser: to make one takes PyTorch longer than all the rest.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief
from dbelief.errors import Rejected

SAMPLES, BATCH = 40, 10
FAULT, END = sys.argv[1:3]


def refuse(*arguments: Any, **named: Any) -> Any:
    """A push that a shard refuses."""
    raise Rejected("push: shard 0 at 127.0.0.1:1: the job has no such replica")


model = nn.Linear(1, 1)
dataset = TensorDataset(torch.ones(SAMPLES, 1))
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, model)
    for number, (x,) in enumerate(DataLoader(dataset, batch_sampler=job.sampler(dataset, BATCH)), 1):
        with torch.no_grad():
            loss = model(x).mean()
            model.weight += 0.1
        last = number == SAMPLES // BATCH
        if last and FAULT == "gone":
            os.kill(int(sys.argv[3]), signal.SIGKILL)
        elif last:
            sync._session.parameters.push = refuse  # type: ignore[method-assign]
        sync.step(loss, samples=len(x))
        print("steps", number, flush=True)
        if last and END == "breaks":
            break
print("ends well", flush=True)
