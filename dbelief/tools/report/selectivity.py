"""Selectivity of a neuron for one class of images: the best accuracy of a threshold on its response.

After Coates et al. 2013, section 5.2, and Le et al. 2012. A neuron classifies an image as positive where its response
is above a threshold. Accuracy is computed as if the set had the share pi of positive images of Le et al.'s set, 13,026
faces among 37,000 images:

    accuracy(t) = pi TPR(t) + (1 - pi) TNR(t)

Coates et al., footnote 6, report 13,026 faces and 37,000 others; but the 64.8 % that they report for a guess are
23,974 of 37,000. W and -W have the same objective, so a neuron may also be positive below its threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import RenderableType
from rich.table import Table

SHARE = 13_026 / 37_000
"""pi: positive images in the test set of Le et al. 2012."""

HALVINGS = 10
"""Number of random splits of the images in two halves, each of which is used once to choose a neuron on."""

STEPS = 20
"""Thresholds of Le et al. 2012, equally spaced between a neuron's smallest and largest response."""


_AT_ONCE = 1_000_000  # responses that are sorted together


@dataclass(frozen=True)
class BestThresholds:
    """The best threshold of each neuron; all of shape (neurons,).

    Attributes
    ----------
    accuracy : float64, from 0 to 1
    threshold : float64
        A response above it is positive; infinite where no response, or every response, should be.
    sign : float64
        1, or -1 where the negative response is compared.
    """

    accuracy: np.ndarray
    threshold: np.ndarray
    sign: np.ndarray


