"""Figures of rounds: which jobs have them, and their sums over what replicas report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.core.messages import ProgressReport, ResourceUsage
from coordinator.monitoring.rounds import has_rounds, round_figures
from coordinator.monitoring.summary import summary_of
from dbelief.core.push import PushResult
from dbelief.training.push_totals import PushTotals
from tests.coordinator.world import make_job

if TYPE_CHECKING:
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]
DILOCO: dict[str, Any] = {"name": "diloco", "batch": 5, "steps": 2, "inner": {"name": "sgd", "rate": 0.1}, "lease": 30}


@pytest.mark.parametrize(
    ("strategy", "rounds"),
    [
        (DILOCO, True),
        ({**DILOCO, "quorum": 1}, True),
        ({"name": "downpour", "staleness": 0, "rule": {"name": "sgd", "rate": 0.1}}, True),
        ({"name": "downpour", "staleness": 1, "rule": {"name": "sgd", "rate": 0.1}}, False),
        ({"name": "downpour", "rule": {"name": "sgd", "rate": 0.1}}, False),
        ({"name": "sync-sgd", "form": "shards", "rule": {"name": "sgd", "rate": 0.1}}, True),
        ({"name": "sync-sgd", "rule": {"name": "sgd", "rate": 0.1}}, False),
        ({"name": "sync-easgd", "rate": 0.1}, True),
        ({"name": "easgd", "rate": 0.1}, False),
        ({"name": "sandblaster"}, False),
    ],
)
def test_jobs_in_lockstep_have_rounds(strategy: dict[str, Any], rounds: bool) -> None:
    assert has_rounds(make_job(strategy=strategy)) == rounds


def test_rounds_without_a_quorum_are_those_of_the_leases(a_world: MakeWorld) -> None:
    world = a_world(strategy__staleness=0).started()
    first, second = world.replicas
    for replica in (first, second):
        replica.ask()
    world.settle()
    first.work()
    second.work()
    figures = round_figures(world.machine)
    assert figures is not None
    unknown = (figures.pushes_per_round, figures.sent_per_sample, figures.computing)
    assert (figures.rounds, unknown) == (0, (None, None, None))
    for _ in range(2):
        assert not first.push(), "the round waits for the other"
        assert second.push()
        assert first.push()
    first.tell()
    second.tell()
    figures = round_figures(world.machine)
    assert figures is not None
    assert (figures.rounds, figures.pushes_per_round, figures.late_pushes, figures.late_age) == (2, 2.0, 0, None)
    assert figures.sent_per_sample == 0
    world.run()
    figures = round_figures(world.machine)
    assert figures is not None
    assert (figures.rounds, figures.pushes_per_round) == (10, 2.0), "200 samples, 10 of each replica in a round"


def test_rounds_with_a_quorum_are_those_that_pushes_were_answered_with(a_world: MakeWorld) -> None:
    world = a_world(strategy={**DILOCO, "quorum": 1}).started()
    machine, (first, second) = world.machine, world.replicas
    told = [
        (first, PushTotals(), [(0.0, 1), (0.0, 2), (0.0, 4)], {"sent": 300, "received": 60, "residual": 0.0}),
        (second, PushTotals(), [(1.5, 4)], {"shared_sent": 100, "shared_received": 40, "sent": 0, "residual": 0.0}),
    ]
    for replica, totals, pushes, moved in told:
        for late, open_round in pushes:
            totals.add((1, 0, 0), 10, 2, 1.0, PushResult(late, clock=open_round))  # type: ignore[arg-type]
        usage = ResourceUsage({"compute": 3.0, "push": 0.5, "wait": 0.5}, tuple(totals.staleness), moved)
        machine.record_usage(replica.number, replica.incarnation, usage)
        p = totals.progress
        report = ProgressReport(
            pushes=p.pushes,
            samples=p.samples,
            steps=p.steps,
            loss_sum=p.loss_sum,
            staleness_sum=p.staleness_sum,
            open_round=p.open_round,
        )
        machine.report_progress(replica.number, replica.incarnation, report, world.now_s)
    expected = {
        "rounds": 4, "pushes_per_round": 1.0, "late_pushes": 1, "late_age": 1.5, "sent_per_sample": 10.0,
        "received_per_sample": 2.5, "computing": 0.75,
    }  # fmt: skip
    assert summary_of(machine, 1.0)["rounds"] == expected


def test_other_jobs_have_no_figures(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.run()
    assert world.machine.progress.rounds == 0
    assert round_figures(world.machine) is None
    assert summary_of(world.machine, 1.0)["rounds"] is None
