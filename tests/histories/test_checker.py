"""The checker of histories: against a search of all orders, on histories of an atomic object, and with anomalies."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .checker import check, read_history

Line = dict[str, Any]


def atomic(calls: int, clients: int, seed: int, pending: float = 0.0) -> list[Line]:
    """A history of an object that executes each call at one moment between its start and its end."""
    rng = random.Random(seed)
    counts, clock, lines = [0] * clients, [0.0] * clients, []
    moments: list[tuple[float, Line]] = []
    for _ in range(calls):
        client = rng.randrange(clients)
        if clock[client] < 0:
            continue
        start = clock[client] + rng.random()
        moment, end = sorted(start + rng.random() for _ in range(2))
        line: Line = {"client": client, "segment": 0, "start": start, "end": end, "push": rng.random() < 0.6}
        clock[client] = end
        if rng.random() < pending:
            line["end"], clock[client] = None, -1.0
        moments.append((moment, line))
    for _, line in sorted(moments, key=lambda pair: pair[0]):
        if line["end"] is None and rng.random() < 0.5:
            line["read"] = None
        else:
            line["read"] = counts.copy() if line["end"] is not None and rng.random() < 0.8 else None
            counts[line["client"]] += line["push"]
        lines.append(line)
    rng.shuffle(lines)
    return lines


def explained(lines: Sequence[Line]) -> bool:
    """Whether some order explains a short history without promotions; tries all of them."""

    def extend(left: tuple[int, ...], counts: tuple[int, ...]) -> bool:
        if all(lines[one]["end"] is None for one in left):
            return True
        for one in left:
            line = lines[one]
            if any(lines[other]["end"] is not None and lines[other]["end"] < line["start"] for other in left):
                continue
            if line["read"] is not None and tuple(line["read"]) != counts:
                continue
            after = tuple(n + (client == line["client"] and line["push"]) for client, n in enumerate(counts))
            if extend(tuple(other for other in left if other != one), after):
                return True
        return False

    return extend(tuple(range(len(lines))), (0,) * 3)


def passes(lines: Sequence[Line]) -> bool:
    return all(verdict.linearizable for verdict in check(lines))


@pytest.mark.parametrize("seed", range(20))
def test_a_history_of_an_atomic_object_passes(seed: int) -> None:
    lines = atomic(2000, 1 + seed % 8, seed, pending=0.001 * (seed % 3))
    (verdict,) = check(lines)
    assert verdict.linearizable, verdict
    assert verdict.calls == len(lines)


def test_verdicts_are_those_of_a_search_of_all_orders() -> None:
    rng, found = random.Random(7), set()
    for seed in range(400):
        lines = atomic(7, 3, seed, pending=0.1)
        for line in lines:
            if line["read"] is not None and rng.random() < 0.3:
                line["read"][rng.randrange(3)] += rng.choice([-1, 1])
        found.add(explained(lines))
        assert passes(lines) == explained(lines), lines
    assert found == {True, False}


def _reads(lines: list[Line]) -> list[Line]:
    return sorted((line for line in lines if line["read"] is not None), key=lambda line: line["start"])


def _pushes(lines: list[Line]) -> list[Line]:
    return sorted((line for line in lines if line["push"]), key=lambda line: line["start"])


def lost(lines: list[Line]) -> None:
    """An acknowledged push that no later read has."""
    gone = _pushes(lines)[300]
    for line in lines:
        if line["read"] is not None and line["read"][gone["client"]] > 300 // 4:
            line["read"][gone["client"]] -= 1


def doubled(lines: list[Line]) -> None:
    """A push that every later read has twice."""
    twice = _pushes(lines)[300]
    for line in lines:
        if line["read"] is not None and line["start"] > twice["end"]:
            line["read"][twice["client"]] += 1


def stale(lines: list[Line]) -> None:
    """A read that returns what an earlier one did."""
    _reads(lines)[500]["read"] = list(_reads(lines)[400]["read"])


def early(lines: list[Line]) -> None:
    """A read that returns what a later one does."""
    _reads(lines)[400]["read"] = list(_reads(lines)[500]["read"])


def mixed(lines: list[Line]) -> None:
    """A read that returns one number of a later read."""
    _reads(lines)[400]["read"][1] = _reads(lines)[500]["read"][1]


def backwards(lines: list[Line]) -> None:
    """From some moment on the object is that of before: a leader of before has come back."""
    first = _reads(lines)[500]
    for line in _reads(lines)[500:]:
        line["read"] = [max(0, n - m // 10) for n, m in zip(line["read"], first["read"], strict=True)]


def unread(lines: list[Line]) -> None:
    """A client's own push that its next read does not have."""
    for line in _reads(lines)[300:]:
        if line["read"][line["client"]]:
            line["read"][line["client"]] -= 1
            return


def invented(lines: list[Line]) -> None:
    """A read with a push of a client before that client has begun it."""
    line = _reads(lines)[10]
    line["read"][0] += 50


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spoil", [lost, doubled, stale, early, mixed, backwards, unread, invented])
def test_an_anomaly_is_found(spoil: Callable[[list[Line]], None], seed: int) -> None:
    lines = atomic(2000, 4, seed)
    spoil(lines)
    (verdict,) = check(lines)
    assert not verdict.linearizable
    assert json.loads(verdict.stuck_at)["segment"] == 0


def test_segments_are_checked_apart() -> None:
    good, bad = atomic(200, 3, 1), atomic(200, 3, 2)
    _reads(bad)[50]["read"][0] += 7
    verdicts = check(good + [line | {"segment": 1} for line in bad])
    assert [(verdict.segment, verdict.linearizable) for verdict in verdicts] == [(0, True), (1, False)]


def call(client: int, start: float, end: float | None, push: bool = False, read: list[int] | None = None) -> Line:
    return {"client": client, "segment": 0, "start": start, "end": end, "push": push, "read": read}


PROMOTION: Line = {"promotion": True, "segment": 0, "start": 2.0, "end": 3.0}
SEEN_THEN_GONE = [
    call(0, 1.0, 6.0, push=True),
    call(1, 1.5, 1.6, read=[1, 0]),
    call(1, 4.0, 4.1, read=[0, 0]),
    call(1, 7.0, 7.1, read=[1, 0]),
]


def test_a_promotion_may_undo_what_was_not_acknowledged() -> None:
    assert not passes(SEEN_THEN_GONE)
    assert passes([*SEEN_THEN_GONE, PROMOTION])


@pytest.mark.parametrize(
    "change",
    [
        {0: {"end": 1.8}},  # it was acknowledged before
        {2: {"start": 1.7, "end": 1.9}},  # gone before the promotion
        {3: {"read": [0, 0]}},  # acknowledged, and never repeated
        {3: {"read": [2, 0]}},  # repeated, and applied twice
    ],
)
def test_a_promotion_excuses_nothing_else(change: dict[int, Line]) -> None:
    lines = [line | change.get(place, {}) for place, line in enumerate(SEEN_THEN_GONE)]
    assert not passes([*lines, PROMOTION])


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(call(0, 1, 2)) + "\n" + json.dumps(call(0, 3, 2)) + "\n")
    with pytest.raises(ValueError, match=r"history\.jsonl, line 2: must have client, end, segment, start, and an end"):
        read_history(path)
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1"):
        read_history(path)
    path.write_text(json.dumps(call(0, 1, 2)) + "\n" + json.dumps(PROMOTION) + "\n")
    assert passes(read_history(path))
