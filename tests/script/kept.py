"""A loop with Adam, a schedule and an average of the weights: python kept.py plain|script FOLDER EPOCHS [NAME=VALUE]...

    kill=N      the script kills itself after its step N, once
    keep=0      without sync.state

FOLDER/plain.pt or FOLDER/script.pt has what it ends with. The plain program draws the samples in the job's order.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import dbelief
from tests.script.loop import BATCH, data, plain_batches


def main() -> None:
    """Train, and write the outcome."""
    way, folder, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    more = dict(text.split("=") for text in sys.argv[4:])
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.95)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    criterion = nn.CrossEntropyLoss()
    dataset = data()

    def train(loader: Any, mark: Callable[[torch.Tensor], object]) -> None:
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mark(loss)
            schedule.step()
            average.update_parameters(model)

    if way == "plain":
        train(DataLoader(dataset, batch_sampler=list(plain_batches(epochs))), lambda loss: None)
    else:
        with dbelief.join() as job:
            sync = dbelief.torch.Sync(job, model)
            if more.get("keep") != "0":
                sync.state(optimizer, schedule, ema=average)
            steps = 0

            def mark(loss: torch.Tensor) -> None:
                nonlocal steps
                if sync._kept is not None:
                    sync._kept._wait(60.0)  # else a copy that is due while one is written would be left out
                sync.step(loss, samples=BATCH)
                steps += 1
                if str(steps) == more.get("kill") and not (folder / "killed").exists():
                    (folder / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            train(DataLoader(dataset, batch_sampler=job.sampler(dataset, BATCH)), mark)
    outcome = {"rate": schedule.get_last_lr(), "ema": average.state_dict(), "model": model.state_dict()}
    torch.save(outcome, folder / f"{way}.pt")


if __name__ == "__main__":
    main()
