"""Samples drawn from a seed: clusters to classify, or a noisy linear map to fit."""

from collections.abc import Collection

import numpy as np

from dbelief.job import SyntheticData

from .dataset import Dataset
from .formats.npz import Pair, dataset
from .splits import cut, cut_sizes

SHARES = (0.1, 0.1)
"""Shares of all samples, for validation and test."""


def load_synthetic(spec: SyntheticData, need: Collection[str]) -> Dataset:
    """Draw all samples and split them 80 / 10 / 10 percent; float32.

    classes: x = centre of its class + noise * N(0, 1), with centres from N(0, 1); classes have the same size,
    to within one sample. regression: y = x . w + noise * N(0, 1), of shape (n, 1), with x from N(0, 1) and
    w from N(0, 1/features), so that y has a variance of about 1 before the noise.
    """
    rng = np.random.Generator(np.random.PCG64(spec.seed))
    inputs, targets = _classes(spec, rng) if spec.kind == "classes" else _regression(spec, rng)
    labels = targets if targets.ndim == 1 else None
    parts = cut(spec.samples, labels, *SHARES, "synthetic", spec.seed)
    sets = {name: (inputs[rows], targets[rows]) for name, rows in vars(parts).items()}
    return dataset(sets, "synthetic", need)


def synthetic_sizes(spec: SyntheticData) -> tuple[int, int, int]:
    """Samples of the three sets."""
    classes = min(spec.classes, spec.samples) if spec.kind == "classes" else None
    return cut_sizes(spec.samples, classes, *SHARES, "synthetic")


def _classes(spec: SyntheticData, rng: np.random.Generator) -> Pair:
    centres = rng.standard_normal((spec.classes, spec.features), np.float32)
    labels = rng.permutation(np.arange(spec.samples) % spec.classes).astype(np.int64)
    inputs = rng.standard_normal((spec.samples, spec.features), np.float32)
    inputs *= np.float32(spec.noise)
    inputs += centres[labels]
    return inputs, labels


def _regression(spec: SyntheticData, rng: np.random.Generator) -> Pair:
    weight = rng.standard_normal(spec.features) / np.sqrt(spec.features)
    inputs = rng.standard_normal((spec.samples, spec.features), np.float32)
    # In float64: rounding to float32 then almost always removes differences from a machine's order of summation.
    targets = inputs.astype(np.float64) @ weight + spec.noise * rng.standard_normal(spec.samples)
    return inputs, targets.astype(np.float32)[:, None]
