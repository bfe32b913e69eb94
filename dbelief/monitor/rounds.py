"""Text of a job's rounds for displays, from the figures of `dbelief.rundir.summary.RoundFigures` as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbelief.monitor.format import NONE, number, percent, si


def late_word(status: Mapping[str, Any]) -> tuple[str, str]:
    """How late a job's pushes are: the name of the figure, and its unit."""
    return ("age", "rounds") if status.get("rounds") else ("staleness", "versions")


def round_rows(rounds: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values, one pair for each line of a table."""
    return [
        ("rounds", f"{rounds['rounds']:,}, of {number(rounds['pushes_per_round'], '.2f')} replicas"),
        ("late pushes", _late(rounds)),
        ("bytes a sample", _moved(rounds)),
        ("computing", f"{percent(rounds['computing'], '.0f')} of the replicas' time"),
    ]


def round_line(rounds: Mapping[str, Any]) -> str:
    """The figures in one line."""
    done = f"round {rounds['rounds']:,} of {number(rounds['pushes_per_round'], '.2f')} replicas"
    moved = _moved(rounds, ("out", "in"))
    return f"{done}, {rounds['late_pushes']:,} late; computing {percent(rounds['computing'], '.0f')}; a sample {moved}"


def _late(rounds: Mapping[str, Any]) -> str:
    late = f"{rounds['late_pushes']:,}"
    return late if rounds["late_age"] is None else f"{late}, by {rounds['late_age']:.2f} rounds on average"


def _moved(rounds: Mapping[str, Any], ways: tuple[str, str] = ("sent", "received")) -> str:
    sent, received = rounds["sent_per_sample"], rounds["received_per_sample"]
    return NONE if sent is None or received is None else f"{si(sent, 'B')} {ways[0]}, {si(received, 'B')} {ways[1]}"
