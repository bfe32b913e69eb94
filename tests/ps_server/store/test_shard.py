"""A shard in free running: initial values, what is refused, versions, named vectors, threads."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dbelief.core.push import NO_PUSH, PARAMETERS, AppliedPush, LedgerRow, Push, Pusher
from dbelief.errors import Rejected
from dbelief.optim import make_rule
from ps_server.store.segment import Outcome
from ps_server.store.shard import Shard

Make = Callable[..., Any]
A, B = Pusher(1, 11), Pusher(2, 12)
ONE = np.float32(1)


def start(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


# -- initial values ------------------------------------------------------------------------------------------


def test_reads_and_rules_wait_for_initial_values(make: Make) -> None:
    subject = make(initial=None)
    with pytest.raises(Rejected, match="segment 0: initial values are not complete yet"):
        subject.push(A, 1.0)
    with pytest.raises(Rejected, match="segment 1: no vector 'w' yet"):
        subject.shard.pull(PARAMETERS, 1)
    with pytest.raises(Rejected, match=r"segment 0 has no initial values \(3 of 3 miss them\)"):
        subject.shard.make_ready()
    subject.send(Push(A, 1, assign=True), subject.full(1.0), [0, 2])
    with pytest.raises(Rejected, match=r"segment 1 has no initial values \(1 of 3 miss them\)"):
        subject.shard.make_ready()
    with pytest.raises(Rejected, match="not complete yet"):
        subject.send(Push(B, 1, ONE), subject.full(1.0), [0])
    subject.send(Push(A, 1, assign=True), subject.full(1.0), [1])
    subject.shard.make_ready()
    np.testing.assert_array_equal(subject.read(), subject.full(1.0))
    assert subject.shard.versions() == [0, 0, 0]


def test_initial_values_may_come_in_parts(make: Make) -> None:
    subject = make((5,), initial=None)
    values = np.arange(5, dtype=np.float32)
    subject.shard.push(Push(A, 1, assign=True), 0, values[3:], offset=3)
    with pytest.raises(Rejected, match="segment 0 has no initial values"):
        subject.shard.make_ready()
    subject.shard.push(Push(A, 2, assign=True), 0, values[:3])
    subject.shard.push(Push(A, 3, assign=True), 0, values[3:], offset=3)
    subject.shard.make_ready()
    np.testing.assert_array_equal(subject.read(), values)


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("aaabbb"))), ids="".join)
def test_two_initialisers_in_any_order(make: Make, order: tuple[str, ...]) -> None:
    """Both draw the same bits from the same seed; each sends its segments in order."""
    subject = make(initial=None)
    values = np.arange(12, dtype=np.float32)
    left = {"a": [0, 1, 2], "b": [0, 1, 2]}
    for who in order:
        subject.send(Push(A if who == "a" else B, 1, assign=True), values, [left[who].pop(0)])
    subject.shard.make_ready()
    np.testing.assert_array_equal(subject.read(), values)
    subject.sequences = {A: 1, B: 1}
    subject.push(A, 1.0)
    subject.push(B, 1.0)
    np.testing.assert_array_equal(subject.read(), values - 2)


def test_two_initialisers_in_threads_while_the_job_begins(make: Make, eager_threads: None) -> None:
    """The slower one must not undo the first push of training."""
    for _ in range(20):
        subject = make((7,) * 10, initial=None)
        values = np.arange(70, dtype=np.float32)

        def initialise(pusher: Pusher, train: bool, subject: Any = subject, values: np.ndarray = values) -> None:
            subject.send(Push(pusher, 1, assign=True), values)
            if train:
                subject.shard.make_ready()
                subject.send(Push(pusher, 2, ONE), subject.full(1.0))

        start([threading.Thread(target=initialise, args=args) for args in ((A, True), (B, False))])
        np.testing.assert_array_equal(subject.read(), values - 1)


def test_late_initialiser_changes_nothing(make: Make) -> None:
    subject = make(initial=3.0)
    subject.push(A, 1.0)
    late = subject.send(Push(B, 1, assign=True), subject.full(99.0))
    assert [one.outcome for one in late] == [Outcome.DUPLICATE] * 3
    np.testing.assert_array_equal(subject.read(), subject.full(2.0))
    assert subject.shard.versions() == [1, 1, 1]
    subject.send(Push(B, 2, ONE), subject.full(1.0))
    np.testing.assert_array_equal(subject.read(), subject.full(1.0))


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dial", [None, 0])
@pytest.mark.parametrize(
    ("push", "index", "values", "offset", "reason"),
    [
        (Push(A, 1, ONE), 0, np.ones(6, np.float32), 0, "segment 0: 6 numbers at 0 do not fit its 5"),
        (Push(A, 1, ONE), 0, np.ones(5, np.float32), 1, "segment 0: 5 numbers at 1 do not fit its 5"),
        (Push(A, 1, ONE), 2, np.ones(0, np.float32), 0, "segment 2: 0 numbers at 0"),
        (Push(A, 1, ONE), 3, np.ones(5, np.float32), 0, "segment 3 is not on this shard"),
        (Push(A, 1, ONE, vector="best.0"), 0, np.ones(5, np.float32), 0, r"the rule applies to 'w', not to 'best\.0'"),
        (Push(A, 1, ONE), 0, np.ones(5), 0, "segment 0: float64 numbers for 'w', which holds float32"),
        (Push(A, 1, assign=True, vector="x"), 0, np.ones(5), 0, "segment 0: float64 numbers for 'x'"),
        (Push(A, 1, assign=True, vector="accrued"), 0, np.ones(5, np.float32), 0, "float32 numbers for 'accrued'"),
        (Push(A, 2, ONE), 0, np.ones(5, np.float32), 0, "was received where 1 was expected"),
    ],
)
def test_refused_push_changes_nothing(
    make: Make, dial: int | None, push: Push, index: int, values: np.ndarray, offset: int, reason: str
) -> None:
    subject = make(staleness=dial)
    before = subject.everything()
    with pytest.raises(Rejected, match=reason):
        subject.shard.push(push, index, values, offset)
    assert subject.everything() == before
    assert subject.shard.counters.pushes == 3  # the initial values


# -- applying ------------------------------------------------------------------------------------------------


def test_staleness_is_counted_in_versions(make: Make) -> None:
    subject = make((5, 3))
    for _ in range(4):
        subject.push(A, 1.0)
    gradient = np.ones(5, np.float32)
    found = [
        subject.shard.push(Push(B, n, ONE), 0, gradient, 0, read).staleness for n, read in ((1, 4), (2, 4), (3, 0))
    ]
    assert found == [0, 1, 6]
    assert subject.shard.push(Push(B, 3, ONE), 0, gradient, 0, 0).staleness == 0  # a duplicate
    assert subject.shard.push(Push(B, 4, ONE), 0, gradient, 0, 99).staleness == 0  # from a shard's longer life
    assert subject.shard.versions() == [8, 4]


def test_partial_push_changes_only_its_numbers_and_state(make: Make) -> None:
    subject = make((6,), rule="momentum", mu=0.5)
    subject.shard.push(Push(A, 1, ONE), 0, np.ones(2, np.float32), offset=1)
    subject.shard.push(Push(A, 2, ONE), 0, np.ones(2, np.float32), offset=2)
    np.testing.assert_array_equal(subject.read(), [0, -1, -2.5, -1, 0, 0])


def test_a_named_vector_is_read_where_all_of_it_was_written(make: Make) -> None:
    """Else whoever exports or evaluates it would take zeros for numbers."""
    subject = make((5, 3, 4))
    push = Push(A, 1, vector="best.0", assign=True)
    subject.send(push, subject.full(7.0), [0])
    subject.shard.push(push, 1, np.full(2, 7.0, np.float32))
    np.testing.assert_array_equal(np.frombuffer(subject.shard.pull("best.0", 0)[1] or b"", np.float32), np.full(5, 7.0))
    for index in (1, 2):
        with pytest.raises(Rejected, match=rf"segment {index}: no vector 'best\.0' yet"):
            subject.shard.pull("best.0", index)
    subject.shard.push(Push(A, 2, vector="best.0", assign=True), 1, np.full(1, 7.0, np.float32), offset=2)
    subject.send(push, subject.full(7.0), [2])
    np.testing.assert_array_equal(subject.read("best.0"), subject.full(7.0))


def test_an_answer_is_a_copy(make: Make) -> None:
    subject = make((4,))
    data = subject.shard.pull(PARAMETERS, 0)[1]
    subject.push(A, 1.0)
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), np.zeros(4))


def test_an_empty_shard_is_a_shard() -> None:
    shard = Shard((), make_rule("adam", {}))
    shard.make_ready()
    shard.fence([1])
    shard.forget([1])
    assert (shard.size, shard.versions(), shard.ledgers()) == (0, [], {})


# -- threads -------------------------------------------------------------------------------------------------


def test_pushes_of_many_threads_add_up_exactly(make: Make, eager_threads: None) -> None:
    """Whole numbers are added without rounding in any order: the sum shows each push exactly once."""
    subject, replicas, pushes = make((64, 1, 33)), 8, 60

    def replica(number: int) -> None:
        rng = np.random.default_rng(number)
        for sequence in range(1, pushes + 1):
            push = Push(Pusher(number, number + 1), sequence, ONE)
            for _ in range(1 + sequence % 2):  # every other push is sent twice
                subject.send(push, subject.full(sequence * (number + 1)), rng.permutation(3).tolist())

    start([threading.Thread(target=replica, args=(number,)) for number in range(replicas)])
    total = sum(range(1, pushes + 1)) * sum(range(1, replicas + 1))
    np.testing.assert_array_equal(subject.read(), subject.full(-total))
    assert subject.shard.versions() == [replicas * pushes] * 3


def test_a_reader_never_sees_half_an_update(make: Make) -> None:
    subject, stop, torn = make((200_000,)), threading.Event(), []

    def reader() -> None:
        while not stop.is_set():
            version, data = subject.shard.pull(PARAMETERS, 0)
            values = np.frombuffer(data, np.float32)
            if values[0] != -version or values[0] != values[-1]:
                torn.append(version)

    def writer() -> None:
        for _ in range(100):
            subject.push(A, 1.0)
        stop.set()

    start([threading.Thread(target=reader), threading.Thread(target=writer)])
    assert not torn
    np.testing.assert_array_equal(subject.read(), subject.full(-100.0))


def test_two_segments_are_updated_side_by_side(make: Make) -> None:
    """A push into one segment goes through while another push is held up inside the other segment."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(row: AppliedPush) -> None:
        if row.segment == 0:
            inside.set()
            assert go_on.wait(60)

    subject = make((2, 2), on_apply=hold)
    held = threading.Thread(target=subject.send, args=(Push(A, 1, ONE), subject.full(1.0), [0]))
    held.start()
    assert inside.wait(60)
    subject.send(Push(B, 1, ONE), subject.full(1.0), [1])
    assert subject.shard.versions() == [1, 1]
    go_on.set()
    held.join(60)
    assert not held.is_alive()


