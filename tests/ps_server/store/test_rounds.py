"""The staleness dial at 0: synchronous SGD for any membership changes and any order of pushes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.push import NO_PUSH, PARAMETERS, AppliedPush, LedgerRow, Push, Pusher
from dbelief.errors import Rejected, Unavailable
from dbelief.optim import RULES, make_rule
from ps_server.store.segment import Outcome
from tests.examples import examples
from tests.ps_server.servers import wait_until
from tests.threads import at_once

Make = Callable[..., Any]
REPLICAS = tuple(Pusher(number, 10 + number) for number in range(5))
A, B, C, D, E = REPLICAS
N = 12


@st.composite
def rounds(draw: st.DrawFn) -> list[list[tuple[Pusher, int, int]]]:
    """For each of a few rounds: (pusher, samples, seed of its gradient) in order of arrival."""
    replicas = REPLICAS[: draw(st.integers(1, 4))]
    return [
        [(pusher, draw(st.integers(1, 64)), draw(st.integers(0, 1_000))) for pusher in draw(st.permutations(replicas))]
        for _ in range(draw(st.integers(1, 4)))
    ]


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N, dtype=np.float32)


@examples(60)
@given(rounds(), st.sampled_from(RULES))
def test_the_order_of_arrival_changes_no_bit(make: Make, plan: list[list[tuple[Pusher, int, int]]], rule: str) -> None:
    """Bit-equal to the rule on the mean weighted by samples, summed in order of replica; so the log has them."""
    told: list[AppliedPush] = []
    subject = make(rule=rule, staleness=0, initial=gradient(7), on_apply=told.append)
    subject.shard.set_membership(1, [(0, [pusher.replica for pusher, _, _ in plan[0]])])
    w, formula = gradient(7), make_rule(rule, {})
    states = tuple(np.full(N, value, np.float32) for value in formula.state.values())
    for clock, arrivals in enumerate(plan):
        for pusher, samples, seed in arrivals:
            subject.push(pusher, gradient(seed), 0.1, clock, samples)
        total = sum(samples for _, samples, _ in arrivals)
        mean = np.zeros(N, np.float32)
        for _, samples, seed in sorted(arrivals):
            mean += gradient(seed) * np.float32(samples / total)
        formula.apply(w, mean, states, np.float32(0.1), clock + 1)
        rate, sequence = float(np.float32(0.1)), clock + 1
        summed = [(one, sequence, rate, clock, samples) for one, samples, _ in sorted(arrivals)]
        assert sorted(told, key=lambda row: row.segment) == [(index, *row) for index in range(3) for row in summed]
        told.clear()
        assert subject.read().tobytes() == w.tobytes()
        assert subject.shard.versions() == [clock + 1] * 3


def test_nothing_moves_before_the_last_member_has_pushed(make: Make) -> None:
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [0, 1])])
    push = subject.push(A, 1.0)
    assert not subject.read().any()
    assert [one.outcome for one in subject.send(push, subject.full(50.0))] == [Outcome.DUPLICATE] * 3
    subject.send(Push(B, 1, np.float32(1)), subject.full(3.0), [1])
    np.testing.assert_array_equal(subject.shard.versions(), [0, 1, 0])  # each segment closes for itself
    subject.send(Push(B, 1, np.float32(1)), subject.full(3.0), [0, 2])
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))
    assert subject.shard.ledgers()[PARAMETERS, A] == (LedgerRow(1), LedgerRow(1))


def test_a_gradient_is_kept_although_its_message_is_gone(make: Make) -> None:
    subject = make((4,), staleness=0)
    subject.shard.set_membership(1, [(0, [0, 1])])
    message = np.ones(4, np.float32)
    subject.shard.push(Push(A, 1, np.float32(1)), 0, message)
    message[:] = 1_000
    subject.push(B, 3.0)
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))


def test_before_anybody_is_a_member_gradients_wait(make: Make) -> None:
    subject = make(staleness=0)
    subject.push(A, 1.0)
    assert not subject.read().any()
    subject.shard.set_membership(1, [(0, [0])])
    np.testing.assert_array_equal(subject.read(), subject.full(-1.0))


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4])
def test_a_part_of_a_segment_is_refused(make: Make, length: int) -> None:
    """A part would have to be told from the rest when the round closes."""
    subject = make((5,), staleness=0)
    subject.shard.set_membership(1, [(0, [0])])
    before = subject.everything()
    with pytest.raises(Rejected, match=rf"segment 0: .* holds all 5 numbers, not {length}"):
        subject.shard.push(Push(A, 1, np.float32(1)), 0, np.ones(length, np.float32))
    assert subject.everything() == before


def test_round_takes_one_push_per_member(make: Make) -> None:
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [0, 1])])
    subject.push(A, 1.0)
    with pytest.raises(Rejected, match="segment 0: replica 0 has pushed round 0 already"):
        subject.send(Push(A, 2, np.float32(1), clock=0), subject.full(9.0))
    subject.push(B, 3.0)
    with pytest.raises(Rejected, match="segment 0: round 0 is over, the next is 1"):
        subject.send(Push(C, 1, np.float32(1), clock=0), subject.full(9.0))
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))
    subject.send(Push(A, 2, np.float32(1), clock=1), subject.full(4.0))
    subject.send(Push(B, 2, np.float32(1), clock=1), subject.full(4.0))
    np.testing.assert_array_equal(subject.read(), subject.full(-6.0))


# -- members come and go -------------------------------------------------------------------------------------


def test_waiting_gradient_of_a_dead_member_is_dropped(make: Make) -> None:
    """A snapshot would not hold it, so the ledger must not either: its samples are trained again."""
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [0, 1])])
    subject.push(B, 3.0)
    assert subject.shard.ledgers()["w", B] == (LedgerRow(1), LedgerRow(1))
    subject.shard.fence([B.incarnation])
    assert subject.shard.ledgers()["w", B] == (NO_PUSH, NO_PUSH)
    subject.shard.forget([B.incarnation])
    subject.shard.set_membership(2, [(0, [0])])
    subject.push(A, 1.0)
    np.testing.assert_array_equal(subject.read(), subject.full(-1.0))


def test_a_joiner_is_waited_for_from_its_clock_on(make: Make) -> None:
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [0]), (2, [0, 1])])
    subject.push(B, 7.0, clock=2)  # it may come before its round's turn
    subject.push(A, 1.0, clock=0)
    np.testing.assert_array_equal(subject.read(), subject.full(-1.0))
    subject.push(A, 1.0, clock=1)
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))
    subject.push(A, 1.0, clock=2)
    np.testing.assert_array_equal(subject.read(), subject.full(-6.0))
    subject.push(A, 1.0, clock=3)
    np.testing.assert_array_equal(subject.read(), subject.full(-6.0))


def test_an_older_member_epoch_is_ignored(make: Make) -> None:
    subject = make(staleness=0)
    subject.shard.set_membership(5, [(0, [0, 1])])
    for epoch in (4, 5):
        subject.shard.set_membership(epoch, [(0, [0])])
    subject.push(A, 1.0)
    assert not subject.read().any()
    subject.shard.set_membership(6, [(0, [0])])
    np.testing.assert_array_equal(subject.read(), subject.full(-1.0))


def test_rounds_without_members_pass_without_a_step(make: Make) -> None:
    subject = make(rule="momentum", mu=0.5, staleness=0)
    subject.shard.set_membership(1, [(0, []), (3, [1])])
    subject.shard.wait_for_clock([0, 1, 2], 3, 0.0)
    subject.push(B, 1.0, clock=3)
    np.testing.assert_array_equal(subject.read(), subject.full(-1.0))
    assert subject.shard.versions() == [1, 1, 1]


def test_a_round_that_all_have_done_passes_before_the_next_block_is_known(make: Make) -> None:
    """A shard that was restored has lost it: a replica that reports its clock waits here before it asks for a lease."""
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, []), (1, [])])
    subject.shard.wait_for_clock([0, 1, 2], 1, 0.0)
    assert [subject.shard.segment(index).rounds for index in (0, 1, 2)] == [1, 1, 1]
    assert not subject.read().any()


def test_after_the_last_members_a_round_stays_open(make: Make) -> None:
    """The coordinator names the next block's members before anybody computes it."""
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [0]), (1, [])])
    subject.push(A, 1.0, clock=0)
    with pytest.raises(Unavailable, match=r"round 1 still waits for replicas \[\]"):
        subject.shard.wait_for_clock([0], 2, 0.0)
    subject.shard.set_membership(2, [(1, [1]), (2, [])])
    subject.push(B, 1.0, clock=1)
    np.testing.assert_array_equal(subject.read(), subject.full(-2.0))


