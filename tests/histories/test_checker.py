"""The checker of histories: against a search of all orders, on histories of an atomic object, and with anomalies."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .anomalies import (
    ANOMALIES,
    Plant,
    bound_exceeded,
    by_clocks,
    exchanging,
    promoted,
    reads_go_back,
    reads_of,
    unread_own_push,
)
from .checker import check, read_history
from .client import TORN
from .guarantees import violations
from .reference import atomic, bounded, effect, replicated

Line = dict[str, Any]


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
            after = tuple(effect(counts, line))
            if extend(tuple(other for other in left if other != one), after):
                return True
        return False

    return extend(tuple(range(len(lines))), (0,) * 3)


def passes(lines: Sequence[Line]) -> bool:
    return all(verdict.linearizable for verdict in check(lines))


@pytest.mark.parametrize("seed", range(8))
def test_a_history_of_an_atomic_object_passes(seed: int) -> None:
    lines = atomic(2000, 1 + seed % 8, seed, pending=0.001 * (seed % 3))
    (verdict,) = check(lines)
    assert verdict.linearizable, verdict
    assert verdict.calls == len(lines)


@pytest.mark.parametrize("exchanges", [0.0, 0.5])
def test_verdicts_are_those_of_a_search_of_all_orders(exchanges: float) -> None:
    rng, found = random.Random(7), set()
    for seed in range(400):
        lines = atomic(7, 3, seed, pending=0.1, exchanges=exchanges)
        for line in lines:
            if line["read"] is not None and rng.random() < 0.3:
                line["read"][rng.randrange(3)] += rng.choice([-1, 1])
        found.add(explained(lines))
        assert passes(lines) == explained(lines), lines
    assert found == {True, False}


@pytest.mark.parametrize("correct", [exchanging, promoted, by_clocks])
def test_a_correct_history_passes(correct: Callable[[int], list[Line]]) -> None:
    for seed in range(10):
        lines = correct(seed)
        assert passes(lines), seed
        assert violations(lines) == [], seed


def test_a_correct_history_of_exchanges_and_a_promotion_passes() -> None:
    for seed in range(20):
        assert passes(replicated(400, 8, seed, exchanges=0.7)), seed


@pytest.mark.parametrize("plant", ANOMALIES, ids=lambda plant: plant.__name__)
def test_an_anomaly_is_found(plant: Plant) -> None:
    for seed in range(3):
        lines = ANOMALIES[plant](seed)
        plant(lines)
        (verdict,) = check(lines)
        assert not verdict.linearizable, seed
        assert json.loads(verdict.stuck_at)["segment"] == 0


def test_rows_of_a_bucket_that_are_not_alike_are_an_anomaly() -> None:
    lines = atomic(400, 3, 1)
    reads_of(lines)[100]["read"][1] = TORN
    assert not passes(lines)


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (bound_exceeded, "staleness: the pull of clock"),
        (unread_own_push, "read-your-writes: client"),
        (reads_go_back, "monotonic reads: client 2"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_weaker_guarantee_names_its_violation(plant: Plant, text: str) -> None:
    lines = ANOMALIES[plant](1)
    plant(lines)
    assert any(text in found for found in violations(lines))


def test_the_bound_on_staleness_is_checked_beside_linearizability() -> None:
    """A client that runs ahead sees the newest numbers, and may not see them yet."""
    lines = bounded(200, 3, 1, staleness=2)
    ahead = {"client": 0, "segment": 0, "clock": 99, "staleness": 2, "start": 900.0, "end": 901.0, "read": None}
    final = [sum(line["push"] and line["client"] == client for line in lines) for client in range(3)]
    late = call(1, 902.0, 903.0, push=True) | {"clock": 90, "staleness": 2}
    lines += [ahead | {"read": final}, late]
    assert passes(lines)
    assert [text.split(":")[1] for text in violations(lines)] == [" staleness"]


def test_segments_are_checked_apart() -> None:
    good, bad = atomic(200, 3, 1), atomic(200, 3, 2)
    reads_of(bad)[50]["read"][0] += 7
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
