"""Synchronous blocks: participants of each clock, agreed before anyone computes."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.ledgers import Applied
from coordinator.core.messages import Wait, WorkRequest
from coordinator.scheduling.leases import Leases
from coordinator.scheduling.synchronous import SynchronousPolicy
from dbelief.core.lease import DataLease


class Block:
    """Rounds with a pool of leases of four mini-batches, and the lives that ask."""

    def __init__(self, total: int = 1_000, size: int = 40, epoch: int = 1_000, turns: bool = False) -> None:
        self.pool = Leases(epoch, total, size, 10)
        self.rounds = SynchronousPolicy(self.pool, turns)
        self.last: dict[int, int] = {}  # by incarnation, the lease that it has received and trained last

    def request(self, life: int) -> WorkRequest:
        return WorkRequest(life % 100, life, last_lease=self.last.get(life, 0))

    def ask(self, *lives: int) -> None:
        """Replica n in life n, or in life 100 m + n."""
        for life in lives:
            self.rounds.request_lease(self.request(life), (), 0.0)

    def form(self, *lives: int) -> bool:
        return bool(self.rounds.advance({life % 100: life for life in lives}))

    def held(self, life: int) -> DataLease | Wait | None:
        return self.rounds.held(self.request(life))

    def members(self) -> list[tuple[int, list[int]]]:
        return [(clock, list(replicas)) for clock, replicas in self.rounds.membership().rounds]

    def lease(self, life: int) -> DataLease:
        lease = self.held(life)
        assert isinstance(lease, DataLease), lease
        return lease

    def work(self, life: int) -> DataLease:
        lease = self.lease(life)
        self.finish(life, lease)
        return lease

    def finish(self, life: int, lease: DataLease) -> None:
        self.last[life] = lease.id
        self.pool.acknowledge(life, lease.id, lease.samples)

    def start(self, *lives: int) -> None:
        self.ask(*lives)
        assert self.form(*lives)
        self.rounds.shards_informed = True


def test_a_block_waits_until_all_the_living_ask() -> None:
    block = Block()
    block.ask(1)
    assert not block.form(1, 2)
    block.ask(2)
    assert block.form(1, 2)
    assert block.rounds.blocks == 1


def test_block_needs_a_live_replica() -> None:
    assert not Block().form()


def test_lost_answer_is_repeated_until_work_begins() -> None:
    block = Block()
    block.start(1)
    first = block.lease(1)
    assert block.lease(1) == first
    block.finish(1, first)
    assert block.held(1) is None


def test_edges_of_membership_are_where_short_parts_end() -> None:
    block = Block(total=100)  # parts of 4, 4 and 2 mini-batches
    block.start(1, 2, 3)
    assert block.members() == [(0, [1, 2, 3]), (2, [1, 2]), (4, [])]
    assert block.rounds.clock == 4


def test_the_offer_changes_when_data_returns() -> None:
    """A request that found none is held until then: its replica is not asked for again."""
    block = Block(total=120)
    block.start(1, 2, 3)
    for life in 1, 2:
        block.work(life)
    block.lease(3)
    block.ask(1, 2)
    assert not block.form(1, 2), "the third has the rest"
    before = block.rounds.offer
    block.rounds.fenced(3, 3)
    assert block.rounds.offer == before
    block.pool.revoke(3, Applied())
    assert block.rounds.offer != before
    block.start(1, 2)


def test_death_of_a_waiting_replica_changes_no_membership() -> None:
    block = Block()
    block.ask(2)
    assert not block.rounds.fenced(2, 2)
    block.ask(1)
    assert not block.form(1, 2)


def test_longest_lease_sets_the_clock_after_its_holder_dies() -> None:
    block = Block(total=70)
    block.start(1, 2)
    assert block.rounds.fenced(1, 1)
    assert block.members() == [(0, [2]), (3, []), (4, [])]
    block.work(2)
    block.pool.revoke(1, Applied())
    block.start(2)
    assert block.lease(2).clock == 4


@pytest.mark.parametrize(
    ("left", "shares"), [(120, [40, 40, 40]), (119, [40, 40, 39]), (70, [30, 30, 10]), (40, [20, 20]), (5, [5])]
)
def test_replicas_share_the_rest_of_an_epoch_in_equal_clocks(left: int, shares: list[int]) -> None:
    block = Block(epoch=120 + left)
    block.start(1, 2, 3)
    for life in (1, 2, 3):
        block.work(life)
    block.start(1, 2, 3)
    assert [block.lease(life).samples for life in range(1, 1 + len(shares))] == shares


def test_lost_rounds_resend_finished_members() -> None:
    """They will not call it again before the next block, which the others could not reach."""
    block = Block(total=100)  # parts of 4, 4 and 2 mini-batches
    block.start(1, 2, 3)
    block.work(1)
    third = block.lease(3)
    assert block.held(1) is None
    assert not block.rounds.membership_changes(), "as long as no shard came back, nobody needs to know"
    assert block.rounds.shard_recovered()
    assert not block.rounds.membership_changes()
    assert block.members() == [(0, [2, 3]), (2, [2]), (4, [])]
    epoch = block.rounds.member_epoch
    assert block.held(103) is None  # another life
    assert block.held(2) is not None  # it has not begun
    assert not block.rounds.membership_changes()
    block.finish(3, third)
    assert block.held(3) is None
    assert block.held(3) is None
    assert block.rounds.membership_changes()
    assert block.rounds.member_epoch == epoch + 1
    assert block.members() == [(0, [2]), (4, [])]


def test_a_joiner_waits_for_the_next_block() -> None:
    block = Block()
    block.start(1)
    block.ask(2)
    assert block.held(2) is None
    block.work(1)
    block.ask(1)
    assert block.form(1, 2)
    block.rounds.shards_informed = True
    assert block.lease(2).clock == block.lease(1).clock == 4


def test_requests_of_an_old_incarnation_are_not_transferred() -> None:
    block = Block()
    block.ask(1, 2)
    assert not block.form(1, 102)
    block.ask(102)
    assert not block.rounds.fenced(2, 2)
    assert block.form(1, 102)


@given(
    replicas=st.integers(1, 4),
    total=st.integers(1, 200),
    story=st.lists(st.sampled_from(["work", "die", "join"]), max_size=25),
    seed=st.integers(0, 999),
)
def test_clocks_are_disjoint_and_all_samples_in_blocks(replicas: int, total: int, story: list[str], seed: int) -> None:
    picks = random.Random(seed)
    block = Block(total=total, size=30, epoch=70)
    living = list(range(1, replicas + 1))
    newest = replicas
    trained: Counter[tuple[int, int]] = Counter()
    clock = 0
    for happening in [*story, *["work"] * 200]:
        if happening == "die" and len(living) > 1:
            life = living.pop(picks.randrange(len(living)))
            block.rounds.fenced(life % 100, life)
            block.pool.revoke(life, Applied())
        elif happening == "join":
            newest += 1
            living.append(newest)
        for life in living:
            if block.held(life) is None:
                block.ask(life)
        if block.form(*living):
            block.rounds.shards_informed = True
            edges = block.members()
            assert edges[0][0] == clock, "a block begins where the one before ended"
            assert [len(replicas) for _, replicas in edges] == sorted((len(rs) for _, rs in edges), reverse=True)
            assert edges[-1] == (block.rounds.clock, [])
            clock = block.rounds.clock
        if happening == "work":
            for life in living:
                lease = block.held(life)
                if isinstance(lease, DataLease):
                    members = [rs for edge, rs in block.members() if edge <= lease.clock][-1]
                    assert life % 100 in members
                    trained.update((lease.epoch, position) for position in range(lease.start, lease.stop))
                    block.finish(life, lease)
    assert block.pool.finished
    assert trained == {(i // 70, i % 70): 1 for i in range(total)}


# -- turns ----------------------------------------------------------------------------------------------------------


def test_in_turn_each_clock_is_one_replicas() -> None:
    block = Block(total=160, turns=True)
    block.start(1, 2, 3)
    leases = [block.lease(life) for life in (1, 2, 3)]
    assert [(lease.clock, lease.stride, lease.samples) for lease in leases] == [(0, 3, 40), (1, 3, 40), (2, 3, 40)]
    assert block.members() == [(clock, [1 + clock % 3]) for clock in range(12)] + [(12, [])]
    for life, lease in enumerate(leases, 1):
        block.finish(life, lease)
    block.start(1, 2, 3)
    leases = [block.lease(life) for life in (1, 2)]
    assert [(lease.clock, lease.samples) for lease in leases] == [(12, 20), (13, 20)]
    owners = {12: 1, 13: 2, 15: 1, 16: 2}
    whole = [(clock, [owners[clock]] if clock in owners else []) for clock in range(12, 18)]
    assert block.members() == whole, "the third found no data"


def test_turns_of_dead_replicas_are_empty() -> None:
    block = Block(turns=True)
    block.start(1, 2)
    assert block.rounds.fenced(2, 2)
    assert block.members() == [(clock, [1] if clock % 2 == 0 else []) for clock in range(7)] + [
        (7, []),
        (8, []),
    ]
    taken = SynchronousPolicy(block.pool, turns=True)
    taken.restore(block.rounds.state())
    assert taken.membership() == block.rounds.membership()


def test_a_script_holds_a_lease_of_the_next_block_too() -> None:
    """It draws ahead of its steps: until these are acknowledged, the shards wait for it in both blocks."""
    block = Block(total=200)
    block.start(1, 2)
    first = [block.lease(life) for life in (1, 2)]
    assert block.members() == [(0, [1, 2]), (4, [])]
    block.last |= {life: lease.id for life, lease in zip((1, 2), first, strict=True)}
    assert block.held(1) is None
    block.start(1, 2)
    second = [block.lease(life) for life in (1, 2)]
    assert {lease.clock for lease in second} == {4}
    assert block.members() == [(0, [1, 2]), (4, [1, 2]), (8, [])]
    block.finish(1, first[0])
    assert block.lease(1) == second[0], "its reply was lost"
    assert block.members() == [(0, [2]), (4, [1, 2]), (8, [])]
    block.finish(2, first[1])
    assert block.lease(2) == second[1]
    assert block.members() == [(0, []), (4, [1, 2]), (8, [])]


def test_a_failed_script_leaves_both_blocks() -> None:
    block = Block(total=200)
    block.start(1, 2)
    block.last |= {life: block.lease(life).id for life in (1, 2)}
    block.start(1, 2)
    assert block.rounds.fenced(2, 2)
    assert block.members() == [(0, [1]), (4, [1]), (8, [])]
    taken_over = SynchronousPolicy(block.pool)
    taken_over.restore(json.loads(json.dumps(block.rounds.state())))
    assert taken_over.membership().rounds == block.rounds.membership().rounds


def test_a_lease_has_the_samples_of_its_block() -> None:
    block = Block(total=190)
    block.start(1, 2)
    first = [block.lease(life) for life in (1, 2)]
    assert {block.rounds.block_of(lease) for lease in first} == {(0, (40, 40))}
    block.last |= {life: lease.id for life, lease in zip((1, 2), first, strict=True)}
    block.start(1, 2)
    assert {block.rounds.block_of(block.lease(life)) for life in (1, 2)} == {(80, (40, 40))}
