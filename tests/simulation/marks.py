"""A model whose parameters count: how often each sample was applied, and how many samples each process has pushed.

The vector has `ROWS` segments of 1,024 numbers, all alike: first a number for each sample, then one for each process of
the simulation. A gradient has 1 for each sample of its mini-batch, and the size of the mini-batch for the process that
computes it. With plain SGD at rate 1 the parameters are these counts, negated, and exact.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

ROWS = 4
LENGTH = 1_024
SAMPLES = 240
"""Training samples; fewer than `PROCESSES`."""
PROCESSES = 512
"""Where the counts of processes begin, and how many there are."""
MODEL = Path(__file__)


class Marker:
    """The simulation, as the model sees it.

    Attributes
    ----------
    process
        Number of the process that computes.
    compute
        Called for each mini-batch: passes simulated time.
    """

    process: Callable[[], int] = staticmethod(lambda: 0)
    compute: Callable[[], None] = staticmethod(lambda: None)


marker = Marker()


class CountingModel:
    """See the module."""

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """All zeros."""
        return {"marks": np.zeros((ROWS, LENGTH), np.float32)}

    def loss_and_gradient(self, views: dict[str, np.ndarray], batch: object, out: dict[str, np.ndarray]) -> float:
        """Loss 1, and the counts of this mini-batch."""
        from tests.simulation.marks import marker  # of the simulation: this file is run again as a user's model

        marker.compute()
        marks = out["marks"]
        marks[:] = 0
        samples = batch.inputs[:, 0].astype(int)  # type: ignore[attr-defined]
        marks[:, samples] = 1
        marks[:, PROCESSES + marker.process()] = len(samples)
        return 1.0

    def evaluate(self, views: dict[str, np.ndarray], batch: object) -> tuple[float, None]:
        """Loss 1 for each sample."""
        return float(len(batch)), None  # type: ignore[arg-type]


model = CountingModel()


def write_data(file: Path) -> None:
    """Write the samples: each is its own number."""
    numbers = {"train": SAMPLES, "validation": 4, "test": 4}
    arrays = {}
    for name, count in numbers.items():
        arrays[f"{name}_inputs"] = np.arange(count, dtype=np.float32)[:, None]
        arrays[f"{name}_targets"] = np.zeros((count, 1), np.float32)
    np.savez(file, **arrays)
