from __future__ import annotations

import json

from coordinator.core.messages import EvaluationLease
from coordinator.core.progress import Best
from coordinator.scheduling.evaluations import ATTEMPTS, Evaluations

BEST = Best("best.0", 0.5, 0.8, 100)


def asked(*sets: str) -> Evaluations:
    them = Evaluations()
    for name in sets:
        them.request(name, "w")
    return them


def test_evaluation_of_dead_holder_is_granted_again() -> None:
    them = asked("validation", "test")
    them.grant(1, 7, 100)
    them.holder_lost(2, died=True)
    assert them.held(1) is not None
    assert them.holder_lost(1, died=True) == []
    assert not them.under_way
    assert them.grant(2, 8, 120) == EvaluationLease(8, "validation", "w", 120)


def test_an_evaluation_at_which_every_holder_fails_ends_without_a_result() -> None:
    them = asked("test")
    for incarnation in range(1, ATTEMPTS):
        them.grant(incarnation, incarnation, 100)
        assert them.holder_lost(incarnation, died=True) == []
    them.grant(8, 8, 100)
    assert them.holder_lost(8, died=False) == [], "it was asked to leave"
    restored = Evaluations()
    restored.restore(json.loads(json.dumps(them.state())))
    last = restored.grant(9, 9, 100)
    assert restored.holder_lost(9, died=True) == [last]
    assert not restored.busy
    restored.request("test", "w")
    restored.grant(10, 10, 100)
    assert restored.holder_lost(10, died=True) == [], "of another request, it is the first"


def test_failures_are_counted_from_the_last_outcome_on() -> None:
    them = asked("validation")
    for number in range(1, 3 * ATTEMPTS):
        them.grant(number, number, 100)
        if number % 2:
            assert them.holder_lost(number, died=True) == []
        else:
            them.complete(number, number)
            them.request("validation", "w")


def test_cancelled_evaluations_have_no_outcome_and_storing_goes_on() -> None:
    them = asked("validation", "test")
    them.grant(1, 7, 100)
    them.store(6, 2, BEST)
    them.cancel()
    assert (them.queued, them.leased, them.under_way) == (False, False, True)
    assert them.complete(7, 1) is None
    assert them.stored(6) == BEST


def test_it_is_busy_until_the_parameters_are_stored() -> None:
    them = asked("validation")
    assert (them.queued, them.leased, them.under_way, them.busy) == (True, False, False, True)
    them.grant(1, 7, 100)
    assert (them.queued, them.leased, them.under_way, them.busy) == (False, True, True, True)
    them.complete(7, 1)
    them.store(7, 1, BEST)
    assert (them.queued, them.leased, them.under_way, them.busy) == (False, False, True, True)
    assert them.stored(7) == BEST
    assert them.stored(7) is None
    assert not them.busy


def test_unstored_evaluation_waits_for_the_fence() -> None:
    them = Evaluations()
    them.store(7, 1, BEST)
    them.holder_lost(1, died=True)
    assert them.under_way
    them.fenced(2, again=True)
    assert them.under_way
    them.fenced(1, again=True)
    assert not them.under_way
    assert them.grant(2, 8, 100) == EvaluationLease(8, "validation", "w", 100)


def test_clear_keeps_granted_evaluations() -> None:
    them = asked("validation", "test")
    them.grant(1, 7, 100)
    them.clear()
    assert (them.queued, them.leased) == (False, True)
