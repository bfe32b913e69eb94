"""Test accuracy over time, computed after a run from the copies of the model that it has left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.faults.churn_torch_trainer import images

INPUTS, HIDDEN, CLASSES = 784, 256, 10
SIZES = (HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN, CLASSES)
"""Of weights and biases, in torch's order."""


@dataclass(frozen=True)
class Point:
    """The accuracy at a time of the monotonic clock, in percent."""

    at_s: float
    percent: float


class Evaluator:
    """Has the test set.

    Parameters
    ----------
    data
        Folder of the IDX files.
    """

    def __init__(self, data: Path) -> None:
        self._pixels, self._digits = images(data, "t10k")

    def percent(self, flat: np.ndarray) -> float:
        """Accuracy of a model whose parameters are a vector, in torch's order: weights have a row for each output."""
        w1, b1, w2, b2 = np.split(flat, np.cumsum(SIZES)[:-1])
        hidden = np.maximum(self._pixels @ w1.reshape(HIDDEN, INPUTS).T + b1, 0)
        digits = (hidden @ w2.reshape(CLASSES, HIDDEN).T + b2).argmax(1)
        return round(100 * float((digits == self._digits).mean()), 2)

    def course(self, folder: Path, until_percent: float) -> list[Point]:
        """Accuracies of the copies in a folder by time, up to the first that is as good; and of the last one."""
        found: list[Point] = []
        for path in copies(folder):
            found.append(self._point(path))
            if found[-1].percent >= until_percent:
                break
        return found + self.last(folder)

    def last(self, folder: Path) -> list[Point]:
        """Accuracy of the newest copy; empty where there is none."""
        return [self._point(path) for path in copies(folder)[-1:]]

    def _point(self, path: Path) -> Point:
        return Point(float(path.stem), self.percent(np.load(path)))


def copies(folder: Path) -> list[Path]:
    """Copies of the model in a folder, by time."""
    return sorted(folder.glob("*.npy"), key=lambda path: float(path.stem))
