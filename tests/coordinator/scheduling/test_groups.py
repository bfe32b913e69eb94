"""Blocks for workers that exchange among themselves, with the workers played: each sample is in the result once."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.effects import Action, TakeSnapshot
from coordinator.core.ledgers import Applied
from coordinator.core.messages import Assignment, EvaluationLease, GroupLease, Wait, WorkRequest
from coordinator.scheduling.groups import MAX_FRUITLESS_BLOCKS, GroupPolicy
from coordinator.scheduling.leases import Leases
from coordinator.scheduling.training import Training
from tests.coordinator.world import SHAPE, make_job
from tests.examples import examples

BATCH, EPOCH = 4, 90

Samples = Counter[tuple[int, int]]


class Played:
    """The workers of a job, and its shards: what they hold is which samples were trained, and how often."""

    def __init__(self, seed: int, workers: int, epochs: int = 1) -> None:
        self.random = np.random.default_rng(seed)
        self.leases = Leases(EPOCH, EPOCH * epochs, 3 * BATCH, BATCH)
        self.groups = GroupPolicy(self.leases)
        self.shards: Samples = Counter()
        self.living: dict[int, int] = {}  # incarnation by replica
        self.results: dict[int, Samples] = {}  # by incarnation
        self.at: dict[int, int] = {}  # steps that a life's result holds
        self.done: dict[int, tuple[int, int]] = {}  # lease and position of a life's last step, as it reports them
        self.broken: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.made: dict[int, int] = {}  # steps of the last block
        self.incarnations = 0
        self.dies_with_it = False  # the only one that has the step in which another one died
        for _ in range(workers):
            self.join()

    @property
    def over(self) -> bool:
        return self.leases.finished and not self.groups.unpersisted_steps

    def join(self) -> None:
        """Another worker; numbers of the dead are given out again."""
        self.incarnations += 1
        number = next(n for n in range(100) if n not in self.living)
        self.living[number] = self.incarnations
        self.done[self.incarnations] = 0, 0

    def ask(self, number: int) -> GroupLease | None:
        life = self.living[number]
        self.leases.acknowledge(life, *self.done[life])
        last, steps, broken = self.last.get(life, 0), self.made.get(life, 0), self.broken.get(life, 0)
        request = WorkRequest(number, life, last_lease=last, steps=steps, broken_generation=broken)
        held = self.groups.held(request)
        if held is None:
            self.groups.settle()
            self.groups.advance(self.living)
        return held

    def die(self, number: int) -> None:
        life = self.living.pop(number)
        self.groups.replica_lost(life, True, 0.0)
        if self.groups.fenced(number, life) is not None:
            self.leases.revoke(life, Applied())
        self.groups.settle()

    def block(self, dies_at: int | None = None) -> None:
        """All ask and train a block; one of them dies before so many steps are made."""
        for _ in range(3):
            found = {number: self.ask(number) for number in sorted(self.living)}
            if self.over or all(found.values()):
                break
        together = {number: work for number, work in found.items() if work is not None}
        if not together:
            return
        group = list(together)
        self.made |= {self.living[n]: 0 for n in group}
        self.last |= {self.living[n]: work.lease.id for n, work in together.items()}
        assert len({work.generation for work in together.values()}) == 1
        assert [n for n, _ in next(iter(together.values())).members] == group
        self._agree(group, next(iter(together.values())))
        steps = max(-(-work.lease.samples // BATCH) for work in together.values())
        for step in range(steps + 1):
            if step == dies_at:
                self._break(group, together, step, steps)
                return
            if step < steps:
                self._step(group, together, step, group)
        self._write(group, together)

    def _agree(self, group: list[int], work: GroupLease) -> None:
        clock = work.lease.clock
        source = max((self.living[n] for n in group), key=lambda life: self.at.get(life, -1))
        most = self.results[source] if self.at.get(source, -1) >= max(0, work.written) else self.shards
        for number in group:
            self.results[self.living[number]] = most.copy()
            self.at[self.living[number]] = clock

    def _step(self, group: list[int], together: dict[int, GroupLease], step: int, heard: list[int]) -> None:
        """Make a step; only those who `heard` the sum have it."""
        for number in group:
            lease = together[number].lease
            for position in range(lease.start + step * BATCH, min(lease.start + (step + 1) * BATCH, lease.stop)):
                for other in heard:
                    self.results[self.living[other]][lease.epoch, position] += 1
        for number in heard:
            self.at[self.living[number]] += 1
            self.made[self.living[number]] = step + 1
            lease, done = together[number].lease, (step + 1) * BATCH
            if done < lease.samples or (done < lease.samples + BATCH and number != group[0]):
                self.done[self.living[number]] = lease.id, min(done, lease.samples)

    def _write(self, group: list[int], together: dict[int, GroupLease]) -> None:
        """The first one writes its result to the shards, and only then reports its last step."""
        lease = together[group[0]].lease
        self.shards = self.results[self.living[group[0]]].copy()
        if lease.samples:
            self.done[self.living[group[0]]] = lease.id, lease.samples

    def _break(self, group: list[int], together: dict[int, GroupLease], step: int, steps: int) -> None:
        """One dies; of the others some have the step that was under way, and some have not."""
        dying = int(self.random.choice(group))
        survivors = [number for number in group if number != dying]
        some = survivors
        if self.dies_with_it:
            some = survivors[-1:]
            self._step(group, together, step, some)
            step += 1
        elif step < steps and survivors and self.random.random() < 0.5:
            some = [n for n in survivors if self.random.random() < 0.5] or survivors[:1]
            self._step(group, together, step, some)
            step += 1
        if step == steps and group[0] in some:  # nobody waits for the dead: who is first writes
            self._write(group, together)
        for number in survivors:
            if step < steps or number not in some:
                self.broken[self.living[number]] = together[number].generation
        self.die(dying)
        if self.dies_with_it:
            self.ask(some[0])  # which tells of its steps
            self.die(some[0])


@examples(100)
@given(
    st.integers(0, 2**32),
    st.integers(2, 5),
    st.lists(st.tuples(st.sampled_from(["go", "die", "join"]), st.integers(0, 3)), max_size=12),
)
def test_each_sample_counts_once_after_any_deaths(seed: int, workers: int, story: list[tuple[str, int]]) -> None:
    world = Played(seed, workers, epochs=2)
    for what, step in story:
        if what == "join":
            world.join()
        world.block(step if what == "die" and len(world.living) > 1 else None)
    for _ in range(100):
        if world.over:
            break
        world.block()
    assert world.over
    assert world.leases.done == 2 * EPOCH
    counts = world.shards
    assert set(counts) == {(epoch, position) for epoch in range(2) for position in range(EPOCH)}
    assert max(counts.values()) == 1


def asked(
    groups: GroupPolicy, living: dict[int, int], last: dict[int, int], broken: int = 0, steps: int = 0
) -> list[GroupLease]:
    """All ask for work until they have some."""
    for _ in range(2):
        found = []
        for number, life in living.items():
            request = WorkRequest(
                number,
                life,
                last_lease=last.get(life, 0),
                steps=steps,
                broken_generation=broken,
                broken_reason="no way to B",
            )
            held = groups.held(request)
            if held is None:
                groups.settle()
                groups.advance(living)
            else:
                found.append(held)
    last |= {living[held.members[i % len(living)][0]]: held.lease.id for i, held in enumerate(found)}
    return found


def test_lost_step_of_sole_holder_loses_one_step() -> None:
    world = Played(0, 3, epochs=2)
    world.block()
    world.dies_with_it = True
    world.block(1)
    world.dies_with_it = False
    while not world.over:
        world.block()
    assert world.leases.done == 2 * EPOCH
    assert max(world.shards.values()) == 1
    assert world.shards.total() == 2 * EPOCH - 3 * BATCH


def test_evaluation_and_snapshot_wait_for_group_upload() -> None:
    strategy = {"name": "sync-sgd", "batch": 10, "rule": {"name": "sgd", "rate": 0.1}, "lease": 30}
    job = make_job(strategy=strategy, snapshots__every_s=1, evaluate__every=10)
    training, living = Training(job, SHAPE), {0: 1, 1: 2}
    training.begin(0.0)

    def ask(number: int, last: int, steps: int = 0, broken: int = 0) -> Assignment:
        request = WorkRequest(number, living[number], last_lease=last, steps=steps, broken_generation=broken)
        return training.assign(request, True, True, living, 0.0)

    def block(now_s: float, steps: int = 0, broken: int = 0) -> list[Action]:
        """Both have made so much of the last block, and ask for the next."""
        for number in living:
            assert isinstance(ask(number, last.get(number, 0), steps, broken), Wait)
        training.settle_groups(now_s)
        return training.advance(living, now_s)

    def leases() -> dict[int, int]:
        work = [ask(number, last.get(number, 0)) for number in living]
        return {number: one.lease.id for number, one in zip(living, work, strict=True) if isinstance(one, GroupLease)}

    last: dict[int, int] = {}
    assert block(0.0) == []
    last = leases()
    assert len(last) == 2
    assert block(100.0, steps=1, broken=1) == []  # a set is due, and an evaluation
    assert training.progress.samples == 20
    last = leases()
    assert len(last) == 2
    actions = block(100.0, steps=3)
    assert [type(action) for action in actions] == [TakeSnapshot]
    training.end_set(100.0, complete=True)
    assert isinstance(ask(0, last[0]), EvaluationLease)


def test_repeatedly_broken_groups_fail_with_the_reason() -> None:
    leases = Leases(EPOCH, EPOCH, 3 * BATCH, BATCH)
    groups = GroupPolicy(leases)
    living, last, broken = {0: 1, 1: 2}, dict[int, int](), 0
    for turn in range(MAX_FRUITLESS_BLOCKS):
        assert not groups.failed
        work = asked(groups, living, last, broken)
        assert [one.generation for one in work] == [turn + 1] * 2
        broken = turn + 1
    assert asked(groups, living, last, broken) == []
    assert groups.failed == "the workers cannot reach each other, 5 times in a row: no way to B"


def test_an_answer_that_was_lost_is_given_again() -> None:
    leases = Leases(EPOCH, EPOCH, 3 * BATCH, BATCH)
    groups = GroupPolicy(leases)
    work = asked(groups, {0: 1}, {})
    assert groups.held(WorkRequest(0, 1)) == work[0]
    assert groups.held(WorkRequest(0, 1, last_lease=work[0].lease.id)) is None


def test_state_restores_the_group_policy() -> None:
    leases = Leases(EPOCH, EPOCH, 3 * BATCH, BATCH)
    groups = GroupPolicy(leases)
    one, two = asked(groups, {0: 1, 1: 2}, {})
    groups.held(WorkRequest(0, 1, last_lease=one.lease.id, steps=3))
    other = GroupPolicy(leases)
    other.restore(json.loads(json.dumps(groups.state())))
    assert other == groups
    other.held(WorkRequest(1, 2, last_lease=two.lease.id, steps=3))
    settled = other.settle()
    assert [(one.pushes, one.samples) for one in settled] == [(3, 12), (3, 12)]
    assert not other._block
    assert other.steps == 3


def test_block_without_survivor_counts_as_lost() -> None:
    leases = Leases(EPOCH, EPOCH, 3 * BATCH, BATCH)
    groups = GroupPolicy(leases)
    work = asked(groups, {0: 1, 1: 2}, {})
    leases.acknowledge(1, work[0].lease.id, 2 * BATCH)
    for number, life in {0: 1, 1: 2}.items():
        groups.replica_lost(life, True, 0.0)
        assert groups.fenced(number, life) is None
    assert groups.ended_generation == 1
    assert sum(one.lost for one in groups.settle()) == 4


def broken_block(steps: int) -> tuple[GroupPolicy, dict[int, int]]:
    """A policy whose first block of two broke after so many steps, which only the workers have."""
    groups = GroupPolicy(Leases(EPOCH, EPOCH, 3 * BATCH, BATCH))
    living = {0: 1, 1: 2}
    for work, (number, life) in zip(asked(groups, living, {}), living.items(), strict=True):
        request = WorkRequest(number, life, last_lease=work.lease.id, steps=steps, broken_generation=1)
        assert groups.held(request) is None
    assert [one.lost for one in groups.settle()] == [0, 0]
    assert (groups.steps, groups.written) == (steps, 0)
    return groups, living


def fail(groups: GroupPolicy, number: int, life: int) -> list[int]:
    """A worker fails; lost pushes that are counted then."""
    groups.replica_lost(life, True, 0.0)
    groups.fenced(number, life)
    return [one.lost for one in groups.settle() if one.lost]


@pytest.mark.parametrize("in_block", [False, True])
def test_unwritten_steps_of_an_earlier_block_are_lost_with_all_who_have_them(in_block: bool) -> None:
    groups, living = broken_block(2)
    if in_block:
        groups.advance(living)
    groups = restored(groups)
    assert fail(groups, 0, living[0]) == []
    assert fail(groups, 1, living[1]) == [2, 2]
    assert (groups.steps, groups.written) == (2, 2)
    assert not groups.unpersisted_steps


def test_a_worker_that_is_fenced_after_its_block_has_no_steps() -> None:
    """It had reported the end of the block, and was removed before the others had."""
    groups, living = broken_block(2)
    work = asked(groups, living, {})
    reports = [
        WorkRequest(number, life, last_lease=one.lease.id, steps=1, broken_generation=groups.generation)
        for one, (number, life) in zip(work, living.items(), strict=True)
    ]
    assert groups.held(reports[1]) is None
    groups.replica_lost(living[1], True, 0.0)
    assert groups.held(reports[0]) is None
    groups.settle()
    groups.fenced(1, living[1])
    assert fail(groups, 0, living[0]) == [3, 3]
    assert not groups.unpersisted_steps


def restored(groups: GroupPolicy) -> GroupPolicy:
    """The policy of the next coordinator."""
    other = GroupPolicy(groups.leases)
    other.restore(json.loads(json.dumps(groups.state())))
    assert other == groups
    return other
