"""Quantities with units."""

from __future__ import annotations

import pytest

from dbelief.job.document.quantities import bytes_per_s, count, counts, seconds, step_seconds


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1e6", 1e6), ("200Mbit", 25e6), ("10 Gbit/s", 1.25e9), ("125MB", 125e6), ("8bit", 1.0), ("1.5kB/s", 1500.0)],
)
def test_rates(text: str, rate: float) -> None:
    assert bytes_per_s(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "1.2.3", "3x", "1e999", "Mbit", "nan", "."])
def test_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no rate"):
        bytes_per_s(text)


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("0.001", 1e-3),
        ("5ms", 5e-3),
        ("200 us", 2e-4),
        ("0", 0.0),
        ("1.5s", 1.5),
        ("2min", 120.0),
        ("3h", 10800.0),
        ("7d", 604800.0),
    ],
)
def test_times(text: str, time_s: float) -> None:
    assert seconds(text) == pytest.approx(time_s)


@pytest.mark.parametrize("text", ["", "-1", "5Ms", "ms", "1e999", "."])
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: wanted seconds"):
        seconds(text)


def test_a_mini_batch_takes_time() -> None:
    assert step_seconds("20ms") == pytest.approx(0.02)
    with pytest.raises(ValueError, match="'0s' is no time of a mini-batch"):
        step_seconds("0s")


@pytest.mark.parametrize(
    ("text", "number"), [("7", 7), ("25M", 25_000_000), ("1.3B", 1_300_000_000), ("0.5 G", 500_000_000), ("1.1k", 1100)]
)
def test_counts(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "0", "-3", "1.5", "25m", "1e999M", "0.0001k"])
def test_invalid_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no number: wanted a whole one"):
        count(text)


def test_counts_by_name() -> None:
    assert counts("user=10M, item = 20k") == {"user": 10_000_000, "item": 20_000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no count of one table: wanted such as user=10M,item=20k"),
        ("user", "'user' is no count"),
        ("user=5,", "'' is no count"),
        ("=5", "'=5' is no count"),
        ("user=5,user=6", "'user=6' is no count"),
        ("user=5.5", "'5.5' is no number"),
    ],
)
def test_invalid_counts_by_name_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        counts(text)
