"""Log-mel energies beside SciPy's spectrogram and a filter bank written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import get_window, spectrogram

from dbelief.data.preparation.mel import FLOOR, log_mel, mel_filters, window_length, with_context
from tests.examples import examples


def by_hand(samples: np.ndarray, rate: int, filters: int) -> np.ndarray:
    """The same by SciPy's spectrogram, and triangles drawn by interpolation."""
    window, step = rate // 40, rate // 100
    length = 2 ** math.ceil(math.log2(window))
    weights = get_window("hamming", window, fftbins=False)
    frequency, _, spectrum = spectrogram(
        samples, rate, weights, window, window - step, length, detrend=False, scaling="spectrum", mode="complex"
    )
    power = np.abs(spectrum * weights.sum()) ** 2
    top = 1127.01048 * math.log(1 + rate / 1400)  # the other usual way of writing mel
    edges = [700 * (math.exp(top * i / (filters + 1) / 1127.01048) - 1) for i in range(filters + 2)]
    energies = [np.interp(frequency, edges[k : k + 3], [0, 1, 0]) @ power for k in range(filters)]
    return np.log(np.array(energies).T + FLOOR)


@pytest.mark.parametrize(("rate", "filters"), [(8_000, 40), (8_000, 13), (16_000, 40)])
def test_against_scipy(rate: int, filters: int) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, rate // 2) * np.hanning(rate // 2)
    found = log_mel(samples, rate, filters)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_hand(samples, rate, filters), rtol=2e-6, atol=2e-5)


@examples(30)
@given(st.integers(200, 1200))
def test_a_frame_for_each_window_that_lies_inside(count: int) -> None:
    starts = [start for start in range(0, count, 80) if start + 200 <= count]
    assert log_mel(np.ones(count), 8_000).shape == (len(starts), 40)


def test_a_tone_is_loudest_where_its_pitch_lies() -> None:
    rate, edges = 8_000, 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 42) / 2595) - 1)
    for k in (5, 20, 35):
        tone = np.sin(2 * np.pi * edges[k + 1] * np.arange(rate) / rate)
        assert set(log_mel(tone, rate).argmax(axis=1)) == {k}


def test_silence_has_a_finite_energy() -> None:
    np.testing.assert_allclose(log_mel(np.zeros(200), 8_000), math.log(FLOOR), rtol=1e-6)


def test_filters_sum_to_one_between_the_outer_centres() -> None:
    filters = mel_filters(8_000, 256, 40)
    assert filters.shape == (129, 40)
    assert (filters.max(axis=0) > 0).all()  # none falls between two frequencies
    frequency, middles = np.arange(129) * 31.25, filters.argmax(axis=0)
    inside = (frequency > frequency[middles[0]]) & (frequency < frequency[middles[-1]])
    np.testing.assert_allclose(filters[inside].sum(axis=1), 1, rtol=1e-12)


def test_windows_are_25_ms() -> None:
    assert (window_length(8_000), window_length(16_000)) == (200, 400)


def test_context_repeats_the_ends() -> None:
    frames = np.arange(6, dtype=np.float32).reshape(3, 2)
    seen = with_context(frames, 5)
    assert seen.dtype == np.float32
    assert seen.tolist() == [
        [0, 1, 0, 1, 0, 1, 2, 3, 4, 5],
        [0, 1, 0, 1, 2, 3, 4, 5, 4, 5],
        [0, 1, 2, 3, 4, 5, 4, 5, 4, 5],
    ]
    assert with_context(frames[:1], 11).tolist() == [[0, 1] * 11]
