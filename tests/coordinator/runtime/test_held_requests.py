"""Requests for work that are held: the waits, without a machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from coordinator.runtime import held_requests
from coordinator.runtime.held_requests import HeldRequests


def test_another_offer_ends_all_waits() -> None:
    held = HeldRequests()
    held.update("nothing")
    found: list[bool] = []

    def wait(incarnation: int) -> None:
        found.append(held.wait(incarnation, held.hold(incarnation), "nothing", time.monotonic() + 60))

    waiting = [threading.Thread(target=wait, args=(incarnation,)) for incarnation in range(3)]
    for thread in waiting:
        thread.start()
    held.update("nothing")
    assert all(thread.is_alive() for thread in waiting)
    held.update("a block")
    for thread in waiting:
        thread.join(30)
    assert found == [True] * 3


def test_an_offer_that_changed_before_the_wait_is_not_missed() -> None:
    held = HeldRequests()
    held.update("a block")
    key = held.hold(1)
    assert held.wait(1, key, "nothing", time.monotonic() + 60)
    assert not held.wait(1, key, "a block", 0.0), "the time was over"


@pytest.mark.parametrize("end", [HeldRequests.close, lambda held: held.begin(1)], ids=["closed", "superseded"])
def test_a_request_that_is_over_releases_its_thread(end: Callable[[HeldRequests], None]) -> None:
    held = HeldRequests()
    found: list[bool] = []
    key = held.hold(1)
    waiting = threading.Thread(target=lambda: found.append(held.wait(1, key, None, time.monotonic() + 60)))
    waiting.start()
    end(held)
    waiting.join(30)
    assert found == [False]


def test_a_closed_coordinator_holds_nothing() -> None:
    held = HeldRequests()
    held.close()
    assert held.hold(1) is None


def test_one_request_of_each_incarnation_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_requests, "MOST_HELD", 2)
    held = HeldRequests()
    first, other = held.hold(1), held.hold(2)
    assert first is not None
    assert other is not None
    assert held.hold(3) is None, "too many"
    held.begin(1)
    again = held.hold(1)
    assert again is not None
    assert not held.is_last(1, first)
    with held.releasing(1, first):
        pass
    assert held.is_last(1, again), "the end of a superseded request leaves the later one"
    with held.releasing(1, again), held.releasing(2, other):
        pass
    assert held.hold(3) is not None
