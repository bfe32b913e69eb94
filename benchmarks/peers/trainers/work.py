"""What all trainers of the comparison share: network, mini-batches, and the reports of what was trained.

A trainer runs in a virtual environment that has its system and not dbelief. It has its options as one JSON object in
the environment variable `PEERS` (`Given`). A process that trains numbers its samples from 1. Each step is reported as a
line of JSON in `FOLDER/reports/NAME.PID.jsonl`, which the end of the process by SIGKILL does not lose:

    {"at": S, "trained": [SOURCE, FIRST, LAST]}     SOURCE (NAME.PID) has computed the gradient of these samples
    {"at": S, "applied": [SOURCE, FIRST, LAST]}     the model has these now
    {"at": S, "state": N}                           the model is now one with the first N samples

`at` is the monotonic clock in seconds, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.churn_torch_trainer import images

KEEP_S = 0.5
"""Seconds between two copies of the model, of which the test accuracy is computed afterwards."""


class Given:
    """Options of a trainer.

    Attributes
    ----------
    folder, data
        Of the reports; of the IDX files.
    workers, batch, rate, seed
        As they are called.
    slow, slow_s
        Number of the worker that sleeps so many seconds before each step; -1: none.
    more
        Options of one system: addresses and the like.
    """

    def __init__(self) -> None:
        self.more: dict[str, Any] = json.loads(os.environ["PEERS"])
        self.folder, self.data = Path(self.more["folder"]), Path(self.more["data"])
        self.workers, self.batch, self.seed = (int(self.more[name]) for name in ("workers", "batch", "seed"))
        self.rate, self.slow, self.slow_s = float(self.more["rate"]), int(self.more["slow"]), float(self.more["slow_s"])


class Reports:
    """The file of one process.

    Parameters
    ----------
    name
        Role and number, such as "worker-0".
    """

    def __init__(self, given: Given, name: str) -> None:
        self.source, self._folder = f"{name}.{os.getpid()}", given.folder
        self._file = os.open(given.folder / "reports" / f"{self.source}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._kept_s = 0.0

    def write(self, **kinds: Any) -> None:
        """Write one line of each kind, at once."""
        at = time.monotonic()
        lines = [json.dumps({"at": at, kind: what}) + "\n" for kind, what in kinds.items()]
        os.write(self._file, "".join(lines).encode())

    def keep(self, net: Any) -> None:
        """Copy the model's parameters to a file, once in `KEEP_S`; its name is the time."""
        now_s = time.monotonic()
        if now_s - self._kept_s < KEEP_S:
            return
        self._kept_s = now_s
        flat = np.concatenate([values.detach().numpy().ravel() for values in net.parameters()])
        part = self._folder / "models" / f"{self.source}.part"
        with open(part, "wb") as file:
            np.save(file, flat)
        part.replace(part.with_name(f"{now_s:.3f}.npy"))


class Work:
    """One worker: its mini-batches, and its reports.

    Parameters
    ----------
    rank
        Number of the worker.
    """

    def __init__(self, rank: int) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.given, self.rank = Given(), rank
        self.reports = Reports(self.given, f"worker-{rank}")
        self.samples = 0
        self._torch = torch
        self._drawn = torch.Generator().manual_seed(1000 * self.given.seed + rank + os.getpid())
        self._pixels, self._digits = (torch.from_numpy(values) for values in images(self.given.data, "train"))

    @property
    def source(self) -> str:
        return self.reports.source

    def batches(self, count: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Mini-batches, so many or without end; the slow worker sleeps before each."""
        while count is None or count > 0:
            if self.given.slow == self.rank:
                time.sleep(self.given.slow_s)
            rows = self._torch.randint(len(self._digits), (self.given.batch,), generator=self._drawn)
            yield self._pixels[rows], self._digits[rows]
            count = None if count is None else count - 1

    def trained(self, **more: Any) -> tuple[str, int, int]:
        """Report a mini-batch whose gradient is computed; its samples as `Reports` has them."""
        one = self.source, self.samples + 1, self.samples + self.given.batch
        self.samples += self.given.batch
        self.reports.write(trained=one, **more)
        return one

    def done(self, net: Any) -> None:
        """Report a mini-batch that is trained, and in this worker's model."""
        following = self.source, self.samples + 1, self.samples + self.given.batch
        self.trained(applied=following)
        if self.rank == 0:
            self.reports.keep(net)


def network() -> Any:
    """784-256-10 with ReLU; the same initial parameters in each process."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
