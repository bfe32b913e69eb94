"""Interleaved timing, and medians of rows that belong to one case."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Row = dict[str, Any]


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """What one call takes by this clock."""
    began_s = clock()
    call()
    return clock() - began_s


def processor_s() -> float:
    """Processor time of all children that have ended, and of those that these waited for, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def interleaved(items: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """(round, item), every other round in reverse order, so that other load on the machine affects all items."""
    for number in range(rounds):
        for item in items[::-1] if number % 2 else items:
            yield number, item


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by their values of these keys, in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def medians(rows: Sequence[Row], *keys: str) -> Row:
    """The median over the rows of each of these keys."""
    return {key: statistics.median(row[key] for row in rows) for key in keys}
