"""Members that request one kind of work: scripts, which draw ahead of their steps and evaluate between them."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.effects import SetMembership
from coordinator.core.messages import Assignment, EvaluationLease, Wait, Wants, WorkRequest
from coordinator.core.warm_start import WarmStart
from coordinator.scheduling.free_running import FreeRunningPolicy
from coordinator.scheduling.leases import Leases
from coordinator.scheduling.training import Training
from dbelief.core.lease import DataLease
from dbelief.core.push import PARAMETERS
from tests.coordinator.world import SHAPE, make_job

ANY, TRAINING, EVALUATION = Wants
FIRST, SECOND = 10, 11
"""Incarnations of replicas 0 and 1."""


class Assigned:
    """The training of a job, and requests of two replicas for its work."""

    def __init__(self, **changes: Any) -> None:
        self.training = Training(make_job(**changes), SHAPE)
        self.last: dict[int, int] = {}

    def __call__(self, wants: Wants, incarnation: int = FIRST, received: bool = True) -> Assignment:
        """The answer to a request; `received`: whether the replica gets it."""
        request = WorkRequest(incarnation - FIRST, incarnation, last_lease=self.last.get(incarnation, 0), wants=wants)
        work = self.training.assign(request, trains=True, evaluates=True, living=(0, 1), now_s=0.0)
        if received and isinstance(work, DataLease):
            self.last[incarnation] = work.id
        return work

    def queue(self) -> Assigned:
        """An evaluation is due."""
        self.training.evaluations.request("validation", PARAMETERS)
        return self

    def inform_shards(self, clock: int = 0) -> list[tuple[int, ...]]:
        """Send what has changed of the members; who they are after each change."""
        changes = self.training.policy.membership_changes()
        for change in changes:
            assert isinstance(change, SetMembership)
            self.training.policy.shards_acknowledged(change.member_epoch, clock)
        return [change.rounds[0][1] for change in changes if isinstance(change, SetMembership)]


def bounded(**changes: Any) -> Assigned:
    """Two replicas at bounded staleness, each with a lease."""
    assign = Assigned(strategy__staleness=1, **changes)
    for incarnation in (FIRST, SECOND):
        assert isinstance(assign(TRAINING, incarnation), Wait)
    assert assign.inform_shards() == [(0, 1)]
    for incarnation in (FIRST, SECOND):
        assert isinstance(assign(TRAINING, incarnation), DataLease)
    return assign


def test_each_kind_of_work_is_what_was_wanted() -> None:
    found = [type(Assigned().queue()(wants)) for wants in Wants]
    assert found == [EvaluationLease, DataLease, EvaluationLease]
    assert [type(Assigned()(wants)) for wants in Wants] == [DataLease, DataLease, Wait]


def test_repeated_requests_get_the_same_work_of_each_kind() -> None:
    """The replies are lost: a script may hold a lease and an evaluation at a time."""
    assign = Assigned().queue()
    evaluation, lease = assign(EVALUATION, received=False), assign(TRAINING, received=False)
    assert isinstance(evaluation, EvaluationLease)
    assert isinstance(lease, DataLease)
    assert assign(EVALUATION, received=False) == evaluation
    assert assign(TRAINING, received=False) == lease
    assert assign(EVALUATION) == evaluation, "the lease is no answer"
    assert list(assign.training.leases.outstanding) == [lease.id]


def test_one_that_wants_any_work_gets_what_it_holds_first() -> None:
    assign = Assigned().queue()
    lease = assign(TRAINING, received=False)
    assert assign(ANY) == lease
    assert isinstance(assign(ANY), EvaluationLease)


# -- bounded staleness ---------------------------------------------------------------------------------------


def test_one_without_an_evaluation_remains_a_member() -> None:
    assign = bounded()
    assert isinstance(assign(EVALUATION), Wait)
    assert assign.inform_shards() == []


def test_one_that_evaluates_between_its_steps_remains_a_member() -> None:
    assign = bounded().queue()
    assert isinstance(assign(EVALUATION), EvaluationLease)
    assert assign.inform_shards() == [], "it goes on with the lease that it has"
    lease = assign(TRAINING)
    assert isinstance(lease, DataLease)
    assert lease.clock == 3, "its clock continues"


def test_one_that_draws_ahead_of_the_last_samples_remains_a_member() -> None:
    """Its steps with the leases that it has are not pushed yet."""
    assign = bounded(limits={"samples": 60})
    assert assign.training.leases.left == 0
    assert isinstance(assign(TRAINING), Wait)
    assert assign.inform_shards() == []


@pytest.mark.parametrize("evaluates", [False, True])
def test_one_that_wants_any_work_is_no_member_without_a_lease(evaluates: bool) -> None:
    assign = bounded(limits={"samples": 60})
    work = assign.queue()(ANY) if evaluates else assign(ANY)
    assert isinstance(work, EvaluationLease if evaluates else Wait)
    assert assign.inform_shards() == [(1,)]


# -- lockstep ------------------------------------------------------------------------------------------------


def test_one_that_wants_an_evaluation_takes_no_part_in_the_next_block() -> None:
    assign = Assigned(strategy__staleness=0)
    living = {0: FIRST, 1: SECOND}
    assert isinstance(assign(TRAINING), Wait)
    assert isinstance(assign(EVALUATION, SECOND), Wait)
    assert assign.training.policy.advance(living) == []
    assert isinstance(assign(TRAINING, SECOND), Wait)
    (change,) = assign.training.policy.advance(living)
    assert isinstance(change, SetMembership)
    assign.training.policy.shards_acknowledged(change.member_epoch, 0)
    assert isinstance(assign(EVALUATION), Wait), "not the lease that it has in the block"
    leases = [assign(TRAINING, incarnation) for incarnation in living.values()]
    assert [lease.clock for lease in leases if isinstance(lease, DataLease)] == [0, 0]


# -- warm start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wants", "sizes"), [(ANY, [30, 10]), (TRAINING, [30, 30, 30, 10])])
def test_script_that_trains_alone_is_not_held_back(wants: Wants, sizes: list[int]) -> None:
    """It would wait for steps that it makes only after the next lease."""
    leases = Leases(100, 100, 30, 10)
    policy, drawn, last = FreeRunningPolicy(leases, WarmStart(40)), list[int](), 0
    while (lease := policy.request_lease(WorkRequest(0, FIRST, last_lease=last, wants=wants), (), 0.0)) is not None:
        drawn.append(lease.samples)
        last = lease.id
    assert drawn == sizes


@pytest.mark.parametrize("staleness", [None, 1])
def test_the_others_are_held_back_however_they_draw(staleness: int | None) -> None:
    assign = Assigned(strategy__staleness=staleness, strategy__warm_start={"samples": 40})
    assign(TRAINING)
    assign.inform_shards()
    sizes = list[int]()
    while isinstance(lease := assign(TRAINING), DataLease) and len(sizes) < 3:
        sizes.append(lease.samples)
    assert sum(sizes) > 40
    for wants in (ANY, TRAINING):
        assert isinstance(assign(wants, SECOND), Wait)
    assign.training.progress.warm_start.end_if_due(40, 1.0)
    assign(TRAINING, SECOND)
    assign.inform_shards()
    assert isinstance(assign(TRAINING, SECOND), DataLease)
