"""Test for edge filters: one orientation, and one band of spatial frequencies.

The criterion is the share of a filter's power spectrum |F(fx, fy)|^2, summed over channels, that is near its peak:
within an octave of the peak's frequency, up or down, and within 30 degrees of its orientation (an orientation and its
opposite are the same). Frequency 0 is within an octave of no other frequency, so a filter that responds to brightness
fails, as does one with two orientations.

A Gabor function has more than 90 % there, white noise of 8 x 8 pixels and more about 30 %. The principal components of
photographs are waves that fill the window, and most of them are two crossed waves.
"""

from __future__ import annotations

import numpy as np

OCTAVES, DEGREES, SHARE = 1.0, 30.0, 0.7
_SIDE = 64  # of the spectrum: filters are zero-padded, so that a peak between two frequencies is found


def shares_near_peak(filters: np.ndarray) -> np.ndarray:
    """Share of each filter's power that is near its spectrum's peak.

    Parameters
    ----------
    filters : (n, height, width, channels)
        Sides of at most 64 pixels.

    Returns
    -------
    float64, shape (n,), from 0 to 1
        0 for a filter whose peak is at frequency 0, or that is 0.
    """
    if max(filters.shape[1:3]) > _SIDE:
        raise ValueError(f"filters are {filters.shape[1:3]}, must be at most {_SIDE} pixels in each direction")
    frequencies = np.fft.fftfreq(_SIDE)
    radius = np.hypot(*np.meshgrid(frequencies, frequencies, indexing="ij"))
    angle = np.arctan2(*np.meshgrid(frequencies, frequencies, indexing="ij"))
    with np.errstate(divide="ignore"):
        octave = np.log2(radius)
    return np.array([_share(one, octave, angle) for one in filters])


def are_edges(filters: np.ndarray) -> np.ndarray:
    """Which of the filters (n, height, width, channels) have their power in one band and one orientation."""
    return shares_near_peak(filters) >= SHARE


def _share(one: np.ndarray, octave: np.ndarray, angle: np.ndarray) -> float:
    spectrum = np.fft.fft2(one.astype(np.float64), (_SIDE, _SIDE), axes=(0, 1))
    power = (spectrum.real**2 + spectrum.imag**2).sum(axis=-1)
    peak = np.unravel_index(power.argmax(), power.shape)
    if peak == (0, 0):
        return 0.0
    band = abs(octave - octave[peak]) <= OCTAVES
    turned = np.cos(2 * (angle - angle[peak])) >= np.cos(2 * np.radians(DEGREES))
    return float(power[band & turned].sum() / power.sum())
