"""Log-mel energies of speech: the output of a filter bank with equal steps of pitch, 100 times a second.

Samples x from -1 to 1 are cut into windows of 25 ms, one every 10 ms, and weighted with a Hamming window. For each
window the power spectrum |X(f)|^2 is computed, X the discrete Fourier transform of a power-of-two length (zero-padded),
and then the energies

    E_k = log(sum over f of H_k(f) |X(f)|^2 + FLOOR)

The filters H_k are triangles in f: 0 at edge k, 1 at edge k + 1, 0 at edge k + 2. The edges are equally spaced in
mel = 2595 log10(1 + f / 700 Hz), from 0 Hz to half the sampling rate.

A network's input is a frame with its neighbours: `context` of 11 is the frame with 5 before it and 5 after it, as in
DistBelief's speech model (Dean et al. 2012, section 5: 11 frames of 40 log energies).
"""

from __future__ import annotations

import numpy as np

WINDOW_S = 0.025
STEP_S = 0.010
FILTERS = 40
CONTEXT = 11
FLOOR = 1e-8
"""Power: approximately the rounding noise of 16 bits in one window, so that silence has a logarithm."""


def log_mel(samples: np.ndarray, rate: int, filters: int = FILTERS) -> np.ndarray:
    """Return E of each window that is fully inside the samples.

    Parameters
    ----------
    samples : float64, shape (n,), from -1 to 1
        At least one window long.
    rate : int
        Samples a second, Hz.

    Returns
    -------
    float32, shape (1 + (n - window) // step, filters)
        Natural logarithms of power.
    """
    window, step = window_length(rate), round(STEP_S * rate)
    length = 1 << (window - 1).bit_length()
    windows = np.lib.stride_tricks.sliding_window_view(samples, window)[::step]
    power = np.abs(np.fft.rfft(windows * np.hamming(window), length)) ** 2
    energies: np.ndarray = np.log(power @ mel_filters(rate, length, filters) + FLOOR)
    return energies.astype(np.float32)


def window_length(rate: int) -> int:
    """Samples in a window."""
    return round(WINDOW_S * rate)


def mel_filters(rate: int, length: int, filters: int) -> np.ndarray:
    """Return H at the frequencies of a real transform of this length: float64, shape (length // 2 + 1, filters)."""
    highest = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, filters + 2) / 2595) - 1)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    frequency = np.fft.rfftfreq(length, 1 / rate)[:, None]
    rising, falling = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    made: np.ndarray = np.maximum(0, np.minimum(rising, falling))
    return made


def with_context(frames: np.ndarray, context: int = CONTEXT) -> np.ndarray:
    """Join each frame with its neighbours; the first and the last frame are repeated beyond the ends.

    Parameters
    ----------
    frames : float32, shape (n, filters)
    context : int
        Number of frames in a row, odd.

    Returns
    -------
    float32, shape (n, context * filters)
        In time order; a view, whose rows share memory.
    """
    beside = context // 2
    padded = np.pad(frames, ((beside, beside), (0, 0)), mode="edge")
    width = frames.shape[1]  # a row is a contiguous run of the frames
    return np.lib.stride_tricks.sliding_window_view(padded.reshape(-1), context * width)[::width]