def exact(
    responses: np.ndarray, positive: np.ndarray, share: float = SHARE, signs: Sequence[int] = (1, -1)
) -> BestThresholds:
    """The best of all thresholds: responses are sorted, and each threshold between two of them is tested.

    Parameters
    ----------
    responses : (n, neurons)
    positive : bool, (n,)
        Must contain both values.
    share
        pi.
    signs
        (1, -1), or (1,) for "positive above the threshold" alone.

    Notes
    -----
    n log n steps for each neuron; memory for a few neurons at a time. The accuracy is invariant under any increasing
    function of a response.
    """
    some = max(1, _AT_ONCE // len(responses))
    parts = [
        _better([_sorted_scan(sign * responses[:, at : at + some], positive, share, sign) for sign in signs])
        for at in range(0, responses.shape[1], some)
    ]
    fields = zip(*((part.accuracy, part.threshold, part.sign) for part in parts), strict=True)
    return BestThresholds(*(np.concatenate(field) for field in fields))


def spaced(
    responses: np.ndarray,
    positive: np.ndarray,
    share: float = SHARE,
    signs: Sequence[int] = (1, -1),
    steps: int = STEPS,
) -> BestThresholds:
    """The best of equally spaced thresholds, the smallest and the largest response among them; arguments as `exact`."""
    found = []
    for sign in signs:
        signed = sign * responses
        for threshold in np.linspace(signed.min(axis=0), signed.max(axis=0), steps):
            right = accuracy(signed, positive, threshold, share)
            found.append(BestThresholds(right, threshold, np.full(len(right), float(sign))))
    return _better(found)


def accuracy(responses: np.ndarray, positive: np.ndarray, threshold: np.ndarray, share: float = SHARE) -> np.ndarray:
    """Accuracy of neurons with thresholds (neurons,) on responses (n, neurons): (neurons,) from 0 to 1."""
    above = responses > threshold
    hits, false = above[positive].mean(axis=0), above[~positive].mean(axis=0)
    right: np.ndarray = share * hits + (1 - share) * (1 - false)
    return right


def judged(best: BestThresholds, responses: np.ndarray, positive: np.ndarray, share: float = SHARE) -> np.ndarray:
    """Accuracy of thresholds that were found on other images: (neurons,)."""
    return accuracy(best.sign * responses, positive, best.threshold, share)


def _sorted_scan(responses: np.ndarray, positive: np.ndarray, share: float, sign: int) -> BestThresholds:
    order = np.argsort(-responses, axis=0, kind="stable")
    values, hit = np.take_along_axis(responses, order, axis=0), positive[order]
    n, neurons = responses.shape
    none = np.zeros((1, neurons), np.int64)
    hits = np.concatenate([none, np.cumsum(hit, axis=0)])
    false = np.concatenate([none, np.cumsum(~hit, axis=0)])
    right = share * (hits / positive.sum()) + (1 - share) * (1 - false / (n - positive.sum()))
    right[1:-1][values[1:] == values[:-1]] = -1  # a threshold cannot separate equal responses
    place, column = right.argmax(axis=0), np.arange(neurons)
    edges = np.concatenate([np.full((1, neurons), np.inf), values, np.full((1, neurons), -np.inf)])
    upper, lower = edges[place, column], edges[place + 1, column]
    inner = np.isfinite(upper) & np.isfinite(lower)
    with np.errstate(invalid="ignore"):
        middle = np.where(inner, lower + (upper - lower) / 2, np.where(np.isfinite(lower), np.inf, -np.inf))
    threshold = np.where(inner & (middle >= upper), lower, middle)  # the middle of neighbours may round to one
    return BestThresholds(right[place, column], threshold, np.full(neurons, float(sign)))


def _better(found: Sequence[BestThresholds]) -> BestThresholds:
    """The best threshold of each neuron in several results; of equal ones the first."""
    rights = np.stack([one.accuracy for one in found])
    which, column = rights.argmax(axis=0), np.arange(rights.shape[1])
    thresholds, signs = (np.stack(values) for values in zip(*((one.threshold, one.sign) for one in found), strict=True))
    return BestThresholds(rights[which, column], thresholds[which, column], signs[which, column])


@dataclass(frozen=True)
class Selectivity:
    """Selectivity of one network's neurons for one class.

    Attributes
    ----------
    label, images, positive
        The class, the number of all images, and of images of the class.
    exact, spaced : BestThresholds
        On all images.
    apart : float
        Held-out accuracy: of the best neuron on one half of the images, with its threshold and sign, on the other half;
        the mean over random halves. The other accuracies are measured on the same images that the best is chosen on.
    """

    label: int
    images: int
    positive: int
    exact: BestThresholds
    spaced: BestThresholds
    apart: float

    def best(self, count: int) -> list[tuple[int, int, float]]:
        """Neuron, sign and accuracy of the best `count` neurons, the best first."""
        order = np.argsort(-self.exact.accuracy, kind="stable")[:count]
        return [(int(k), int(self.exact.sign[k]), float(self.exact.accuracy[k])) for k in order]


def selectivity(responses: np.ndarray, labels: np.ndarray) -> list[Selectivity]:
    """Selectivity of neurons for every class against all others; of two classes, for class 1 only.

    Parameters
    ----------
    responses : (n, neurons)
    labels : int, (n,)
        From 0; at least two images of each class.
    """
    classes = range(int(labels.max()) + 1)
    return [_of_class(responses, labels == label, label) for label in (classes if len(classes) > 2 else (1,))]


def _of_class(responses: np.ndarray, positive: np.ndarray, label: int) -> Selectivity:
    rng, kinds = np.random.default_rng(0), (np.flatnonzero(positive), np.flatnonzero(~positive))
    apart = []
    for _ in range(HALVINGS):
        first = np.zeros(len(positive), bool)
        for kind in kinds:
            first[rng.permutation(kind)[: len(kind) // 2]] = True
        apart += [_of_other_half(responses, positive, half) for half in (first, ~first)]
    every = exact(responses, positive), spaced(responses, positive)
    return Selectivity(label, len(positive), len(kinds[0]), *every, float(np.mean(apart)))


def _of_other_half(responses: np.ndarray, positive: np.ndarray, half: np.ndarray) -> float:
    """Accuracy on the other half of the neuron that is best on `half`."""
    best = exact(responses[half], positive[half])
    return float(judged(best, responses[~half], positive[~half])[best.accuracy.argmax()])


def selectivity_table(random: Sequence[Selectivity], trained: Sequence[Selectivity]) -> RenderableType:
    """Table of both networks' best neurons and a guess: Table 2 of Coates et al. 2013."""
    table = Table(
        title="the best neuron separates a class from all others", title_justify="left", box=None, pad_edge=False
    )
    for column in ("class", "threshold", "guess", "random network", "trained"):
        table.add_column(column, justify="left" if column in ("class", "threshold") else "right")
    for before, after in zip(random, trained, strict=True):
        rights = {
            "the best": [test.exact.accuracy.max() for test in (before, after)],
            f"of {STEPS}": [test.spaced.accuracy.max() for test in (before, after)],
            "of the other half": [before.apart, after.apart],
        }
        for way, pair in rights.items():
            percent = [f"{100 * right:.1f} %" for right in (max(SHARE, 1 - SHARE), *pair)]
            about = f"{after.label} ({after.positive:,} of {after.images:,} images)"
            table.add_row(about if way == "the best" else "", way, *percent)
    return table
