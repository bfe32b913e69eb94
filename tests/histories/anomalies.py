"""Anomalies, each planted into a correct history: what a faulty system would have let its clients see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .reference import atomic, bounded, replicated

Line = dict[str, Any]

CALLS, CLIENTS = 1200, 4


def reads_of(lines: Sequence[Line]) -> list[Line]:
    """Calls that returned numbers, by start."""
    return sorted((line for line in lines if line.get("read") is not None), key=lambda line: float(line["start"]))


def _pushes(lines: Sequence[Line]) -> list[Line]:
    found = (line for line in lines if line.get("push") and line["end"] is not None)
    return sorted(found, key=lambda line: float(line["start"]))


def _exchanges(lines: Sequence[Line]) -> list[Line]:
    return [line for line in reads_of(lines) if line.get("exchange") is not None]


def _number(lines: Sequence[Line], push: Line) -> int:
    """Which of its client's pushes it is, from 1."""
    return sum(one["client"] == push["client"] and one["start"] <= push["start"] for one in lines if one.get("push"))


def _shift(lines: Sequence[Line], push: Line, by: int, after: float = -math.inf) -> None:
    """Let the reads that have a push, and began after this moment, have so many more of its client's."""
    number = _number(lines, push)
    for line in reads_of(lines):
        if line["start"] > after:
            line["read"][push["client"]] += by * (line["read"][push["client"]] >= number)


def _promotion(lines: Sequence[Line]) -> Line:
    return next(line for line in lines if line.get("promotion"))


# -- pushes and pulls ------------------------------------------------------------------------------------------------


def lost_push(lines: list[Line]) -> None:
    """An acknowledged push that no later read has."""
    _shift(lines, _pushes(lines)[300], -1)


def doubled_push(lines: list[Line]) -> None:
    """A push that every later read has twice."""
    _shift(lines, _pushes(lines)[300], 1)


def push_doubled_for_a_while(lines: list[Line]) -> None:
    """A push that one read has twice."""
    push = _pushes(lines)[300]
    next(line for line in reads_of(lines) if line["start"] > push["end"])["read"][push["client"]] += 1


def stale_pull(lines: list[Line]) -> None:
    """A read that returns what an earlier one did, though pushes were acknowledged between them."""
    reads_of(lines)[500]["read"] = list(reads_of(lines)[400]["read"])


def pull_from_the_future(lines: list[Line]) -> None:
    """A read that returns what a later one does."""
    reads_of(lines)[400]["read"] = list(reads_of(lines)[500]["read"])


def torn_pull(lines: list[Line]) -> None:
    """A read with one number of a later read."""
    reads_of(lines)[400]["read"][1] = reads_of(lines)[500]["read"][1]


def former_leader_returns(lines: list[Line]) -> None:
    """From some moment on all reads lack what was pushed just before it."""
    first, second = reads_of(lines)[450]["read"], reads_of(lines)[500]["read"]
    for line in reads_of(lines)[500:]:
        line["read"] = [n - (after - before) for n, before, after in zip(line["read"], first, second, strict=True)]


def unread_own_push(lines: list[Line]) -> None:
    """A client's own push that its next read does not have."""
    for line in reads_of(lines)[300:]:
        if line["read"][line["client"]]:
            line["read"][line["client"]] -= 1
            return


def invented_push(lines: list[Line]) -> None:
    """Pushes in a read, and their client has never made them."""
    reads_of(lines)[10]["read"][0] += 50


def effect_before_start(lines: list[Line]) -> None:
    """A push that a read has which ended before the push began."""
    push = _pushes(lines)[300]
    line = [line for line in reads_of(lines) if line["end"] < push["start"]][-1]
    line["read"][push["client"]] = _number(lines, push)


def effect_after_end(lines: list[Line]) -> None:
    """An acknowledged push that a read lacks which began after the acknowledgement."""
    push = _pushes(lines)[300]
    line = next(line for line in reads_of(lines) if line["start"] > push["end"])
    line["read"][push["client"]] = _number(lines, push) - 1


def reads_go_back(lines: list[Line]) -> None:
    """Two reads of one client, one after the other, with each other's numbers."""
    own = [line for line in reads_of(lines) if line["client"] == 2]
    first, second = own[100], own[105]
    first["read"], second["read"] = second["read"], first["read"]


def pending_push_twice(lines: list[Line]) -> None:
    """A push of a killed client, applied twice."""
    push = _pushes(lines)[-1]
    lines[:] = [line for line in lines if line["client"] != push["client"] or line["start"] <= push["start"]]
    push["end"] = push["read"] = None
    number = _number(lines, push)
    after = max(line["end"] for line in lines if line["end"] is not None)
    read = list(reads_of(lines)[-1]["read"])
    read[push["client"]] = number + 1
    reader = (push["client"] + 1) % CLIENTS
    lines.append({"client": reader, "segment": 0, "start": after + 1, "end": after + 2, "push": False, "read": read})


# -- exchanges -------------------------------------------------------------------------------------------------------


def centre_that_never_was(lines: list[Line]) -> None:
    """An exchange that returns a centre which never was."""
    _exchanges(lines)[200]["read"][0] += 2


def same_centre_twice(lines: list[Line]) -> None:
    """Two exchanges that return the same centre."""
    _exchanges(lines)[201]["read"] = list(_exchanges(lines)[200]["read"])


def centre_after_the_move(lines: list[Line]) -> None:
    """An exchange that returns the centre after its own effect, not before it."""
    line = _exchanges(lines)[200]
    line["read"] = [2 * line["exchange"] * (one == line["client"]) - number for one, number in enumerate(line["read"])]


