"""Whole jobs in one process, on NumPy or on the stand-in for CuPy: what they trained, and what a step allocates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.evaluation.evaluate import evaluate
from tests.device.standin.machine import Machine
from tests.equivalence.in_process import whole_job
from worker.pipeline.batches import BatchLoader

JOB = """
name: small
model: {model}
data: {{source: digits}}
strategy: {strategy}
limits: {limits}
evaluate: {{every: null, keep: last}}
output: {folder}
shards: 2
replicas: {replicas}
grid: {grid}
device: {device}
seed: 1
"""
BATCH = 50

WARM_UP = 8
"""Mini-batches of a rank until every buffer, and every list of addresses of one, is made."""


@dataclass(frozen=True)
class Example:
    """A job, but for what it computes on."""

    model: str
    strategy: str
    limits: str = "{samples: 700}"
    grid: str = "[1]"
    replicas: int = 1

    @property
    def ranks(self) -> int:
        """Of a replica."""
        return int(self.grid.strip("[]"))

    def run(self, folder: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> dict[str, np.ndarray]:
        """Train; the model."""
        folder.mkdir()
        fields = {**vars(self), "folder": folder, "device": device}
        return load_file(whole_job(JOB.format(**fields), folder, monkeypatch) / "model.safetensors")


def of_layers(*layers: str) -> str:
    """A model of classes."""
    return f"{{layers: [{', '.join(layers)}], loss: softmax_cross_entropy}}"


def by(name: str, rule: str = "{name: adagrad, rate: 0.05}", **fields: Any) -> str:
    """A strategy with a rule."""
    rest = "".join(f", {key}: {value}" for key, value in fields.items())
    return f"{{name: {name}, batch: {BATCH}, rule: {rule}{rest}}}"


BATCHES = "{name: sandblaster, portion: 300, iterations: 3}"
"""A batch method."""

DENSE = of_layers("{dense: 48}", "tanh", "{dense: 24}", "relu", "{dense: 10}")


@dataclass
class Steps:
    """What mini-batches asked of memory, but for those that come first or follow an evaluation.

    Attributes
    ----------
    fresh
        Bytes that came from the driver, by mini-batch.
    largest
        Bytes of the largest request for a device's memory, by mini-batch.
    """

    fresh: list[int] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)

    @classmethod
    def watched(cls, machine: Machine, ranks: int, monkeypatch: pytest.MonkeyPatch) -> Steps:
        """Count from now on; of so many ranks."""
        steps, take = cls(), BatchLoader.__call__
        requests = [machine.memory.requests[device] for device in range(machine.devices)]
        fresh, made, warm, evaluating = 0, [0] * machine.devices, 0, 0

        def since() -> tuple[int, int]:
            nonlocal fresh
            new = [size for all_of, seen in zip(requests, made, strict=True) for size in all_of[seen:]]
            grown, fresh, made[:] = (
                machine.memory.fresh.total() - fresh,
                machine.memory.fresh.total(),
                map(len, requests),
            )
            return grown, max(new, default=0)

        def taken(self: BatchLoader, *where: int) -> Any:
            nonlocal warm
            grown, largest = since()
            warm += 1
            if warm > WARM_UP * ranks and not evaluating:  # another worker may be at it
                steps.fresh.append(grown)
                steps.largest.append(largest)
            return take(self, *where)

        def evaluated(*arguments: Any) -> Any:
            nonlocal warm, evaluating
            evaluating += 1
            found = evaluate(*arguments)
            warm, evaluating = 0, evaluating - 1
            since()
            return found

        monkeypatch.setattr(BatchLoader, "__call__", taken)
        monkeypatch.setattr("worker.replica.evaluate", evaluated)
        return steps
