"""Quantities with units, as options of commands and job files give them: rates, times, counts, and counts by name."""

from __future__ import annotations

import math
import re

_RATE = re.compile(r"([0-9.]+(?:e[-+]?[0-9]+)?) *(?:([kMGT]?)(bit|B)(?:/s)?)?", re.ASCII)
_TIME = re.compile(r"([0-9.]+(?:e[-+]?[0-9]+)?) *(us|ms|s|min|h|d)?", re.ASCII)
_COUNT = re.compile(r"([0-9.]+(?:e[-+]?[0-9]+)?) *([kMGB]?)", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def bytes_per_s(text: str) -> float:
    """A rate: bytes a second, or with a unit such as 200Mbit, 1Gbit, 125MB.

    Raises
    ------
    ValueError
        The text is not a rate above 0.
    """
    found = _RATE.fullmatch(text.strip())
    rate = _number(found)
    if found is None or not rate:
        raise ValueError(f"{text!r} is no rate: wanted bytes a second, or a unit such as 200Mbit, 1Gbit or 125MB")
    factor = 1e3 ** " kMGT".index(found[2] or " ")
    return rate * factor / (8 if found[3] == "bit" else 1)


def seconds(text: str) -> float:
    """A time: seconds, or with a unit: 5ms, 200us, 0.2s, 1min, 12h, 7d.

    Raises
    ------
    ValueError
        The text is not a time of 0 or more.
    """
    found = _TIME.fullmatch(text.strip())
    time_s = _number(found)
    if found is None or time_s is None:
        raise ValueError(f"{text!r} is no time: wanted seconds, or a unit such as 5ms, 200us or 0.2s")
    return time_s * _SECONDS[found[2] or "s"]


def step_seconds(text: str) -> float:
    """A time above 0, as `seconds`."""
    if not (time_s := seconds(text)):
        raise ValueError(f"{text!r} is no time of a mini-batch: wanted one above 0, such as 200ms")
    return time_s


def count(text: str) -> int:
    """A number of things: 356170, 25M, 1.3G or 1.3B (both 10^9).

    Raises
    ------
    ValueError
        The text is not a whole number above 0.
    """
    found = _COUNT.fullmatch(text.strip())
    number = _number(found)
    exact = 0.0 if found is None or number is None else number * _COUNTS[found[2]]
    if not exact or not math.isclose(exact, round(exact)):
        raise ValueError(f"{text!r} is no number: wanted a whole one above 0, such as 356170, 25M or 1.3B")
    return round(exact)


def counts(text: str) -> dict[str, int]:
    """Numbers of things by name: user=10M,item=20k.

    Raises
    ------
    ValueError
        A part has no name or no number, or a name is there twice.
    """
    found = dict[str, int]()
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if not (name and equals) or name in found:
            raise ValueError(f"{part!r} is no count of one table: wanted such as user=10M,item=20k")
        found[name] = count(number)
    return found


def _number(found: re.Match[str] | None) -> float | None:
    """The number in front of a unit; None where there is none, or it is not finite."""
    if found is None or found[1].count(".") > 1 or found[1].startswith(".e") or found[1] == ".":
        return None
    value = float(found[1])
    return value if math.isfinite(value) else None
