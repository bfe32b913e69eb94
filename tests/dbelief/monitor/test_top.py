"""The screen of `dbelief top`: members sorted by speed, curves as bars, no more lines than fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.monitor.top import bytes_per_s, sparkline, whole
from tests.dbelief.monitor.test_live_view import BATCH, ROUNDS, status
from tests.terminal import shown


def worker(number: int, rate: float, **other: Any) -> dict[str, Any]:
    row = {"id": number, "role": "worker", "state": "training", "samples": 1000 * number, "staleness": 0.5}
    return {**row, "last_seen_s": 0.25, "samples_per_s": rate, "straggler": False, **other}


def shard(number: int, **other: Any) -> dict[str, Any]:
    row = {"id": number, "role": "ps", "state": "serving", "samples": None, "staleness": None, "last_seen_s": 75.0}
    rates = {"pushes_per_s": 12.5, "bytes_per_s": 2.5e6, "segments": 4, "parameters": 123_456, "follows": False}
    return {**row, **rates, **other}


def drawn(height: int = 40, **other: Any) -> list[str]:
    return shown(whole(status(**other), height), height=height)


def test_the_fastest_come_first_and_the_gone_last() -> None:
    members = [
        shard(0),
        worker(0, 100.0),
        worker(1, 900.0, state="died"),
        worker(2, 10.0, straggler=True),
        worker(3, 300.0),
    ]
    rows = [line.split() for line in drawn(members=members)]
    at = rows.index(["replica", "state", "samples/s", "samples", "staleness", "last", "seen"])
    assert [row[:3] for row in rows[at + 1 : at + 5]] == [
        ["3", "training", "300"],
        ["0", "training", "100"],
        ["2", "straggling", "10"],
        ["1", "died", "900"],
    ]
    assert rows[-1] == ["0", "serving", "12.5", "2.5", "MB/s", "4", "123,456", "1:15"]


def test_a_job_in_lockstep_shows_its_rounds() -> None:
    rows = [line.split() for line in drawn(members=[worker(0, 1.0)], rounds=ROUNDS)]
    assert any(row[:3] == ["round", "1,200", "of"] for row in rows)
    assert ["replica", "state", "samples/s", "samples", "age", "last", "seen"] in rows


def test_curves_are_bars_with_their_ends() -> None:
    curves = {
        "loss": {"over": "samples", "x": [1, 2, 3], "y": [2.0, 1.0, 0.5]},
        "validation_accuracy": {"over": "samples", "x": [1], "y": [0.875]},
        "validation_loss": {"over": "samples", "x": [1], "y": [0.4]},
    }
    text = drawn(members=[worker(0, 1.0)], curves=curves)
    assert any(line.split() == ["loss", "█▃▁", "2", "→", "0.5"] for line in text)
    assert any(line.split() == ["validation", "▁", "87.50%", "→", "87.50%"] for line in text)
    assert not any("validation loss" in line for line in text), "it says nothing that accuracy does not"


def test_remaining_time_is_shown_where_known() -> None:
    text = drawn(members=[], eta_s=125.0)
    assert text[3].split()[-2:] == ["elapsed", "left"]
    assert text[4].split()[-1] == "2:05"
    assert "left" not in drawn(members=[], eta_s=None)[3]


@pytest.mark.parametrize("batch", [None, BATCH])
@pytest.mark.parametrize(("shards", "workers"), [(500, 500), (1, 500), (500, 1), (6, 6)])
def test_many_members_are_counted_where_they_do_not_fit(
    batch: dict[str, Any] | None, shards: int, workers: int
) -> None:
    members = [shard(number) for number in range(shards)] + [worker(number, 1.0) for number in range(workers)]
    text = drawn(24, members=members, batch=batch)
    assert len(text) <= 24
    assert sum("more" in line for line in text) == (shards > 6) + (workers > 6)


@given(st.lists(st.floats(-1e6, 1e6), max_size=300))
@example([0.0, 2.2e-311])
def test_sparkline_is_bounded_and_spans_its_values(values: list[float]) -> None:
    drawn = sparkline(values, 48)
    assert len(drawn) == min(48, len(values))
    if len(values) <= 48 and max(values, default=0) - min(values, default=0) > 1e-3:
        assert drawn[values.index(min(values))] == "▁"
        assert drawn[values.index(max(values))] == "█"


def test_rates_of_bytes() -> None:
    rates = [0, 1, 999, 1000, 2.5e6, 3e15, None]
    assert [bytes_per_s(rate) for rate in rates] == [
        "0 B/s", "1 B/s", "999 B/s", "1 kB/s", "2.5 MB/s", "3 PB/s", "–",
    ]  # fmt: skip
