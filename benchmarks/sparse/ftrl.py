"""Logistic regression by FTRL-Proximal in one process, in NumPy: McMahan et al. 2013, "Ad Click Prediction: a View from
the Trenches", Algorithm 1, with a mini-batch in the place of a sample: g is the sum of its gradients.

z and n are dense float64 arrays by key, and w is made of them when it is needed. The bias has Adagrad, which is FTRL
without penalties and beta.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dbelief.data.bags import SparseBatch


class FtrlSetting(NamedTuple):
    """alpha, beta, lambda_1 and lambda_2 of the paper; alpha is the rate of the bias too."""

    rate: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0


class FtrlModel:
    """Weights of keys 0 ... `keys` - 1, and a bias, all 0 before the first step."""

    def __init__(self, keys: int, setting: FtrlSetting) -> None:
        self._setting = setting
        self._z, self._n = np.zeros((2, keys))
        self.bias = self._squares = 0.0

    def weights(self, keys: np.ndarray) -> np.ndarray:
        """(n,) float64 weights of (n,) keys."""
        rate, beta, l1, l2 = self._setting
        z, n = self._z[keys], self._n[keys]
        least = -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / rate + l2)
        return np.where(np.abs(z) <= l1, 0.0, least)

    def logits(self, batch: SparseBatch) -> np.ndarray:
        """(n,) float64 logits of the samples."""
        bag = batch.bags["features"]
        return self._logits(self.weights(bag.keys) * bag.values, _samples_of(batch), len(batch))

    def step(self, batch: SparseBatch) -> None:
        """Train on a mini-batch. Cost: 0.1 us for each of its keys."""
        bag, samples = batch.bags["features"], _samples_of(batch)
        keys, places = np.unique(bag.keys, return_inverse=True)
        w = self.weights(keys)
        logits = self._logits(w[places] * bag.values, samples, len(batch))
        errors = 1 / (1 + np.exp(-logits)) - (batch.labels > 0)
        g = np.bincount(places, errors[samples] * bag.values, keys.size)
        n = self._n[keys]
        squares = n + g * g
        self._z[keys] += g - (np.sqrt(squares) - np.sqrt(n)) / self._setting.rate * w
        self._n[keys] = squares
        slope = float(errors.sum())
        self._squares += slope * slope
        if self._squares:
            self.bias -= self._setting.rate * slope / self._squares**0.5

    def _logits(self, parts: np.ndarray, samples: np.ndarray, n: int) -> np.ndarray:
        return self.bias + np.bincount(samples, parts, n)


def _samples_of(batch: SparseBatch) -> np.ndarray:
    """(m,) number of the sample of each key."""
    bag = batch.bags["features"]
    return np.repeat(np.arange(len(batch)), np.diff(bag.offsets, append=bag.keys.size))
