"""Every sample of every epoch exactly once, with deaths, snapshot sets and resumes at any moment."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.core.ledgers import Applied
from coordinator.scheduling.leases import Leases
from dbelief.core.lease import DataLease, FetchPushSchedule

BATCH_10 = FetchPushSchedule(10)


def leases(epoch: int = 100, total: int = 200, size: int = 30, cadence: FetchPushSchedule = BATCH_10) -> Leases:
    return Leases(epoch, total, size, cadence)


def take(pool: Leases, life: int = 1, sequence: int = 1, **options: int) -> DataLease:
    lease = pool.grant(0, life, sequence, **options)
    assert lease is not None
    return lease


def finish(pool: Leases, lease: DataLease) -> int:
    return pool.acknowledge(lease.id, pool.cadence.pushes(lease.samples))


def test_ranges_are_consecutive_with_short_epoch_ends() -> None:
    pool = leases()
    ranges = [(lease.epoch, lease.start, lease.stop) for lease in iter(lambda: pool.grant(0, 1, 1), None)]
    assert ranges == [
        *[(0, 0, 30), (0, 30, 60), (0, 60, 90), (0, 90, 100)],
        *[(1, 0, 30), (1, 30, 60), (1, 60, 90), (1, 90, 100)],
    ]
    assert not pool.room()
    assert not pool.finished


def test_the_total_cuts_the_last_lease() -> None:
    pool = leases(total=110)
    assert [lease.samples for lease in iter(lambda: pool.grant(0, 1, 1), None)] == [30, 30, 30, 10, 10]


def test_lease_has_a_schedule_position_and_unique_id() -> None:
    pool = leases()
    assert [(lease.id, lease.samples_before) for lease in (take(pool), take(pool), take(pool))] == [
        (1, 0),
        (2, 30),
        (3, 60),
    ]


def test_no_more_is_leased_than_asked_for() -> None:
    pool = leases()
    assert pool.grant(0, 1, 1, at_most=0) is None
    assert take(pool, at_most=7).samples == 7
    assert take(pool, at_most=1000).samples == 30


def test_without_data_nothing_is_leased() -> None:
    assert leases(epoch=0).grant(0, 1, 1) is None


def test_repeated_acknowledgements_change_nothing() -> None:
    pool = leases()
    lease = take(pool)
    assert [pool.acknowledge(lease.id, n) for n in (1, 1, 2, 1)] == [10, 0, 10, 0]
    assert pool.acknowledge(99, 1) == 0
    assert (pool.done, len(pool.outstanding)) == (20, 1)
    assert pool.acknowledge(lease.id, 3) == 10
    assert (pool.done, len(pool.outstanding)) == (30, 0)
    assert pool.acknowledge(lease.id, 3) == 0


def test_lost_lease_answer_is_found_until_the_first_push() -> None:
    pool = leases()
    lease = take(pool, life=7, sequence=5)
    assert pool.find_unstarted(7, 5) == lease
    assert pool.find_unstarted(7, 6) is None
    assert pool.find_unstarted(8, 5) is None


def test_returned_ranges_are_granted_first_and_split() -> None:
    pool = leases()
    take(pool, life=1, sequence=5)
    assert pool.revoke(1, lowest=5, highest=5) == (10, 0)
    assert (pool.done, pool.leased) == (10, 10)
    again = [take(pool, life=2, at_most=15), take(pool, life=2), take(pool, life=2)]
    assert [(lease.start, lease.stop) for lease in again] == [(10, 25), (25, 30), (30, 60)]
    assert [lease.samples_before for lease in again] == [10, 25, 30]


@pytest.mark.parametrize(
    ("lowest", "highest", "expected"),
    [
        (0, 0, (0, 0)),  # it never pushed
        (4, 4, (0, 0)),  # nor of this lease
        (4, 5, (0, 1)),  # its first push reached some segments
        (5, 5, (10, 0)),
        (5, 6, (10, 1)),
        (6, 7, (20, 1)),
        (7, 7, (30, 0)),  # all of it: the lease is done
    ],
)
def test_ledgers_settle_the_lease_of_a_dead_replica(lowest: int, highest: int, expected: tuple[int, int]) -> None:
    pool = leases()
    take(pool, life=1, sequence=5)
    assert pool.revoke(1, lowest, highest) == expected
    assert pool.done == expected[0]
    assert not pool.outstanding
    assert sum(stop - start for _, start, stop in pool.returned) == 30 - expected[0]


def test_reported_pushes_count_once_after_death() -> None:
    pool = leases()
    lease = take(pool, life=1, sequence=5)
    pool.acknowledge(lease.id, 2)
    assert pool.revoke(1, lowest=6, highest=7) == (0, 1)
    assert pool.done == 20


def test_segments_of_a_set_may_be_many_pushes_apart() -> None:
    pool = leases()
    take(pool, life=1, sequence=5)
    assert pool.revoke(1, lowest=5, highest=7) == (10, 2)


def test_reported_pushes_lost_with_a_shard_stay_reported() -> None:
    """What its holder told as acknowledged is not handed out again, though a shard came back without it."""
    pool = leases()
    lease = take(pool, life=1, sequence=5)
    pool.acknowledge(lease.id, 2)
    assert pool.revoke(1, lowest=4, highest=6) == (0, 0)
    assert list(pool.returned) == [(0, 20, 30)]


def test_the_last_acknowledged_push_is_known_until_the_incarnation_ends() -> None:
    """First of a pusher between two leases, then of one that holds its second."""
    pool = leases()
    first = take(pool, life=1, sequence=5)
    assert pool.reached(1) == 4
    pool.acknowledge(first.id, 3)
    for one in (pool, restored_by_another(pool)):
        assert (one.reached(1), one.pushers()) == (7, {1})
    second = take(pool, life=1, sequence=8)
    pool.acknowledge(second.id, 1)
    assert pool.reached(1) == 8
    assert pool.reached(2) == 0
    pool.revoke(1, 10, 10)  # it had finished its second
    assert (pool.reached(1), pool.pushers()) == (0, set())


def test_pushes_of_an_ended_incarnation_lost_with_a_restored_shard_are_counted_once() -> None:
    pool = leases()
    pool.revoke(1, lowest=7, highest=7)
    pool.begin_set()
    pool.revoke(2, lowest=5, highest=6)  # while the set is written: the shard's file may lack some of its pushes
    pool.end_set(complete=False)
    assert Leases.lost_at_restore(restored_by_another(pool), {1: 4, 2: 5}) == 3
    pool.begin_set()
    pool.end_set(complete=True)
    assert pool.ended == {}
    pool.revoke(3, lowest=9, highest=9)
    assert [pool.lost_at_restore(applied) for applied in ({3: 6}, {3: 6}, {3: 2}, {})] == [3, 0, 4, 2]


def restored_by_another(pool: Leases) -> Leases:
    """The pool of a coordinator that takes over."""
    successor = leases()
    successor.take_over(json.loads(json.dumps(pool.state())))
    return successor


def test_only_the_dead_lifes_leases_are_given_back() -> None:
    pool = leases()
    take(pool, life=1)
    other = take(pool, life=2)
    pool.revoke(1, 0, 0)
    assert list(pool.outstanding) == [other.id]


def test_steps_behind_one_push_are_returned_together() -> None:
    pool = leases(size=60, cadence=FetchPushSchedule(10, n_push=2))
    take(pool, life=1, sequence=1)
    assert pool.revoke(1, lowest=1, highest=1) == (20, 0)
    assert list(pool.returned) == [(0, 20, 60)]


def restored(pool: Leases, ledgers: dict[int, tuple[int, int]], **options: Any) -> tuple[Leases, Any]:
    successor, rows = leases(**options), {life: Applied(*row) for life, row in ledgers.items()}
    return successor, successor.restore(json.loads(json.dumps(pool.state())), rows)


def test_lease_ended_during_a_set_is_corrected_by_ledgers() -> None:
    pool = leases()
    first = take(pool, life=1, sequence=1)
    pool.begin_set()
    finish(pool, first)
    second = take(pool, life=1, sequence=4)
    pool.acknowledge(second.id, 1)
    successor, outcome = restored(pool, {1: (2, 2)})
    assert successor.done == 20
    assert list(successor.returned) == [(0, 20, 30), (0, 30, 60)]
    assert outcome == (0, {0: -20})


def test_lease_ended_before_the_set_needs_no_ledger() -> None:
    pool = leases()
    finish(pool, take(pool))
    pool.begin_set()
    successor, outcome = restored(pool, {})
    assert (successor.done, list(successor.returned), outcome[0]) == (30, [], 0)


def test_ended_leases_are_dropped_after_the_set() -> None:
    pool = leases()
    pool.begin_set()
    pool.end_set(complete=True)
    finish(pool, take(pool))
    assert pool.state()["held"] == []


def test_lease_fenced_as_done_stays_done_after_restore() -> None:
    """The fence forgot its ledger rows before the shards wrote: the set knows nothing of that life."""
    pool = leases()
    take(pool, life=1, sequence=1)
    pool.begin_set()
    pool.revoke(1, lowest=3, highest=3)
    successor, _ = restored(pool, {})
    assert (successor.done, list(successor.returned)) == (30, [])


def test_lease_reported_done_before_fence_stays_done() -> None:
    pool = leases()
    pool.begin_set()
    finish(pool, take(pool, life=1, sequence=1))
    pool.revoke(1, lowest=3, highest=3)
    successor, _ = restored(pool, {})
    assert (successor.done, list(successor.returned)) == (30, [])


def test_ledgers_may_exceed_reports() -> None:
    pool = leases()
    take(pool, life=1, sequence=1)
    successor, outcome = restored(pool, {1: (2, 3)})
    assert successor.done == 20
    assert outcome == (1, {0: 20})


def test_held_leases_are_counted_in_their_old_batches() -> None:
    pool = leases()
    take(pool, life=1, sequence=1)
    successor, _ = restored(pool, {1: (2, 2)}, cadence=FetchPushSchedule(3))
    assert successor.done == 20
    assert successor.cadence == FetchPushSchedule(3)


@dataclass
class Life:
    """A replica as the model has it: numbers of the last push that each of two segments applied."""

    replica: int
    applied: list[int] = field(default_factory=lambda: [0, 0])
    lease: DataLease | None = None
    told: int = 0


class Pool(RuleBasedStateMachine):
    """Two segments, each with a count per sample; lives that push to one after the other; sets; crashes."""

    @initialize(
        epoch=st.integers(1, 40),
        total=st.integers(1, 100),
        size=st.integers(1, 30),
        cadence=st.builds(FetchPushSchedule, st.integers(1, 12), st.just(1), st.integers(1, 3), st.booleans()),
    )
    def begin(self, epoch: int, total: int, size: int, cadence: FetchPushSchedule) -> None:
        self.options = epoch, total, size, cadence
        self.pool = Leases(*self.options)
        self.counts: list[Counter[tuple[int, int]]] = [Counter(), Counter()]
        self.lives: dict[int, Life] = {}
        self.newest = 0
        self.twice = 0
        self.writing: list[Any] | None = None  # what each segment wrote of the set that is under way
        self.complete: Any = None

    def write(self, segment: int) -> Any:
        ledger = {life: own.applied[segment] for life, own in self.lives.items()}
        return self.counts[segment].copy(), ledger

    @precondition(lambda self: len(self.lives) < 3)
    @rule()
    def join(self) -> None:
        self.newest += 1
        self.lives[self.newest] = Life(self.newest % 3)

    @rule(pick=st.integers(0, 2), at_most=st.none() | st.integers(0, 20))
    def ask(self, pick: int, at_most: int | None) -> None:
        for life, own in list(self.lives.items())[pick : pick + 1]:
            if own.lease is None:
                own.lease = self.pool.grant(own.replica, life, own.applied[0] + 1, at_most)
                own.told = 0

    @rule(pick=st.integers(0, 2), whole=st.booleans())
    def push(self, pick: int, whole: bool) -> None:
        for own in list(self.lives.values())[pick : pick + 1]:
            for _ in range(1 + whole):
                self.push_to_one(own)

    def push_to_one(self, own: Life) -> None:
        if own.lease is None:
            return
        segment = 0 if own.applied[0] == own.applied[1] else 1
        made = own.applied[segment] - own.lease.first_sequence + 1
        cadence = self.pool.cadence
        if made == cadence.pushes(own.lease.samples):
            return
        before, after = (cadence.samples_in(own.lease.samples, n) for n in (made, made + 1))
        for position in range(own.lease.start + before, own.lease.start + after):
            self.counts[segment][own.lease.epoch, position] += 1
        own.applied[segment] += 1

    @rule(pick=st.integers(0, 2))
    def tell(self, pick: int) -> None:
        for own in list(self.lives.values())[pick : pick + 1]:
            if own.lease is not None:
                own.told = min(own.applied) - own.lease.first_sequence + 1
                self.pool.acknowledge(own.lease.id, own.told)
                if own.told == self.pool.cadence.pushes(own.lease.samples):
                    own.lease = None

    @precondition(lambda self: not self.writing)  # fences and writing take turns
    @rule(pick=st.integers(0, 2))
    def die(self, pick: int) -> None:
        for life in list(self.lives)[pick : pick + 1]:
            own = self.lives.pop(life)
            self.twice += self.pool.revoke(life, min(own.applied), max(own.applied))[1]

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin_set(self) -> None:
        self.pool.begin_set()
        self.writing = []

    @precondition(lambda self: self.writing is not None)
    @rule()
    def write_one(self) -> None:
        assert self.writing is not None
        if len(self.writing) < 2:
            self.writing.append(self.write(len(self.writing)))
            return
        self.complete = self.writing, json.loads(json.dumps(self.pool.state())), self.twice
        self.pool.end_set(complete=True)
        self.writing = None

    @precondition(lambda self: self.complete is not None)
    @rule()
    def crash(self) -> None:
        written, state, self.twice = self.complete
        self.counts = [counts.copy() for counts, _ in written]
        rows = {
            life: Applied(*sorted(ledger.get(life, 0) for _, ledger in written))
            for _, ledger in written
            for life in ledger
        }
        self.pool = Leases(*self.options)
        self.twice += self.pool.restore(state, rows)[0]
        self.lives.clear()
        self.writing = None

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "pool"):
            return
        cadence, held = self.pool.cadence, self.pool.outstanding.values()
        open_samples = sum(h.lease.samples - cadence.samples_in(h.lease.samples, h.pushes) for h in held)
        assert self.pool.leased == self.pool.done + open_samples <= self.pool.total

    def teardown(self) -> None:
        """Those who live finish; then nothing may be missing, and only what was counted may be there twice."""
        if not hasattr(self, "pool"):
            return
        if not self.lives:
            self.join()
        for _ in range(10_000):
            if self.pool.finished:
                break
            self.ask(0, None)
            self.ask(1, None)
            self.ask(2, None)
            for own in self.lives.values():
                self.push_to_one(own)
            for pick in range(3):
                self.tell(pick)
        epoch, total, _, cadence = self.options
        wanted = {(i // epoch, i % epoch) for i in range(total)}
        assert self.pool.done == total
        assert set(self.counts[0]) == set(self.counts[1]) == wanted
        # A doubled push is there once more on some segments, on one at least.
        assert self.twice <= sum(counts[i] - 1 for counts in self.counts for i in wanted)
        most = sum(max(counts[i] for counts in self.counts) - 1 for i in wanted)
        assert most <= self.twice * cadence.batch * cadence.n_push


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
