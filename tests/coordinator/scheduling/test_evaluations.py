from __future__ import annotations

from coordinator.core.progress import Best
from coordinator.core.states import EvaluationLease
from coordinator.scheduling.evaluations import Evaluations

BEST = Best("best.0", 0.5, 0.8, 100)


def asked(*sets: str) -> Evaluations:
    them = Evaluations()
    for name in sets:
        them.ask(name, "w")
    return them


def test_they_are_given_in_the_order_they_were_asked_for() -> None:
    them = asked("validation", "test")
    assert them.take(1, 7, 100) == EvaluationLease(7, "validation", "w", 100)
    assert them.take(1, 8, 100) == EvaluationLease(8, "test", "w", 100)
    assert them.take(1, 9, 100) is None


def test_a_lost_answer_is_given_again_to_the_same_life_only() -> None:
    them = asked("validation")
    lease = them.take(1, 7, 100)
    assert them.held(1) == lease
    assert them.held(2) is None


def test_an_outcome_counts_once_and_from_its_holder_only() -> None:
    them = asked("validation")
    lease = them.take(1, 7, 100)
    assert them.complete(7, incarnation=2) is None
    assert them.complete(7, incarnation=1) == lease
    assert them.complete(7, incarnation=1) is None
    assert not them.busy


def test_the_evaluation_of_a_dead_life_is_the_next_to_be_given() -> None:
    them = asked("validation", "test")
    them.take(1, 7, 100)
    them.holder_lost(2)
    assert them.held(1) is not None
    them.holder_lost(1)
    assert not them.under_way
    assert them.take(2, 8, 120) == EvaluationLease(8, "validation", "w", 120)


def test_it_is_busy_until_the_parameters_are_stored() -> None:
    them = asked("validation")
    assert (them.asked, them.given, them.under_way, them.busy) == (True, False, False, True)
    them.take(1, 7, 100)
    assert (them.asked, them.given, them.under_way, them.busy) == (False, True, True, True)
    them.complete(7, 1)
    them.keep(7, 1, BEST)
    assert (them.asked, them.given, them.under_way, them.busy) == (False, False, True, True)
    assert them.stored(7) == BEST
    assert them.stored(7) is None
    assert not them.busy


def test_the_name_to_store_under_is_told_again_to_its_holder() -> None:
    them = Evaluations()
    them.keep(7, 1, BEST)
    assert them.storage_name(7, 1) == "best.0"
    assert them.storage_name(7, 2) == them.storage_name(8, 1) == ""


def test_what_a_life_did_not_store_is_waited_for_until_it_is_fenced() -> None:
    them = Evaluations()
    them.keep(7, 1, BEST)
    them.holder_lost(1)
    assert them.under_way
    them.fenced(2, again=True)
    assert them.under_way
    them.fenced(1, again=True)
    assert not them.under_way
    assert them.take(2, 8, 100) == EvaluationLease(8, "validation", "w", 100)


def test_it_is_not_evaluated_again_where_nobody_wants_to_know() -> None:
    them = Evaluations()
    them.keep(7, 1, BEST)
    them.fenced(1, again=False)
    assert not them.busy


def test_what_is_given_stays_when_the_rest_is_cleared() -> None:
    them = asked("validation", "test")
    them.take(1, 7, 100)
    them.clear()
    assert (them.asked, them.given) == (False, True)
