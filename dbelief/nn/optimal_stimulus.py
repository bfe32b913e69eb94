"""The image of length 1 that a neuron answers to most (Coates et al. 2013, section 5.2, after Le et al. 2012).

    x* = argmax of f(x) over |x| = 1

by gradient ascent on the sphere: with the part of the gradient along x taken away, g, a step goes to x + t g, scaled to
length 1, and t is halved until f has grown by a third of t |g|^2 at least (Armijo's rule); a step that was taken makes
the next one start at twice its t. So f never falls. A third keeps t where it is best for a linear f, within a factor of
two: there |g| shrinks by half or more with each step. A search ends where |g| is small beside f's whole slope, or no t
helps.
Neurons that look through several stacks have more than one top: each is sought from several starts. A search begins at
the gradient of a start, which is 0 where the neuron sees nothing: contrast normalisation makes f nearly blind to the
length of what it sees, so that noise elsewhere would cost nearly nothing, and stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ENOUGH = 1 / 3
"""Of the growth that the slope promises, which a step must keep."""
NEAR = 1e-7
"""A search ends where |g| is below this part of the whole gradient's length."""

Function = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From images (m, ...) and a neuron for each, (m,), to responses (m,) and their gradients (m, ...)."""


@dataclass(frozen=True)
class Stimuli:
    """Attributes: images (n, ...) of length 1, responses (n,), and `history`, (steps + 1, starts n), of all starts."""

    images: np.ndarray
    responses: np.ndarray
    history: np.ndarray


def optimal_stimuli(
    of: Function,
    neurons: np.ndarray,
    starts: np.ndarray,
    steps: int = 200,
    signs: np.ndarray | None = None,
) -> Stimuli:
    """Of each neuron the best of what is found from all starts.

    Parameters
    ----------
    neurons : int, (n,)
    starts : float, (starts, ...)
        Images whose gradients are where searches begin, the same for every neuron; of any length but 0.
    steps
        At most so many.
    signs : (n,), optional
        -1 for a neuron whose least response is sought; responses are then negative ones.

    Notes
    -----
    All neurons and starts are one batch: one gradient a step, and one more for each time that some t is halved.
    """
    n, s = len(neurons), len(starts)
    which = np.tile(neurons, s)
    sign = np.ones(n * s) if signs is None else np.tile(signs.astype(float), s)

    def value_and_slope(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = of(x, which)
        return sign * values, _times(sign.astype(x.dtype), slopes)

    x = _unit(value_and_slope(_unit(np.repeat(starts, n, axis=0)))[1])
    value, slope = value_and_slope(x)
    t = 1 / np.maximum(_length(slope), np.finfo(x.dtype).tiny)
    history, moving = [value], np.ones(len(x), bool)
    for _ in range(steps):
        g = slope - _times(_along(slope, x), x)
        moving &= _length(g) > NEAR * _length(slope)
        if not moving.any():
            break
        x, value, slope, t, stuck = _stepped(value_and_slope, x, value, slope, g, t, moving)
        moving &= ~stuck
        history.append(value)
    best = value.reshape(s, n).argmax(axis=0) * n + np.arange(n)
    return Stimuli(x[best], value[best], np.stack(history))


def _stepped(
    of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    x: np.ndarray,
    value: np.ndarray,
    slope: np.ndarray,
    g: np.ndarray,
    t: np.ndarray,
    waiting: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One step of all that wait: x, value, slope, t, and who has found no t that helps, and stays where it is."""
    squares, waiting, t = _along(g, g), waiting.copy(), t.copy()
    for _ in range(20):
        tried = _unit(x + _times(t, g))
        values, slopes = of(tried)
        good = waiting & (values >= value + ENOUGH * t * squares) & (values > value)
        x, slope = (np.where(_like(good, old), new, old) for new, old in ((tried, x), (slopes, slope)))
        value = np.where(good, values, value)
        waiting &= ~good
        t = np.where(good, 2 * t, np.where(waiting, t / 2, t)).astype(t.dtype)
        if not waiting.any():
            break
    return x, value, slope, t, waiting


def _like(rows: np.ndarray, images: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, *(1,) * (images.ndim - 1))


def _times(factors: np.ndarray, images: np.ndarray) -> np.ndarray:
    product: np.ndarray = _like(factors, images) * images
    return product.astype(images.dtype, copy=False)


def _along(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Inner product of each image with its like."""
    products: np.ndarray = np.einsum("ij,ij->i", one.reshape(len(one), -1), other.reshape(len(other), -1))
    return products


def _length(images: np.ndarray) -> np.ndarray:
    lengths: np.ndarray = np.sqrt(_along(images, images))
    return lengths


def _unit(images: np.ndarray) -> np.ndarray:
    return _times(1 / np.maximum(_length(images), np.finfo(images.dtype).tiny), images)
