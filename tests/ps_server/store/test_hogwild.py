"""Shards whose segments have no lock: pushes run side by side, and are counted as exactly as with one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan
from dbelief.core.push import LedgerRow, Push, Pusher
from dbelief.errors import Moved, Rejected
from dbelief.optim import make_rule
from dbelief.optim.rules.sgd import SGD
from ps_server.store.segment import Outcome
from ps_server.store.shard import Shard
from tests.threads import at_once

LENGTH, PATIENCE_S = 1000, 30.0
ONE = np.float32(1)


def shard(rule: Any = None, lock_free: bool = True) -> Shard:
    """One segment of zeros, ready."""
    made = Shard([SegmentSpan(0, 0, LENGTH)], rule or make_rule("sgd", {}), lock_free=lock_free)
    made.push(Push(Pusher(99, 99), 1, assign=True), 0, np.zeros(LENGTH, np.float32))
    made.make_ready()
    return made


def values(of: Shard) -> np.ndarray:
    _, data = of.pull("w", 0)
    assert data is not None
    return np.frombuffer(data, np.float32)


@dataclass(frozen=True)
class Meeting(SGD):
    """SGD that waits at its step for another thread to be there too."""

    met: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=PATIENCE_S))

    def apply(self, w: np.ndarray, g: np.ndarray, states: tuple[np.ndarray, ...], rate: np.float32, step: int) -> None:
        self.met.wait()
        self.apply_reference(np, w, g, states, rate, step)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are the rule's compiled ones, side by side, though segments are short."""
    monkeypatch.setattr("dbelief.optim.apply.FEW", 0)


def test_two_pushes_of_a_segment_are_at_their_step_together() -> None:
    held = shard(Meeting())
    gradient = np.ones(LENGTH // 2, np.float32)
    given = at_once(lambda n: held.push(Push(Pusher(n, 10 + n), 1, ONE), 0, gradient, offset=n * LENGTH // 2), range(2))
    assert [taken.outcome for taken in given] == [Outcome.APPLIED, Outcome.APPLIED]
    np.testing.assert_array_equal(values(held), -1)


def test_push_in_progress_is_read_repeated_and_fenced() -> None:
    """By the one who meets it there: a reader, the pusher's own repetition, and the coordinator."""
    held = shard(Meeting())
    push, weights = Push(Pusher(0, 10), 1, ONE), np.ones(LENGTH, np.float32)

    def others() -> tuple[Any, ...]:
        while not held.segments[0].ledger.last.get(("w", push.pusher)):  # until it is under way
            pass
        version, _ = held.pull("w", 0)
        with pytest.raises(Moved, match="segment 0: exchange 1 is being applied"):
            held.exchange(push, [(0, weights)])
        held.fence([10])
        ledger = held.ledgers()["w", push.pusher]
        with pytest.raises(Rejected, match="fenced"):
            held.exchange(Push(Pusher(0, 10), 2, ONE), [(0, weights)])
        held.segments[0].rule.met.wait()  # type: ignore[attr-defined]
        return version, ledger

    works: list[Callable[[], Any]] = [lambda: held.exchange(push, [(0, weights)]), others]
    first, seen = at_once(lambda work: work(), works)
    assert seen == (0, (LedgerRow(1), LedgerRow(1))), "counted as pushed, not yet as there"
    np.testing.assert_array_equal(first[0][0][1], 0.0)
    assert held.pull("w", 0)[0] == 1
    np.testing.assert_array_equal(values(held), -1)


def test_exchange_that_is_done_is_answered_again() -> None:
    held, push = shard(make_rule("elastic", {})), Push(Pusher(0, 10), 1, ONE)
    weights = np.ones(LENGTH, np.float32)
    first, again = (held.exchange(push, [(0, weights)]) for _ in range(2))
    assert (first[1], again[1]) == (0, 1)
    np.testing.assert_array_equal(again[0][0][1], first[0][0][1])
    np.testing.assert_array_equal(values(held), 1.0)


def test_pushes_that_meet_are_counted_each_once() -> None:
    """Of their steps some may be lost, and never more is there than was pushed."""
    held, times = shard(), 200

    def work(number: int) -> None:
        for sequence in range(1, times + 1):
            held.push(Push(Pusher(number, 10 + number), sequence, ONE), 0, np.full(LENGTH, -1, np.float32))

    at_once(work, range(4))
    there = values(held)
    assert ((there >= 1) & (there <= 4 * times) & (there == np.round(there))).all()
    assert held.versions() == [4 * times]
    assert all(held.ledgers()["w", Pusher(n, 10 + n)] == (LedgerRow(times), LedgerRow(times)) for n in range(4))


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam", "elastic"])
def test_single_pusher_matches_the_locked_shard(rule: str) -> None:
    rng, ends = np.random.default_rng(0), []
    pushed = rng.standard_normal((7, LENGTH)).astype(np.float32)
    for lock_free in (False, True):
        held = shard(make_rule(rule, {}), lock_free)
        for number, numbers in enumerate(pushed, start=1):
            push = Push(Pusher(0, 10), number, np.float32(0.3))
            if rule == "elastic":
                held.exchange(push, [(0, numbers)])
            else:
                held.push(push, 0, numbers)
        ends.append(values(held).tobytes())
    assert ends[0] == ends[1]