# -- waiting -------------------------------------------------------------------------------------------------


def test_free_running_does_not_wait(make: Make) -> None:
    make().shard.wait_for_clock([0, 1, 2], 1_000, 0.0)
    bounded = make(staleness=0)
    bounded.shard.set_membership(1, [(0, [0])])
    with pytest.raises(Unavailable, match="still waits"):
        bounded.shard.wait_for_clock([0, 1, 2], 1_000, 0.0)


def test_replicas_in_threads_are_the_joint_batch(make: Make, eager_threads: None) -> None:
    subject, clocks, replicas = make((6, 1, 9), staleness=0), 25, REPLICAS[:4]
    subject.shard.set_membership(1, [(0, [pusher.replica for pusher in replicas])])

    def replica(pusher: Pusher) -> None:
        order = np.random.default_rng(pusher.replica)
        for clock in range(clocks):
            push = Push(pusher, clock + 1, np.float32(1), samples=8, clock=clock)
            for _ in range(2):
                subject.send(push, subject.full(4 * clock * (pusher.replica + 1)), order.permutation(3).tolist())
            subject.shard.wait_for_clock([0, 1, 2], clock + 1, 10.0)

    at_once(replica, replicas)
    np.testing.assert_array_equal(subject.read(), subject.full(-(1 + 2 + 3 + 4) * sum(range(clocks))))
    assert subject.shard.versions() == [clocks] * 3


def test_a_round_of_several_segments_wakes_waiting_calls_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last segment's part ends: a wake-up at each would cost as much as the push."""
    subject = make(staleness=0)
    subject.shard.set_membership(1, [(0, [0, 1, 2])])
    barrier = subject.shard.barrier
    signals: list[dict[int, int]] = []
    signal = barrier._changed.notify_all

    def counted() -> None:
        signals.append(dict(barrier._awaited))
        signal()

    monkeypatch.setattr(barrier._changed, "notify_all", counted)

    def wait_for_the_round(_: int) -> None:
        subject.shard.wait_for_clock([0, 1, 2], 1, 60.0)

    with ThreadPoolExecutor(2) as pool:
        subject.push(A, 1.0)
        subject.push(B, 1.0)
        waiting = [pool.submit(wait_for_the_round, number) for number in range(2)]
        wait_until(lambda: barrier._awaited[2] == 2)
        subject.push(C, 1.0)
        for call in waiting:
            call.result(60)
    assert signals == [{2: 2}]
    assert not barrier._awaited
    subject.push(A, 1.0, clock=1)
    subject.push(B, 1.0, clock=1)
    subject.push(C, 1.0, clock=1)
    assert len(signals) == 1
    assert {segment.applied for segment in subject.shard.segments.values()} == {2}
