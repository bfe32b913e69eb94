"""Metrics of models that classify, from the outputs of the last layer before softmax, (n, k), and labels, (n,).

All sums are in float64. Each costs O(n k), `auc` O(k n log n).
"""

from __future__ import annotations

import math

import numpy as np

BINS = 15
"""Bins of `calibration_error`, as of Guo et al. 2017."""


def auc(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Area under the receiver operating characteristic; of more than two classes the mean over one against the rest.

    It is the share of pairs of a sample of the class and one of another in which the former has the greater
    probability; ties count half (Hanley and McNeil 1982). A class that has no sample, or all, does not count; NaN where
    none counts.
    """
    classes = outputs.shape[1]
    if classes == 2:  # probabilities would round what differs in the outputs to ties
        return _area(outputs[:, 1].astype(np.float64) - outputs[:, 0], labels == 1)
    probabilities = np.exp(_log_probabilities(outputs))
    areas = [_area(probabilities[:, label], labels == label) for label in range(classes)]
    known = [area for area in areas if not math.isnan(area)]
    return math.fsum(known) / len(known) if known else math.nan


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    count = int(positive.sum())
    if count in (0, len(positive)):
        return math.nan
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2  # of equal scores the mean of their ranks, from 1
    above = float(ranks[place][positive].sum()) - count * (count + 1) / 2
    return above / (count * (len(positive) - count))


def log_loss(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the negative logarithm of the right class's probability, in nats."""
    return -float(_log_probabilities(outputs)[np.arange(len(labels)), labels].mean())


def perplexity(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Exp of `log_loss`; infinity where that is too large."""
    loss = log_loss(outputs, labels)
    return math.exp(loss) if loss < 709 else math.inf


def top(count: int, outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of samples whose class is among the `count` with the greatest outputs; of equal outputs the first."""
    right = outputs[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(outputs.shape[1])[None, :] < labels[:, None]
    before = (outputs > right) | ((outputs == right) & earlier)
    return float((before.sum(axis=1) < count).mean())


def calibration_error(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Expected calibration error: by how much the probability of the chosen class differs from its accuracy, 0 to 1.

    Samples are put into bins of equal width by that probability; the result is the mean difference, weighted by the
    samples in a bin (Guo et al. 2017, equation 3).
    """
    probabilities = np.exp(_log_probabilities(outputs))
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    difference = np.bincount(place, confidence, BINS) - np.bincount(place, right, BINS)
    return float(np.abs(difference).sum() / len(labels))


def _log_probabilities(outputs: np.ndarray) -> np.ndarray:
    wide = outputs.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: np.ndarray = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result