def test_a_vector_made_by_two_threads_at_once_loses_nothing(make: Make, eager_threads: None) -> None:
    for _ in range(60):
        subject, together = make((3, 3)), threading.Barrier(2)

        def keep(pusher: Pusher, index: int, subject: Any = subject, together: Any = together) -> None:
            together.wait(60)
            subject.send(Push(pusher, 1, vector="best.0", assign=True), subject.full(5.0), [index])

        start([threading.Thread(target=keep, args=args) for args in ((A, 0), (B, 1))])
        np.testing.assert_array_equal(subject.read("best.0"), subject.full(5.0))


def test_ledger_of_a_replica_combines_its_ranks(make: Make) -> None:
    subject = make((4, 4, 4))
    first, second = Pusher(1, 11, 0), Pusher(1, 11, 1)
    values = subject.full(1.0)
    for number in (1, 2):
        subject.send(Push(first, number, np.float32(1)), values, [0, 1])
    assert subject.shard.ledgers()["w", Pusher(1, 11)] == (NO_PUSH, LedgerRow(2)), "the third one has no row"
    subject.send(Push(second, 1, np.float32(1)), values, [2])
    assert subject.shard.ledgers()["w", Pusher(1, 11)] == (LedgerRow(1), LedgerRow(2))
    subject.send(Push(second, 2, np.float32(1)), values, [2])
    assert subject.shard.ledgers()["w", Pusher(1, 11)] == (LedgerRow(2), LedgerRow(2))
