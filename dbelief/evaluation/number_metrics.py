"""Metrics of models whose targets are numbers, from outputs and targets, both (n, k). All sums are in float64."""

from __future__ import annotations

import math

import numpy as np


def mae(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean absolute error over all numbers, in the targets' unit."""
    return float(np.abs(_errors(outputs, targets)).mean())


def rmse(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Root of the mean squared error over all numbers, in the targets' unit."""
    return math.sqrt(float(np.square(_errors(outputs, targets)).mean()))


def r2(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Coefficient of determination: 1 less the squared error over the targets' variance; the mean over the k targets.

    A target that is constant does not count; NaN where none counts.
    """
    residual = np.square(_errors(outputs, targets)).sum(axis=0)
    wide = targets.astype(np.float64)
    total = np.square(wide - wide.mean(axis=0)).sum(axis=0)
    varies = total > 0
    return float((1 - residual[varies] / total[varies]).mean()) if varies.any() else math.nan


def _errors(outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    wide: np.ndarray = outputs.astype(np.float64)
    wide -= targets
    return wide
