"""Exactly once: push numbers, fenced incarnations, and incarnations that outlive a shard's epoch."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint.shard_file import StoredSegment
from dbelief.core.push import NO_PUSH, PARAMETERS, AppliedPush, LedgerRow, Push, Pusher
from dbelief.errors import Rejected
from ps_server.store.segment import Outcome
from tests.examples import examples

Make = Callable[..., Any]
A, B, INITIALISER = Pusher(1, 11), Pusher(2, 12), Pusher(0, 1_000_000)


@pytest.mark.parametrize("number", [0, 3, 4, 1_000])
def test_a_gap_is_refused_and_names_the_number_expected(make: Make, number: int) -> None:
    subject = make()
    subject.push(A, 1.0)
    before = subject.everything()
    if number == 0:
        assert subject.send(Push(A, 0, np.float32(1)), subject.full(5.0))[0].outcome is Outcome.DUPLICATE
    else:
        with pytest.raises(
            Rejected, match=rf"segment 0: push {number} of replica 1 on 'w' was received where 2 was expected"
        ):
            subject.send(Push(A, number, np.float32(1)), subject.full(5.0))
    assert subject.everything() == before


@examples(50)
@given(st.lists(st.sampled_from([A, B, A._replace(rank=1)]), max_size=20), st.data())
def test_however_often_a_push_is_sent_it_is_applied_once(make: Make, order: list[Pusher], data: st.DataObject) -> None:
    """Segments of a push come in any order, some of them twice, and old pushes come again at any time."""
    subject, sent, wanted = make((2, 1)), [], 0.0
    for number, pusher in enumerate(order):
        gradient = subject.full(2.0**number)
        wanted -= 2.0**number
        subject.sequences[pusher] = subject.sequences.get(pusher, 0) + 1
        push = Push(pusher, subject.sequences[pusher], np.float32(1))
        sent.append((push, gradient))
        for index in data.draw(st.permutations([0, 0, 1, 1])):
            subject.send(push, gradient, [index])
        subject.send(*data.draw(st.sampled_from(sent)))
    np.testing.assert_array_equal(subject.read(), subject.full(wanted))
    assert subject.shard.versions() == [len(order)] * 2


def reborn(make: Make, applied: int) -> Any:
    """A shard in a new life, from a snapshot that holds `applied` pushes of A, all of 1."""
    subject = make()
    for segment in subject.shard.segments.values():
        values = {PARAMETERS: np.full(segment.span.length, -applied, np.float32)}
        ledger = {(PARAMETERS, A): LedgerRow(applied)}
        subject.shard.load(StoredSegment(segment.span, applied, applied, 0, 0, ledger, values), 0)
    return subject


@given(applied=st.integers(0, 4), acknowledged=st.integers(0, 6))
def test_base_counts_exactly_the_missing_pushes(make: Make, applied: int, acknowledged: int) -> None:
    subject = reborn(make, applied)
    push = Push(A, acknowledged + 1, np.float32(1), base=acknowledged + 1)
    taken = subject.send(push, subject.full(1.0))
    assert {one.lost for one in taken} == {max(0, acknowledged - applied)}
    assert subject.shard.lost() == [max(0, acknowledged - applied)] * 3
    new = acknowledged >= applied  # else the snapshot was taken after the answer was lost
    assert [segment.applied for segment in subject.shard.segments.values()] == [applied + new] * 3
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(max(applied, acknowledged + 1)),) * 2


def test_late_base_is_refused_as_a_gap(make: Make) -> None:
    subject = reborn(make, 3)
    subject.send(Push(A, 6, np.float32(1), base=6), subject.full(1.0))
    before = subject.everything()
    for push in (Push(A, 9, np.float32(1), base=9), Push(A, 8, np.float32(1), base=8)):
        with pytest.raises(Rejected, match="where 7 was expected"):
            subject.send(push, subject.full(1.0))
    assert subject.everything() == before
    assert subject.shard.lost() == [2, 2, 2]
    assert [one.lost for one in subject.send(Push(A, 7, np.float32(1), base=7), subject.full(1.0))] == [0, 0, 0]


def test_gap_does_not_prevent_a_later_base(make: Make) -> None:
    subject = reborn(make, 3)
    with pytest.raises(Rejected, match="where 4 was expected"):
        subject.send(Push(A, 6, np.float32(1)), subject.full(1.0))
    assert [one.lost for one in subject.send(Push(A, 6, np.float32(1), base=6), subject.full(1.0))] == [2, 2, 2]


def test_losses_on_other_vectors_are_not_gradient_losses(make: Make) -> None:
    subject = reborn(make, 3)
    push = Push(A, 3, vector="best.0", assign=True, base=3)
    assert [one.lost for one in subject.send(push, subject.full(1.0))] == [2, 2, 2]
    assert subject.shard.lost() == [0, 0, 0]
    assert subject.shard.lost_of() == {}


def test_initial_values_that_are_pushed_again_are_not_gradient_losses(make: Make) -> None:
    subject = make()
    push = Push(A, 2, assign=True, base=2)  # the shard failed before the first set, with push 1
    assert [one.lost for one in subject.send(push, subject.full(1.0))] == [1, 1, 1]
    assert (subject.shard.lost(), subject.shard.lost_of()) == ([0, 0, 0], {})


def test_losses_of_a_pusher_stay_in_sets_and_go_with_its_rows(make: Make) -> None:
    subject, successor = reborn(make, 3), make()
    first, second = (Push(A._replace(rank=rank), sequence, base=sequence) for rank, sequence in ((0, 6), (1, 5)))
    subject.send(first, subject.full(1.0), [0])
    subject.send(second, subject.full(1.0), [1, 2])
    assert subject.shard.lost_of() == {A: 4}, "the most over the segments; a rank has segments of its own"
    for index, segment in subject.shard.segments.items():
        segment.begin_snapshot()
        successor.shard.load(segment.snapshot_view.stored, 1)
        assert successor.shard.segments[index].ledger.lost_of == segment.ledger.lost_of
    successor.shard.forget([A.incarnation])
    assert (successor.shard.lost_of(), successor.shard.lost()) == ({}, subject.shard.lost())


@pytest.mark.parametrize(("read_version", "staleness"), [(0, 1), (3, 1), (4, 0), (9, 0)])
def test_staleness_counts_from_recovery(make: Make, read_version: int, staleness: int) -> None:
    subject = reborn(make, 3)
    subject.push(B, 1.0)
    taken = subject.shard.push(Push(A, 4, np.float32(1)), 0, subject.full(1.0)[:5], 0, read_version)
    assert taken.staleness == staleness


def test_fenced_incarnation_is_refused_and_keeps_its_ledger(make: Make) -> None:
    subject = make()
    push = subject.push(A, 1.0)
    subject.shard.fence([A.incarnation])
    before = subject.everything()
    late = [push, Push(A, 2, np.float32(1)), Push(A, 1, vector="best.0", assign=True), Push(A._replace(rank=3), 1)]
    for one in late:
        with pytest.raises(Rejected, match="segment 0: replica 1 in incarnation 11 is fenced"):
            subject.send(one, subject.full(1.0))
    assert subject.everything() == before
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1), LedgerRow(1))
    with pytest.raises(Rejected, match=r"no vector 'best\.0'"):
        subject.shard.pull("best.0", 0)
    subject.push(A._replace(incarnation=13), 1.0)  # the same replica in its next life
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))


def test_forget_drops_only_rows_of_that_incarnation(make: Make) -> None:
    subject = make()
    subject.push(A, 1.0)
    subject.push(A._replace(rank=1), 1.0)
    subject.push(B, 1.0)
    subject.assign(7.0, "best.0", A)
    subject.shard.fence([A.incarnation])
    subject.shard.forget([A.incarnation])
    rows = {pusher for _, pusher in subject.shard.ledgers()}
    assert A.incarnation not in {pusher.incarnation for pusher in rows}
    assert B in rows
    with pytest.raises(Rejected, match="fenced"):
        subject.push(A, 1.0)
    np.testing.assert_array_equal(subject.read("best.0"), subject.full(7.0))


def test_ledgers_give_lowest_and_highest_number(make: Make) -> None:
    subject = make()
    subject.push(A, 1.0)
    subject.send(Push(A, 2, np.float32(1)), subject.full(1.0), [0, 2])
    subject.send(Push(B, 1, np.float32(1)), subject.full(1.0), [1])
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1), LedgerRow(2))
    assert subject.shard.ledgers()[PARAMETERS, B] == (NO_PUSH, LedgerRow(1))
    assert subject.shard.versions() == [2, 2, 2]


def test_rows_have_the_lease_and_the_position_of_the_last_push(make: Make) -> None:
    subject = make()
    first = subject.push(A, 1.0, lease=3, position=32)
    subject.push(B, 1.0, lease=4, position=100)
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1, 3, 32),) * 2
    late = Push(A, 2, np.float32(1), lease=5, position=16)  # its leases are of any size
    subject.send(late, subject.full(1.0), [1])
    subject.send(dataclasses.replace(first, lease=9, position=9), subject.full(1.0))  # a duplicate
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1, 3, 32), LedgerRow(2, 5, 16))
    assert subject.shard.ledgers()[PARAMETERS, B] == (LedgerRow(1, 4, 100),) * 2
    subject.send(late, subject.full(1.0))
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(2, 5, 16),) * 2
    subject.shard.fence([A.incarnation])
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(2, 5, 16),) * 2


def test_rows_of_exchanges_have_their_lease_and_position(make: Make) -> None:
    subject = make((4,), "elastic")
    push = Push(A, 1, np.float32(0.5), lease=3, position=32)
    for _ in range(2):
        subject.shard.exchange(push, [(0, subject.full(1.0))])
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1, 3, 32),) * 2


def test_named_vectors_and_initial_values_are_of_no_lease(make: Make) -> None:
    subject = make()
    subject.push(A, 1.0, lease=3, position=32)
    subject.assign(7.0, "best.0", A)
    assert subject.shard.ledgers()["best.0", A] == (LedgerRow(1), LedgerRow(1))
    assert subject.shard.ledgers()[PARAMETERS, INITIALISER] == (LedgerRow(1), LedgerRow(1))


def test_a_base_keeps_the_lease_and_the_position_of_the_last_push_that_is_there(make: Make) -> None:
    """The push that names it may be rejected after; the lost ones had positions that this shard does not know."""
    subject = make((5,))
    ledger = subject.shard.segments[0].ledger
    subject.push(A, 1.0, lease=3, position=32)
    ledger.bases.clear()  # as in a shard that was restored
    push = Push(A, 5, np.float32(1), base=5, lease=8, position=64)
    assert ledger.rebase(push) == 3
    assert ledger.row(A) == LedgerRow(4, 3, 32)
    assert [one.lost for one in subject.send(push, subject.full(1.0))] == [3]
    assert ledger.row(A) == LedgerRow(5, 8, 64)


def test_a_base_of_one_that_has_no_row_is_of_no_lease(make: Make) -> None:
    subject = make((5,))
    ledger = subject.shard.segments[0].ledger
    assert ledger.rebase(Push(A, 5, np.float32(1), base=5, lease=8, position=64)) == 4
    assert ledger.row(A) == LedgerRow(4)


@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_withdrawn_gradients_leave_the_row_before_the_first_of_them(make: Make, waiting: int) -> None:
    """The rounds that wait are of several leases."""
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [A.replica, B.replica])])
    subject.push(A, 1.0, clock=0, lease=3, position=32)
    subject.push(B, 1.0, clock=0, lease=4, position=32)
    for clock in range(1, waiting + 1):
        subject.push(A, 1.0, clock=clock, lease=5 + clock, position=10 * clock)
    counted = (LedgerRow(1 + waiting, 5 + waiting, 10 * waiting),) * 2
    assert subject.shard.ledgers()[PARAMETERS, A] == counted, "the pusher continues after them"
    for segment in subject.shard.segments.values():
        assert segment.applied_ledger()[PARAMETERS, A] == LedgerRow(1, 3, 32)
    subject.shard.fence([A.incarnation])
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1, 3, 32),) * 2
    assert subject.shard.ledgers()[PARAMETERS, B] == (LedgerRow(1, 4, 32),) * 2
    assert not any(segment.staged for segment in subject.shard.segments.values())


def test_withdrawn_gradients_of_each_segment_leave_its_own_row(make: Make) -> None:
    """Segment 1 has closed round 0, and the others have not."""
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [A.replica, B.replica])])
    subject.push(A, 1.0, clock=0, lease=3, position=32)
    subject.push(A, 1.0, clock=1, lease=6, position=16)
    subject.send(Push(B, 1, np.float32(1), lease=4, position=32), subject.full(1.0), [1])
    subject.shard.fence([A.incarnation])
    assert [segment.ledger.row(A) for segment in subject.shard.segments.values()] == [
        NO_PUSH,
        LedgerRow(1, 3, 32),
        NO_PUSH,
    ]
    assert subject.shard.ledgers()[PARAMETERS, A] == (NO_PUSH, LedgerRow(1, 3, 32))


def test_withdrawn_gradient_after_a_base_leaves_the_row_with_the_loss(make: Make) -> None:
    subject = make((5,), staleness=0)
    subject.shard.set_membership(1, [(0, [A.replica, B.replica])])
    subject.push(A, 1.0, clock=0, lease=3, position=32)
    subject.push(B, 1.0, clock=0)
    subject.shard.segments[0].ledger.bases.clear()  # as in a shard that was restored
    push = Push(A, 5, np.float32(1), clock=1, base=5, lease=8, position=64)
    assert [one.lost for one in subject.send(push, subject.full(1.0))] == [3]
    subject.shard.fence([A.incarnation])
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(4, 3, 32),) * 2
    assert subject.shard.lost_of() == {A: 3}


def test_once_fenced_a_ledger_is_final_while_pushes_come_in(make: Make, eager_threads: None) -> None:
    subject = make((400,) * 6)
    begun, refused = threading.Event(), threading.Event()
    gradient = subject.full(1.0)

    def pusher() -> None:
        sequence = 0
        try:
            while True:
                sequence += 1
                subject.send(Push(A, sequence, np.float32(1)), gradient)
                begun.set()
        except Rejected:
            refused.set()

    thread = threading.Thread(target=pusher)
    thread.start()
    assert begun.wait(60)
    subject.shard.fence([A.incarnation])
    final, values = subject.shard.ledgers()[PARAMETERS, A], subject.read()
    thread.join(60)
    assert refused.is_set()
    assert subject.shard.ledgers()[PARAMETERS, A] == final
    np.testing.assert_array_equal(subject.read(), values)
    low, high = (row.sequence for row in final)
    assert high - low <= 1
    assert set(values.tolist()) <= {-low, -high}


def test_fencing_waits_for_the_push_that_is_inside(make: Make) -> None:
    inside, go_on, fenced = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def hold(*row: object) -> None:
        inside.set()
        assert go_on.wait(60)
        order.append("applied")

    def fence() -> None:
        subject.shard.fence([A.incarnation])
        order.append("fenced")
        fenced.set()

    subject = make((2,), on_apply=hold)
    threads = [threading.Thread(target=subject.push, args=(A, 1.0)), threading.Thread(target=fence)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    assert not fenced.wait(0.02)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert order == ["applied", "fenced"]


def test_application_order_is_recorded_under_the_lock(make: Make) -> None:
    told: list[AppliedPush] = []
    subject = make((2, 1), on_apply=told.append)
    push = subject.push(A, 1.0, rate=0.5)
    subject.send(push, subject.full(1.0))
    subject.send(dataclasses.replace(push, pusher=B), subject.full(1.0), [1])
    subject.assign(7.0, "best.0", B)
    assert told == [AppliedPush(*row, 1, 0.5) for row in ((0, A), (1, A), (1, B))]
