"""A training script with one fault, named by its argument; lines marked FAULT raise it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

import dbelief

FAULT = sys.argv[1]


class Net(nn.Module):
    """One layer, which fails where that is the fault."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5 if FAULT == "modules" and os.environ["DBELIEF_NUMBER"] == "1" else 4, 3)
        if FAULT == "frozen":
            self.frozen = nn.Parameter(torch.full((2,), float(os.environ["DBELIEF_NUMBER"])), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        if FAULT == "forward":
            raise ValueError("no such thing")  # FAULT forward
        out: torch.Tensor = self.layer(x)
        return out


def collate(samples: list[Any]) -> Any:
    """A batch; fails, or ends the process that collates, where that is the fault."""
    if FAULT == "collate":
        raise KeyError("label")  # FAULT collate
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return default_collate(samples)


class Shrinking(TensorDataset):
    """A dataset whose length changes after the first epoch."""

    def __len__(self) -> int:
        return super().__len__() - (FAULT == "shrinks" and STEPS > 3)


def wait_for_the_other() -> None:
    """Wait until both scripts are about to give their modules; else one of them could train the whole job alone."""
    Path(f"begun-{os.environ['DBELIEF_NUMBER']}").touch()
    deadline = time.monotonic() + 60
    while len(list(Path().glob("begun-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)


class Stream(IterableDataset[Any]):
    """A stream."""

    def __iter__(self) -> Any:
        yield torch.zeros(4), 0


STEPS = 0
model = Net()
dataset: Any = Stream() if FAULT == "stream" else Shrinking(torch.randn(64, 4), torch.arange(64) % 3)
if FAULT == "optimizer":
    optimizer: torch.optim.Optimizer = torch.optim.RMSprop(model.parameters(), lr=0.1)
elif FAULT == "groups":
    optimizer = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
elif FAULT == "other":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
elif FAULT == "lacks":
    optimizer = torch.optim.SGD([model.layer.weight], lr=0.1)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(reduction={"sum": "sum", "shape": "none"}.get(FAULT, "mean"))
if FAULT in ("modules", "frozen"):
    wait_for_the_other()
with dbelief.join() as job:
    sync = dbelief.torch.Sync(job, model, optimizer)  # FAULT optimizer groups other lacks modules frozen
    if FAULT == "kept":
        sync.state(optimizer)  # FAULT kept
    sampler = job.sampler(dataset, batch_size=16)  # FAULT stream
    workers = 1 if FAULT in ("collate", "killed") else 0
    for x, y in DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=collate):  # FAULT shrinks
        loss = criterion(model(x), y)
        loss.sum().backward()
        if FAULT == "stepped":
            optimizer.step()  # FAULT stepped
        if FAULT == "cycled" and STEPS:
            optimizer.param_groups[0]["momentum"] = 0.25
        sync.step(loss, samples=len(x) + (FAULT == "samples"))  # FAULT sum shape samples cycled unmoved
        STEPS += 1