def torn_centre(lines: list[Line]) -> None:
    """An exchange that returns half of one centre and half of the next."""
    first, second = _exchanges(lines)[200:202]
    first["read"][:2] = second["read"][:2]


def lost_exchange(lines: list[Line]) -> None:
    """An exchange whose effect no later call sees: all of them see the centre without it."""
    ends = sorted(_exchanges(lines), key=lambda line: float(line["end"]))
    gone = ends[200]
    for line in reads_of(lines):
        if line["start"] > gone["end"]:
            line["read"] = [
                2 * gone["exchange"] * (one == gone["client"]) - number for one, number in enumerate(line["read"])
            ]


def other_sides_value(lines: list[Line]) -> None:
    """An exchange that moved the centre towards another value than its client has sent."""
    _exchanges(lines)[200]["exchange"] += 1


def exchanged_answers(lines: list[Line]) -> None:
    """Two exchanges, one after the other, that return each other's centre."""
    first = _exchanges(lines)[200]
    second = next(line for line in _exchanges(lines) if line["start"] > first["end"])
    first["read"], second["read"] = second["read"], first["read"]


# -- promotions ------------------------------------------------------------------------------------------------------


def promotion_loses_acknowledged(lines: list[Line]) -> None:
    """A push that was acknowledged before the promotion, and gone after it."""
    window = _promotion(lines)
    push = [line for line in _pushes(lines) if line["end"] < window["start"]][-1]
    _shift(lines, push, -1, after=window["end"])


def acknowledged_then_undone(lines: list[Line]) -> None:
    """A push that was read and acknowledged before the promotion; the first read after it lacks the push."""
    window = _promotion(lines)
    push = [line for line in _pushes(lines) if line["end"] < window["start"]][-1]
    line = next(line for line in reads_of(lines) if line["start"] > window["end"])
    line["read"][push["client"]] = _number(lines, push) - 1


def doubled_by_the_promotion(lines: list[Line]) -> None:
    """A push that the follower had, and that was applied again when its client repeated it."""
    window = _promotion(lines)
    push = [line for line in _pushes(lines) if line["start"] < window["start"]][-1]
    _shift(lines, push, 1, after=window["end"])


def former_leader_answers(lines: list[Line]) -> None:
    """A pull that the former leader answers, long after the promotion."""
    window = _promotion(lines)
    old = [line for line in reads_of(lines) if line["end"] < window["start"]][-1]
    new = [line for line in reads_of(lines) if line["start"] > window["end"] + 2]
    new[5]["read"] = list(old["read"])


def undone_without_promotion(lines: list[Line]) -> None:
    """The same as a promotion may leave, and there was none."""
    lines.remove(_promotion(lines))
    lines += [
        {"client": 0, "segment": 0, "start": 1e6, "end": 1e6 + 9, "push": True, "read": None},
        *(
            {"client": 1, "segment": 0, "start": 1e6 + at, "end": 1e6 + at + 1, "push": False, "read": read}
            for at, read in zip((1, 3, 5), _seen_and_gone(lines), strict=True)
        ),
    ]


def _seen_and_gone(lines: Sequence[Line]) -> list[list[int]]:
    last = [sum(bool(line.get("push")) and line["client"] == client for line in lines) for client in range(CLIENTS)]
    return [[last[0] + seen, *last[1:]] for seen in (0, 1, 0)]


# -- staleness -------------------------------------------------------------------------------------------------------


def bound_exceeded(lines: list[Line]) -> None:
    """A pull that its shard answered before the slowest client had pushed the clock that it waits for."""
    line = next(line for line in reads_of(lines)[300:] if line["clock"] > line["staleness"] + 4)
    slow = (line["client"] + 1) % CLIENTS
    line["read"][slow] = line["clock"] - line["staleness"] - 1


def plain(seed: int) -> list[Line]:
    """A correct history of pushes and pulls."""
    return atomic(CALLS, CLIENTS, seed)


def exchanging(seed: int) -> list[Line]:
    """A correct history of exchanges, pushes and pulls."""
    return atomic(CALLS, CLIENTS, seed, exchanges=0.6)


def promoted(seed: int) -> list[Line]:
    """A correct history with a promotion."""
    return replicated(CALLS, CLIENTS, seed)


def by_clocks(seed: int) -> list[Line]:
    """A correct history under a bound on staleness."""
    return bounded(CALLS // 2, CLIENTS, seed, staleness=2)


Plant = Callable[[list[Line]], None]
ANOMALIES: dict[Plant, Callable[[int], list[Line]]] = {
    **dict.fromkeys(
        [lost_push, doubled_push, push_doubled_for_a_while, stale_pull, pull_from_the_future, torn_pull], plain
    ),
    **dict.fromkeys(
        [former_leader_returns, unread_own_push, invented_push, effect_before_start, effect_after_end], plain
    ),
    **dict.fromkeys([reads_go_back, pending_push_twice], plain),
    **dict.fromkeys([centre_that_never_was, same_centre_twice, centre_after_the_move, torn_centre], exchanging),
    **dict.fromkeys([lost_exchange, other_sides_value, exchanged_answers], exchanging),
    **dict.fromkeys([promotion_loses_acknowledged, acknowledged_then_undone, doubled_by_the_promotion], promoted),
    **dict.fromkeys([former_leader_answers, undone_without_promotion], promoted),
    bound_exceeded: by_clocks,
}
"""Every anomaly, with the correct histories that it is planted into."""
