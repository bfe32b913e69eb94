"""A script with rows of two tables: python rows.py FOLDER [STEP]. It writes losses, and the rows at its end.

At the step it kills itself, once; or with "nan" it has a gradient that is not finite, with "beyond" a key that int64
does not have, with "other" the second of two scripts reads no items, and with "ahead" it pulls the rows of each batch
while the one before is computed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief

SAMPLES, IDS, BATCH = 240, 30, 20


class Clicks(nn.Module):
    """Logits of clicks, from a user's row and the sum of the rows of items."""

    def __init__(self, user: nn.Module, item: nn.Module) -> None:
        super().__init__()
        self.user, self.item, self.out = user, item, nn.Linear(6, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """(samples,) logits."""
        made: torch.Tensor = self.out(torch.cat([self.user(users), self.item(items)], 1)).squeeze(1)
        return made


class NoItems(nn.Module):
    """Zeros in the place of items' rows."""

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """(samples, 2)."""
        return torch.zeros(len(items), 2)


def is_first(file: Path) -> bool:
    """Whether this process makes a file, which no other one has made: in rounds several come here at the same time."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dataset() -> TensorDataset:
    """Numbers of the samples, users, three items each with repeats among them, and clicks."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, IDS, SAMPLES) - 10, rng.integers(0, IDS, (SAMPLES, 3)) * 10**12
    clicks = (users % 3 == 0) ^ (items[:, 0] % 7 < 3)
    return TensorDataset(*map(torch.from_numpy, (np.arange(SAMPLES), users, items, clicks.astype(np.float32))))


def new_out(module: Clicks) -> Clicks:
    """The module with the dense parameters that all begin with."""
    with torch.no_grad():
        module.out.weight.copy_(torch.linspace(-1, 1, 6))
        module.out.bias.zero_()
    return module


def main() -> None:
    """Train."""
    folder, what = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    with dbelief.join() as job:
        reads = what != "other" or os.environ["DBELIEF_NUMBER"] == "0"
        item = dbelief.torch.EmbeddingBag(job, "item", mode="sum") if reads else NoItems()
        module = new_out(Clicks(dbelief.torch.Embedding(job, "user"), item))
        sync = dbelief.torch.Sync(job, module, torch.optim.SGD(module.parameters(), lr=0.1))
        loader = DataLoader(dataset(), batch_sampler=job.sampler(dataset(), batch_size=BATCH))
        losses = []
        pairs = dbelief.torch.one_ahead(loader) if what == "ahead" else ((batch, None) for batch in loader)
        for number, ((own, users, items, clicks), following) in enumerate(pairs, 1):
            if following is not None:
                module.user.prefetch(following[1])
                module.item.prefetch(following[2])
            if what == str(number) and is_first(folder / "died"):
                os.kill(os.getpid(), 9)
            logits = module(users if what != "beyond" else [2**63] * len(users), items)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
            loss.backward()
            if what == "nan":
                module.user.pulled[0].rows.grad[2, 1] = float("nan")
            sync.step(loss, samples=len(users))
            losses.append([own.tolist(), loss.item()])
        with torch.no_grad():
            rows = [module.user(torch.arange(IDS) - 10), module.item(torch.arange(IDS)[:, None] * 10**12)]
        found = {"losses": losses, "rows": [one.tolist() for one in rows]}
        (folder / f"end-{job.replica}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
