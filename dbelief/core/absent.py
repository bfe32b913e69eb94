"""Numbers that took no part in a push: ranges of a vector, which the rule leaves as they are.

Ranges are one tuple: start, stop, start, stop, ..., strictly rising, so that no two of them touch. Usually there are
none. torch has no gradient (None) for a parameter that took no part, which is not the same as a gradient of 0: by that
a rule decays, and moves by its momentum.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator

from dbelief.core.layout import Kind, RankPart, SegmentSpan

Ranges = tuple[int, ...]
Missed = tuple[tuple[int, int, int], ...]
"""(start, stop, count), rising and disjoint: how many steps these numbers have missed; 0 where they are in none."""

EVERYTHING: Ranges = (0, (1 << 64) - 1)
"""Of a push in which no trained parameter took part, such as the step that a loss scaler leaves out."""
MOST = 1 << 16
"""Limit of the numbers in a push's ranges."""
FEW = 1 << 11
"""Numbers in ranges that fit into one packet, beside what else it holds."""


def checked(ranges: Iterable[int]) -> Ranges:
    """Ranges as received.

    Raises
    ------
    ValueError
        They do not rise, the last has no end, or there are too many.
    """
    known = tuple(ranges)
    if len(known) > MOST:
        raise ValueError(f"{len(known) // 2:,} ranges that took no part, and a push can have {MOST // 2:,}")
    if len(known) % 2 or any(known[i] >= known[i + 1] for i in range(len(known) - 1)):
        raise ValueError(f"{len(known)} numbers that are no rising starts and stops of ranges")
    return known


def joined(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges of rising (start, stop) that do not overlap; touching ones are joined, empty ones left out."""
    ranges: list[int] = []
    for start, stop in pairs:
        if start == stop:
            continue
        if ranges and ranges[-1] == start:
            ranges[-1] = stop
        else:
            ranges += start, stop
    return tuple(ranges)


def of_tensors(part: RankPart, names: Collection[str]) -> Ranges:
    """Ranges of the flat vector that hold these trained tensors; `EVERYTHING` where there is no other one."""
    if not names:
        return ()
    trained = [(box.name, box.size, start) for box, start in zip(part.boxes, part.starts, strict=True) if not box.kind]
    if all(name in names for name, _, _ in trained):
        return EVERYTHING
    own = ((part.start + start, size) for name, size, start in trained if name in names)
    return joined((start, start + size) for start, size in own)


def within(ranges: Ranges, start: int, stop: int) -> Ranges:
    """The portion of ranges in [start, stop), counted from `start`."""
    first, last = bisect_right(ranges, start), bisect_left(ranges, stop)
    if start == stop or (first == last and not first % 2):
        return ()
    inside = (*(start,) * (first % 2), *ranges[first:last], *(stop,) * (last % 2))
    return tuple([at - start for at in inside])


def present(ranges: Ranges, start: int, stop: int) -> Iterator[slice]:
    """The rest of [start, stop), counted from `start`."""
    edges = 0, *within(ranges, start, stop), stop - start
    return (slice(*pair) for pair in zip(edges[::2], edges[1::2], strict=True) if pair[0] < pair[1])


def in_segment(ranges: Ranges, span: SegmentSpan) -> Ranges:
    """The portion of ranges in a segment, counted from its first number: only trained numbers can be absent."""
    return within(ranges, span.start, span.stop) if ranges and span.kind is Kind.TRAINED else ()


def covers(ranges: Ranges, length: int) -> bool:
    """Whether all of [0, length) is in these ranges."""
    return len(ranges) == 2 and ranges[0] == 0 and ranges[1] >= length


def pairs(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Each range's start and stop."""
    return zip(ranges[::2], ranges[1::2], strict=True)


def common(many: Iterable[Ranges]) -> Ranges:
    """Numbers that are in all of these ranges; at least one of them is given."""
    first, *others = many
    for other in others:
        parts = ((start, within(other, start, stop)) for start, stop in pairs(first))
        first = joined((start + at, start + end) for start, part in parts for at, end in pairs(part))
    return first
