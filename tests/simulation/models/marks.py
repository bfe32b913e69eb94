"""Models of the simulation: one whose parameters count what was applied, and one that learns.

The counting model: how often each sample was applied, and how many samples each process has pushed.

The vector has `ROWS` segments of 1,024 numbers, all alike: first a number for each sample, then one for each process of
the simulation. A gradient has 1 for each sample of its mini-batch, and the size of the mini-batch for the process that
computes it. With plain SGD at rate 1 the parameters are these counts, negated, and exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.core.push import Push

Rows = tuple[np.ndarray, np.ndarray]
"""(n,) int64 keys of a table, each once, and (n, width) float32 of their rows, or gradients."""
ROWS = 3
LENGTH = 1_024
SAMPLES, TEST_SAMPLES = 204, 4
"""Training samples, fewer than `PROCESSES`; and samples of the other sets."""
PROCESSES = 896
"""Where the counts of processes begin, and how many there are."""
MODEL = Path(__file__)


class Marker:
    """The simulation, as the model sees it.

    Attributes
    ----------
    process
        Number of the process that computes.
    compute, evaluate
        Called for each mini-batch, with its samples, and for each set that is evaluated: pass simulated time.
    pushed
        Called with each push that brings rows of tables, before it is sent: by table its keys and their gradients.
    """

    process: Callable[[], int] = staticmethod(lambda: 0)
    compute: Callable[[np.ndarray], None] = staticmethod(lambda samples: None)
    evaluate: Callable[[], None] = staticmethod(lambda: None)
    pushed: Callable[[Push, Mapping[str, Rows]], None] = staticmethod(lambda push, rows: None)


marker = Marker()


class CountingModel:
    """See the module."""

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """All zeros."""
        return {"marks": np.zeros((ROWS, LENGTH), np.float32)}

    def loss_and_gradient(self, views: dict[str, np.ndarray], batch: object, out: dict[str, np.ndarray]) -> float:
        """Loss 1, and the counts of this mini-batch."""
        from tests.simulation.models.marks import marker  # of the simulation: this file is run again as a user's model

        samples = batch.inputs[:, 0].astype(int)  # type: ignore[attr-defined]
        marker.compute(samples)
        mark(out["marks"], samples, marker.process())
        return 1.0

    def evaluate(self, views: dict[str, np.ndarray], batch: object) -> tuple[float, None]:
        """Loss 1 for each sample."""
        from tests.simulation.models.marks import marker

        marker.evaluate()
        return float(len(batch)), None  # type: ignore[arg-type]


def mark(marks: np.ndarray, samples: np.ndarray, process: int) -> None:
    """Write the gradient of a mini-batch, (`ROWS`, `LENGTH`), that a process computes."""
    marks[:] = 0
    marks[:, samples] = 1
    marks[:, PROCESSES + process] = len(samples)


class Bowl:
    """Loss: the sum of log cosh(w - t), with t the mean over the mini-batch of the samples' numbers, below 1."""

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Numbers that are not small."""
        return {"marks": rng.normal(0, 3, (ROWS, LENGTH)).astype(np.float32)}

    def loss_and_gradient(self, views: dict[str, np.ndarray], batch: object, out: dict[str, np.ndarray]) -> float:
        """Loss, and its gradient."""
        from tests.simulation.models.marks import marker

        marker.compute(batch.inputs[:, 0].astype(int))  # type: ignore[attr-defined]
        away = views["marks"] - batch.inputs.mean() / SAMPLES  # type: ignore[attr-defined]
        np.tanh(away, out=out["marks"])
        return float(np.log(np.cosh(away)).sum())

    def evaluate(self, views: dict[str, np.ndarray], batch: object) -> tuple[float, None]:
        """Sum of the losses."""
        from tests.simulation.models.marks import marker

        marker.evaluate()
        return bowl_loss(views["marks"], batch.inputs) * len(batch), None  # type: ignore[arg-type, attr-defined]


def bowl_loss(marks: np.ndarray, samples: np.ndarray) -> float:
    """Loss of a `Bowl` over some samples."""
    return float(np.log(np.cosh(marks - samples.mean() / SAMPLES)).sum())


counts, bowl = CountingModel(), Bowl()


def inputs(count: int) -> np.ndarray:
    """The samples of a set, (count, 1) float32: each is its own number."""
    return np.arange(count, dtype=np.float32)[:, None]


def write_data(file: Path) -> None:
    """Write all sets."""
    numbers = {"train": SAMPLES, "validation": TEST_SAMPLES, "test": TEST_SAMPLES}
    arrays: dict[str, Any] = {}
    for name, count in numbers.items():
        arrays[f"{name}_inputs"] = inputs(count)
        arrays[f"{name}_targets"] = np.zeros((count, 1), np.float32)
    np.savez(file, **arrays)
