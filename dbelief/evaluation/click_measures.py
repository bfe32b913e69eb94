"""Measures of predicted probabilities of clicks that are sums, so that those of several workers add up: AUC, log loss,
calibration, overall and by slice.

The AUC is that of a histogram. A bin has predictions whose logit, ln p / (1 - p), lies in an interval of 32 / bins
between -16 and 16; pairs of a click and another sample in one bin count as ties. With p_b and n_b the shares of clicks
and of other samples in bin b, the AUC of the histogram and the exact one differ by at most

    sum over b of p_b n_b / 2                                                                          (auc_error)

That is at most 16 d / bins, where of one class no interval of logits of length L has more than a share of d L, and none
is beyond 16: with 65,536 bins below 1e-4 for d up to 0.4, which normal logits of a standard deviation of 1 or more
have. Of continuous scores the order within a bin is almost random, so that errors cancel: 2,048 bins are then as good
as that (10,000 samples of each class, standard deviation 1).

All sums are whole numbers: weights, predictions and losses in units of 2^-24. Their order does not matter, to the bit,
and they may be a buffer of a module, of which a job adds up the changes of all replicas (or takes their mean, where
replicas wait for each other: weights are those of one, measures those of all). A push has 16 bytes for each number of
it: with 2,048 bins 66 KB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

BINS = 1 << 16
UNIT = float(1 << 24)
"""Of the sums, for 1."""
LEAST = 2.0**-23
"""A probability is taken as at least that, and at most 1 less that, in the log loss: float32's epsilon."""
_LOGIT = 16.0
_MOST = float(1 << 34)
_SUMS = 4


class SliceMeasures(NamedTuple):
    """Measures of one slice of the samples.

    Attributes
    ----------
    weight
        Sum of the samples' weights; of weights 1 their number.
    clicks
        Share of clicks, 0 to 1.
    predicted
        Mean prediction.
    calibration
        Mean prediction over share of clicks, 1 at best; NaN without a click.
    log_loss
        Mean of -ln of the probability of what happened.
    """

    weight: float
    clicks: float
    predicted: float
    calibration: float
    log_loss: float


