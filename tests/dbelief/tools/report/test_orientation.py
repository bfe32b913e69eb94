"""Edge detection: Gabor functions pass; noise, blobs, plaids and principal components do not."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.tools.report.orientation import are_edges, shares_near_peak

SIZES = pytest.mark.parametrize("size", [8, 12, 16, 20])


def gabors(size: int, n: int = 200, channels: int = 1) -> np.ndarray:
    """Of all orientations, phases and places, a wave of 3 pixels to half the window under an envelope as wide."""
    rng = np.random.default_rng(4)
    y, x = np.mgrid[:size, :size][..., None]
    centre = rng.uniform(0.35 * size, 0.65 * size, (2, n))
    angle, phase = rng.uniform(0, np.pi, n), rng.uniform(0, 2 * np.pi, n)
    length, longer = rng.uniform(3, size / 2, n), rng.uniform(0.6, 1, n)
    sigma = length * rng.uniform(0.4, 0.7, n)
    along = (x - centre[1]) * np.cos(angle) + (y - centre[0]) * np.sin(angle)
    across = (y - centre[0]) * np.cos(angle) - (x - centre[1]) * np.sin(angle)
    waves = np.exp(-(along**2 + (longer * across) ** 2) / (2 * sigma**2)) * np.cos(2 * np.pi * along / length + phase)
    made: np.ndarray = waves.transpose(2, 0, 1)[..., None] * rng.uniform(0.5, 1, channels)
    return made


def correlated(size: int, n: int = 2000) -> np.ndarray:
    """Patches whose spectrum falls as that of photographs does: amplitude 1 / frequency."""
    rng, side = np.random.default_rng(5), 2 * size
    fy, fx = np.meshgrid(np.fft.fftfreq(side), np.fft.rfftfreq(side), indexing="ij")
    fall = 1 / np.maximum(np.hypot(fy, fx), 1 / side)
    noise = np.fft.rfft2(rng.standard_normal((n, side, side)))
    patches: np.ndarray = np.fft.irfft2(noise * fall, (side, side))[:, :size, :size]
    return patches


@SIZES
def test_gabors_pass(size: int) -> None:
    assert are_edges(gabors(size)).all()
    assert are_edges(gabors(size, channels=3)).all()
    assert shares_near_peak(gabors(size)).min() > 0.85


@SIZES
def test_white_noise_fails(size: int) -> None:
    noise = np.random.default_rng(6).standard_normal((500, size, size, 1))
    assert not are_edges(noise).any()
    assert np.median(shares_near_peak(noise)) < 0.35


@SIZES
def test_principal_components_mostly_fail(size: int) -> None:
    patches = correlated(size).reshape(-1, size * size)
    components = np.linalg.eigh(np.cov(patches.T))[1].T.reshape(-1, size, size, 1)
    assert are_edges(components).mean() <= 0.3


def test_blobs_plaids_and_nothing_fail() -> None:
    y, x = np.mgrid[:16, :16] - 7.5
    blob = np.exp(-(x**2 + y**2) / 18)
    plaid = blob * (np.cos(1.2 * x) + np.cos(1.2 * y))
    ring = blob * (1 - (x**2 + y**2) / 18)
    filters = np.stack([blob, plaid, ring, np.zeros_like(blob)])[..., None]
    assert not are_edges(filters).any()
    assert shares_near_peak(filters)[[0, 3]].tolist() == [0, 0]


def test_scale_and_sign_do_not_count() -> None:
    filters = np.concatenate([gabors(12, 20), np.random.default_rng(7).standard_normal((20, 12, 12, 1))])
    np.testing.assert_allclose(shares_near_peak(-7 * filters), shares_near_peak(filters), rtol=1e-9)


def test_filters_that_are_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 pixels"):
        are_edges(np.zeros((1, 65, 8, 1)))
