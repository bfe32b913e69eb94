"""Samples per second, as people see them."""

from __future__ import annotations

import pytest

from coordinator.monitoring.speed import Speed
from dbelief.process.clock import ManualClock


def test_speed_is_that_of_the_last_seconds() -> None:
    clock = ManualClock()
    speed = Speed(clock, window_s=5.0)
    assert speed.per_second() == 0.0
    samples = 0
    for rate in [100] * 20 + [10] * 20:
        speed.note(samples)
        clock.advance(1.0)
        samples += rate
    speed.note(samples)
    assert speed.per_second() == pytest.approx(10.0)


def test_speed_without_time_is_nothing() -> None:
    speed = Speed(ManualClock())
    speed.note(0)
    speed.note(100)
    assert speed.per_second() == 0.0


def test_the_mean_is_from_the_first_sample_to_the_last() -> None:
    clock = ManualClock()
    speed = Speed(clock, window_s=5.0)
    for samples in [0] * 10 + [100, 200, 300] + [300] * 20:
        assert speed.mean() == pytest.approx(100.0 if samples else 0.0) or samples == 100
        speed.note(samples)
        clock.advance(1.0)
    assert speed.per_second() == 0.0
    assert speed.mean() == pytest.approx(100.0)
