"""Whitened images for unsupervised learning: equal power at all frequencies, and equal contrast.

The amplitude of photographs falls as 1 / |f| with the spatial frequency f (cycles a pixel), which is what a layer would
learn first. Each photograph is filtered by

    |f| exp(-(|f| / f0)^4)

(Olshausen and Field, Nature 1996, with f0 = 0.4 to remove the grid's noise; here 0.7, which is nearly the grid's own
corner, so that no direction among images is empty: neurons that reduce their activity would converge there).
Channels are then decorrelated without rotation (ZCA). Images are cut at random positions, the same number from each
photograph; the mean of each is subtracted and it is divided by sqrt(variance + 0.1), a photograph's variance being 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dbelief.errors import DataError
from dbelief.process.atomic_file import atomic_write

F0 = 0.7
CONTRAST = 0.1
BORDER = 8  # pixels: the filter treats a photograph as a torus, whose opposite sides are adjacent


def whitened(photograph: np.ndarray) -> np.ndarray:
    """Filter (height, width, channels) float64; afterwards each channel has mean 0 and variance 1, unless constant.

    A constant channel becomes 0.
    """
    height, width, _ = photograph.shape
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    gain = frequency * np.exp(-((frequency / F0) ** 4))
    spectrum = np.fft.rfft2(photograph, axes=(0, 1)) * gain[..., None]
    filtered: np.ndarray = np.fft.irfft2(spectrum, (height, width), axes=(0, 1))
    size = filtered.std(axis=(0, 1))
    filtered /= np.where(size > 1e-9, size, 1)
    return filtered


def uncorrelated(photographs: list[np.ndarray]) -> list[np.ndarray]:
    """Multiply by C^(-1/2), C the channels' covariance over all photographs (each (height, width, channels))."""
    pixels = sum(photograph[..., 0].size for photograph in photographs)
    covariance = sum(np.einsum("yxc,yxd->cd", photograph, photograph) for photograph in photographs) / pixels
    values, vectors = np.linalg.eigh(covariance)
    turn = vectors / np.sqrt(np.maximum(values, 1e-6)) @ vectors.T
    return [photograph @ turn for photograph in photographs]


def cut_images(photographs: list[np.ndarray], images: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Images of size x size pixels at random positions, from the photographs in rotation.

    Returns
    -------
    float32, shape (images, size, size, channels)

    Raises
    ------
    DataError
        The photographs are too small.
    """
    low = min(min(photograph.shape[:2]) for photograph in photographs)
    border = min(BORDER, (low - size) // 2)
    if border < 0:
        raise DataError(f"images of {size} x {size} pixels do not fit into photographs of {low} pixels")
    made = np.empty((images, size, size, photographs[0].shape[-1]), np.float32)
    for place in range(images):
        photograph = photographs[place % len(photographs)]
        y, x = (int(rng.integers(border, side - size - border + 1)) for side in photograph.shape[:2])
        image = photograph[y : y + size, x : x + size]
        image = image - image.mean()
        made[place] = image / np.sqrt(image.var() + CONTRAST)
    return made


def write_images(
    photographs: Iterable[np.ndarray], path: Path, images: int, size: int, seed: int = 0
) -> tuple[int, tuple[int, ...]]:
    """Whiten photographs, cut images, and write an .npz file that the source `npz` reads; reproducible for a seed.

    Targets are the photographs' numbers as float32 (images, 1); unsupervised learning does not use them.

    Returns
    -------
    (photographs, shape of the images)

    Raises
    ------
    DataError
    """
    made = uncorrelated([whitened(photograph) for photograph in photographs])
    cut = cut_images(made, images, size, np.random.default_rng(seed))
    number = (np.arange(images) % len(made)).astype(np.float32)[:, None]
    with atomic_write(path) as file:
        np.savez(file, inputs=cut, targets=number)
    return len(made), cut.shape
