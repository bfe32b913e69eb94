"""A training loop that runs in two ways: as a plain PyTorch program, and as a replica of a job by `dbelief.join`.

    python loop.py plain|script OPTIMIZER FOLDER [NAME=VALUE]...

Both ways write the module's state, and the losses of the steps, to FOLDER. The plain one draws the samples in the order
of the job.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dbelief
from dbelief.data import permutation

SAMPLES, BATCH, SEED = 400, 20, 3
DEFAULTS = {
    "accumulate": 1,
    "workers": 0,
    "epochs": 2,
    "own": 0,
    "elastic": 0,
    "diloco": 0,
    "delay": 0,
    "evaluates": 0,
    "width": 12,
    "keeps": 0,
}
Values = list[torch.Tensor]
Way = Callable[[Values, Values, Values], Values]
"""What weights change by, of what was sent; a centre and a velocity are changed."""
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, weight_decay=0.001),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05, eps=1e-6),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.05),
    "groups": lambda m: torch.optim.AdamW(
        [
            {"params": [p for p in m.parameters() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in m.parameters() if p.ndim <= 1], "weight_decay": 0.0, "lr": 0.02},
        ],
        lr=0.01,
    ),
}


class Net(nn.Module):
    """Two layers with BatchNorm, and a tensor under two names; further layers take part in some steps, one in none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, 3)
        self.second.bias = self.first.bias
        # Without biases: BatchNorm leaves these a gradient of rounding alone, which Adam makes a step of.
        self.sometimes, self.once, self.never = (nn.Linear(6, 6, bias=False) for _ in range(3))
        self.passes = 0
        self.drawn = random.Random(SEED)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of three classes."""
        self.passes += 1
        x = x + self.once(x) if self.passes == 1 else x
        x = x + self.sometimes(x) if self.drawn.random() < 0.5 else x  # stochastic depth
        x = torch.tanh(self.norm(self.first(x)))
        out: torch.Tensor = self.third(torch.tanh(self.second(x)))
        return out


def data() -> TensorDataset:
    """Samples of three classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator)
    y = (x @ torch.randn(6, 3, generator=generator)).argmax(1)
    return TensorDataset(x, y)


def plain_batches(epochs: int) -> Iterator[list[int]]:
    """All batches in the order of the job's permutations."""
    for epoch in range(epochs):
        order = permutation(SAMPLES, SEED, epoch)
        for first in range(0, SAMPLES, BATCH):
            yield order[first : first + BATCH].tolist()


def exchange(sent: Values, centre: Values, velocity: Values) -> Values:
    """Elastic averaging with a moving rate of 1/4: what weights change by that were sent."""
    moved = [0.25 * (own - other) for own, other in zip(sent, centre, strict=True)]
    for other, change in zip(centre, moved, strict=True):
        other += change
    return [-change for change in moved]


def outer_step(
    sent: list[torch.Tensor], centre: list[torch.Tensor], velocity: list[torch.Tensor]
) -> list[torch.Tensor]:
    """DiLoCo's outer step of one replica, Nesterov's momentum, 0.6, at rate 0.7: what weights change by."""
    for own, other, v in zip(sent, centre, velocity, strict=True):
        difference = other - own
        if difference.abs().max() > 1e-6:  # else it took part in no step: own and other differ by rounding alone
            v.mul_(0.6).add_(difference)
            other -= 0.7 * (difference + 0.6 * v)
    return [other - own for own, other in zip(sent, centre, strict=True)]


class Exchanges:
    """Exchanges of one replica: each begins after `every` steps, and changes the weights `delay` steps later.

    `keeps`: per cent of its own weights that stay.
    """

    def __init__(self, model: nn.Module, way: Way, every: int, delay: int, keeps: int) -> None:
        self._model, self._way, self._every, self._delay = model, way, every, delay
        self._takes = 1 - keeps / 100
        self._centre, self._velocity = ([p.detach() * factor for p in model.parameters()] for factor in (1, 0))
        self._behind, self._changes = 0, list[torch.Tensor]()

    def after(self, step: int) -> None:
        """Do what is due after a step, numbered from 1."""
        self._behind += 1
        due = step % self._every == 0
        if due or self._behind >= self._delay:
            self._arrive()
        if due:
            sent = [own.detach().clone() for own in self._model.parameters()]
            self._changes, self._behind = self._way(sent, self._centre, self._velocity), 0
        if not self._delay:
            self._arrive()

    def end(self) -> None:
        """Wait for the last one."""
        self._arrive()

    def _arrive(self) -> None:
        with torch.no_grad():
            for own, change in zip(self._model.parameters(), self._changes, strict=False):
                own += self._takes * change
        self._changes = []


def pushes_of(sync: Any) -> list[list[Any]]:
    """Clock, weight and segments of each push that follows."""
    parameters, pushes = sync._session.parameters, list[list[Any]]()
    push = parameters.push

    def counted(values: Any, versions: Any, header: Any, *rest: Any, within: Any = None, **named: Any) -> Any:
        pushes.append([header.clock, header.samples, sorted(within or ())])
        return push(values, versions, header, *rest, within=within, **named)

    parameters.push = counted
    return pushes


def main() -> None:
    """Train, and write the outcome."""
    way, kind, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    more = dict(text.split("=") for text in sys.argv[4:])
    accumulate, workers, epochs, own, elastic, diloco, delay, evaluates, width, keeps = (
        int(more.get(name, usual)) for name, usual in DEFAULTS.items()
    )
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model, dataset, criterion = Net(width), data(), nn.CrossEntropyLoss()
    optimizer = OPTIMIZERS[kind](model)
    steps = epochs * SAMPLES // (BATCH * accumulate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if "cosine" in more else None
    losses = []
    exchanges = Exchanges(model, exchange if elastic else outer_step, elastic or diloco or steps + 1, delay, keeps)
    if way == "plain":
        for number, (x, y) in enumerate(DataLoader(dataset, batch_sampler=list(plain_batches(epochs)))):
            loss = criterion(model(x), y) / accumulate
            loss.backward()
            losses.append(float(loss.detach()))
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                if schedule is not None:
                    schedule.step()
                exchanges.after(number + 1)
        exchanges.end()
    else:
        with dbelief.join() as job:
            sync = dbelief.torch.Sync(job, model, *[] if own else [optimizer])
            pushes = pushes_of(sync) if "pushes" in more else []
            loader = DataLoader(dataset, batch_sampler=job.sampler(dataset, BATCH), num_workers=workers)
            for number, (x, y) in enumerate(loader):
                loss = criterion(model(x), y) / accumulate
                loss.backward()
                losses.append(float(loss.detach()))
                if (number + 1) % accumulate == 0:
                    if own:
                        optimizer.step()
                        optimizer.zero_grad()
                    sync.step(loss, samples=accumulate * BATCH)
                    if evaluates:
                        sync.evaluate(lambda model, data: 0.0)
                    if schedule is not None:
                        schedule.step()
        (folder / "pushes.json").write_text(json.dumps(pushes))
    torch.save(model.state_dict(), folder / f"{way}.pt")
    (folder / f"{way}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
