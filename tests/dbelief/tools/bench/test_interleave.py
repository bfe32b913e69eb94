"""Ways take turns, and ratios are taken within a round."""

from collections.abc import Iterator

import pytest

from dbelief.tools.bench.interleave import FEWEST, ROUND_TRIP, SOCKET, WARM_UP, figures, percentiles, rounds


class Scripted:
    """A way whose operations take 1, 2, 3 ... seconds; it records them."""

    def __init__(self, name: str, turns: tuple[str, ...], noted: list[str]) -> None:
        self.name, self.turns, self._noted = name, turns, noted
        self._seconds: Iterator[float] = iter(range(1, 100))

    def prepare(self, size: int) -> None:
        """Nothing to do."""

    def turn(self, what: str) -> float:
        self._noted.append(f"{self.name} {what}")
        return next(self._seconds)


def test_every_way_runs_once_per_round_after_warm_up() -> None:
    noted: list[str] = []
    seconds = rounds([Scripted("a", ("pull", "push"), noted), Scripted("b", ("copy",), noted)], 2)
    order = ["a pull", "a push", "b copy"]
    assert noted == [*order[::-1], *order] * ((WARM_UP + 2) // 2)
    assert {key: len(taken) for key, taken in seconds.items()} == {("a", "pull"): 2, ("a", "push"): 2, ("b", "copy"): 2}
    assert seconds["b", "copy"] == [WARM_UP + 1, WARM_UP + 2]


def test_no_further_round_begins_after_the_time_limit() -> None:
    seconds = rounds([Scripted("a", ("copy",), [])], 1000, limit_s=0.0)
    assert len(seconds["a", "copy"]) == FEWEST


def test_ratio_is_per_round_and_median_is_reported() -> None:
    seconds = {
        ("ours", "pull"): [2.0, 4.0, 8.0],
        ("ours", "push"): [2.0, 4.0, 8.0],
        ("ours", "exchange"): [4.0, 1.0, 5.0],
        (SOCKET, "pull"): [1.0, 4.0, 2.0],
        (SOCKET, "push"): [3.0] * 3,
        ("copy", "copy"): [0.5, 0.5, 0.5],
    }
    found = {(row["way"], row["what"]): row for row in figures(seconds, 4_000_000_000)}
    assert {key: row["x"] for key, row in found.items()} == {
        ("ours", "pull"): 0.5,  # 1/2, 4/4, 2/8
        ("ours", "push"): 0.75,
        ("ours", "exchange"): 1.0,  # 4/4, 7/1, 5/5
        ("ours", ROUND_TRIP): 0.875,  # 4/4, 7/8, 5/16; of the medians it would be 0.625
        (SOCKET, "pull"): 1.0,
        (SOCKET, "push"): 1.0,
        (SOCKET, ROUND_TRIP): 1.0,
        ("copy", "copy"): 4.0,
    }
    assert found["ours", "pull"]["p50_ms"] == 4000
    assert found["ours", "pull"]["gb_per_s"] == 1
    assert found["ours", ROUND_TRIP]["gb_per_s"] == 1, "as many bytes to as fro"
    assert found["ours", "exchange"]["gb_per_s"] == 2


def test_percentiles_are_in_milliseconds() -> None:
    assert percentiles([float(second) for second in range(101)]) == pytest.approx({"p50_ms": 50_000, "p99_ms": 99_000})
