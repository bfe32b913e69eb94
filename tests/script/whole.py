"""A script whose module has all kinds of state: python whole.py FOLDER. It writes the state that it ends with."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief


class Whole(nn.Module):
    """Trained, frozen and tied parameters, some in half precision; buffers that change, count, and stay."""

    table: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.norm = nn.BatchNorm1d(8)
        self.adapter = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(8, 7, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("table", torch.arange(8.0))
        self.register_buffer("mask", torch.tensor([True, False] * 4))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of seven tokens."""
        h = self.norm(self.embed(x)) + self.table * self.mask
        h = h + self.frozen(h) + self.adapter(h.to(torch.bfloat16)).float()
        out: torch.Tensor = self.out(h)
        return out


def make(seed: int) -> Whole:
    """The module; what is frozen is the same for all seeds."""
    torch.manual_seed(seed)
    module = Whole()
    with torch.no_grad():
        module.frozen.weight.copy_(torch.eye(8) / 4)
        module.frozen.bias.fill_(0.5)
    return module


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    x = torch.arange(70) % 7
    dataset = TensorDataset(x, (x + 1) % 7)
    module = make(1)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    criterion = nn.CrossEntropyLoss()

    def score(model: nn.Module, data: TensorDataset) -> tuple[float, float]:
        tokens, targets = data.tensors
        out = model(tokens)
        return float(criterion(out, targets)), float((out.argmax(1) == targets).float().mean())

    with dbelief.join() as job:
        sync = dbelief.torch.Sync(job, module, optimizer, about={"tokens": ["a", "b"], "scale": 0.5})
        for epoch in job.epochs():
            for tokens, targets in DataLoader(dataset, batch_sampler=job.sampler(dataset, 10)):
                loss = criterion(module(tokens), targets)
                loss.backward()
                sync.step(loss, samples=len(tokens))
            print("epoch", epoch, sync.evaluate(score, dataset), job.progress.fraction, flush=True)
        sync.evaluate(score, dataset)
    torch.save(module.state_dict(), folder / f"state-{job.replica}.pt")


if __name__ == "__main__":
    main()