class ClickMeasures:
    """Sums over predictions and labels, and the measures that follow from them.

    For progressive validation a sample is added with the prediction that was made before it was trained on.

    Parameters
    ----------
    bins
        Of the histogram; a power of two.
    slices
        Names of the slices, by which `add` is given their places.
    state : int64, shape (size(bins, slices),), optional
        Sums to go on from; `add` and `merge` write to it. None: no samples yet.

    Raises
    ------
    ValueError
        The number of bins is no power of two, a slice is named twice, or the state has another type or length.
    """

    def __init__(self, bins: int = BINS, slices: Sequence[str] = (), state: np.ndarray | None = None) -> None:
        if bins < 2 or bins & (bins - 1):
            raise ValueError(f"bins is {bins}, must be a power of two, 2 or more")
        if isinstance(slices, str) or len(set(slices)) < len(slices):
            raise ValueError(f"slices is {slices!r}, must be names, each once")
        self.bins, self.slices, size = bins, tuple(slices), self.size(bins, slices)
        self.state = np.zeros(size, np.int64) if state is None else state
        self._check_state(self.state)

    @staticmethod
    def size(bins: int = BINS, slices: Sequence[str] = ()) -> int:
        """Numbers of a state, of 8 bytes each."""
        return 2 * bins + _SUMS * (1 + len(slices))

    def add(self, predictions: Any, labels: Any, weights: Any = None, slices: Any = None) -> None:
        """Add samples. Cost: 0.2 us each in mini-batches of 256.

        Parameters
        ----------
        predictions : floats, shape (n,)
            Probabilities of a click, 0 to 1.
        labels : shape (n,)
            1: a click; 0 or -1: none.
        weights : floats, shape (n,), optional
            0 or more; they are rounded to multiples of 2^-24. None: 1 each.
        slices : whole numbers, shape (n,), optional
            Place of each sample's slice in `slices`; -1: in none. None: all are in none.

        Raises
        ------
        ValueError
            Lengths differ, a number is none of those, or all weights add up to more than 2^34; nothing is added then.
        """
        p, clicks, weight = _checked(predictions, labels, weights)
        places = np.full(p.size, -1) if slices is None else np.asarray(slices)
        if places.shape != p.shape or places.dtype.kind not in "iu":
            raise ValueError(f"slices are {places.dtype} of shape {places.shape}, must be {p.size} whole numbers")
        if p.size and not -1 <= places.min() <= places.max() < len(self.slices):
            raise ValueError(f"a slice is {places.min()} or {places.max()}, must be -1 to {len(self.slices) - 1}")
        units = np.rint(weight * UNIT).astype(np.int64)
        self._check_weight(weight.sum())
        with np.errstate(divide="ignore"):
            logit = np.log(p) - np.log1p(-p)
        place = ((np.clip(logit, -_LOGIT, _LOGIT) + _LOGIT) * (self.bins / (2 * _LOGIT))).astype(np.int64)
        np.minimum(place, self.bins - 1, out=place)
        np.add.at(self.state, place + np.where(clicks, 0, self.bins), units)
        losses = -np.log(np.clip(np.where(clicks, p, 1 - p), LEAST, 1 - LEAST))
        parts = (units, np.where(clicks, units, 0), np.rint(p * units), np.rint(losses * units))
        sums, own = np.stack(parts, axis=1, dtype=np.int64, casting="unsafe"), places >= 0
        self._sums()[0] += sums.sum(axis=0)
        np.add.at(self._sums(), places[own] + 1, sums[own])

    def merge(self, state: np.ndarray) -> None:
        """Add the sums of another worker, of as many bins and slices; in any order the result is the same, to the bit.

        Parameters
        ----------
        state
            That of its measures.

        Raises
        ------
        ValueError
            It has another type or length, or weights add up to more than 2^34.
        """
        self._check_state(state)
        self._check_weight(state[2 * self.bins] / UNIT)
        self.state += state

    @property
    def auc(self) -> float:
        """Area under the ROC curve; NaN where all samples are of one class."""
        clicks, others = self._histogram()
        total = clicks.sum() * others.sum()
        below = np.cumsum(others) - others
        return float((clicks * (below + others / 2)).sum() / total) if total else math.nan

    @property
    def auc_error(self) -> float:
        """The most by which `auc` may differ from the exact one; NaN where all samples are of one class."""
        clicks, others = self._histogram()
        total = clicks.sum() * others.sum()
        return float((clicks * others).sum() / (2 * total)) if total else math.nan

    @property
    def overall(self) -> SliceMeasures:
        """Measures of all samples; NaN where there are none."""
        return _measures(self._overall())

    @property
    def by_slice(self) -> dict[str, SliceMeasures]:
        """Measures of each slice by its name; NaN where it has no samples."""
        return {name: _measures(sums) for name, sums in zip(self.slices, self._sums()[1:], strict=True)}

    def _histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Weight of the clicks and of the others in each bin: float64, shape (bins,) each."""
        wide = self.state[: 2 * self.bins].astype(np.float64) / UNIT
        return wide[: self.bins], wide[self.bins :]

    def _sums(self) -> np.ndarray:
        """(1 + slices, 4) weight, clicks, predictions and losses, overall and by slice; a view."""
        return self.state[2 * self.bins :].reshape(-1, _SUMS)

    def _overall(self) -> np.ndarray:
        sums: np.ndarray = self._sums()[0]
        return sums

    def _check_weight(self, more: float) -> None:
        """Refuse more weight than sums of 63 bits have room for: a loss is 16 at most."""
        if self._overall()[0] / UNIT + more > _MOST:
            raise ValueError(f"weights add up to more than {_MOST:,.0f}")

    def _check_state(self, state: np.ndarray) -> None:
        size = self.size(self.bins, self.slices)
        if not isinstance(state, np.ndarray) or state.dtype != np.int64 or state.shape != (size,):
            found = f"{state.dtype} of shape {state.shape}" if isinstance(state, np.ndarray) else type(state).__name__
            raise ValueError(f"the state is {found}, must be int64 of shape ({size},)")


def _checked(predictions: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, whether each sample is a click, and weights: (n,) float64, bool and float64."""
    p, found = np.asarray(predictions).astype(np.float64), np.asarray(labels)
    weight = np.ones(p.shape) if weights is None else np.asarray(weights).astype(np.float64)
    if p.ndim != 1 or found.shape != p.shape or weight.shape != p.shape:
        raise ValueError(
            f"predictions, labels and weights have shapes {p.shape}, {found.shape} and {weight.shape}, must have one "
            "shape, (n,)"
        )
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"a prediction is {p[~((p >= 0) & (p <= 1))][0]:g}, must be a probability, 0 to 1")
    if not (known := np.isin(found, (-1, 0, 1))).all():
        raise ValueError(f"a label is {found[~known][0]}, must be 1, or 0 or -1")
    if not ((weight >= 0) & (weight < np.inf)).all():
        raise ValueError(f"a weight is {weight[~((weight >= 0) & (weight < np.inf))][0]:g}, must be 0 or more")
    return p, found == 1, weight


def _measures(sums: np.ndarray) -> SliceMeasures:
    weight, clicks, predicted, loss = (sums / UNIT).tolist()
    means = [total / weight if weight else math.nan for total in (clicks, predicted, loss)]
    return SliceMeasures(weight, means[0], means[1], predicted / clicks if clicks else math.nan, means[2])
