"""Plans of configurations: the same for a seed, with the kinds that were promised, each of them a job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.simulate import plan
from dbelief.job import build_job
from dbelief.plan import make_plan

SEEDS = range(1, 6)


def test_a_plan_is_that_of_its_seed() -> None:
    assert plan.make_plan(1) == plan.make_plan(1) != plan.make_plan(2)


@pytest.mark.parametrize("seed", SEEDS)
def test_kinds_are_counted(seed: int) -> None:
    made = plan.make_plan(seed)
    assert [one.number for one in made] == list(range(40))
    for place, (part, count) in enumerate(zip(plan.PARTS, (10, 30), strict=True)):
        mine = [one for one in made if one.part == part]
        assert len(mine) == count
        assert Counter(one.kind for one in mine) == {kind: counts[place] for kind, counts in plan.KINDS.items()}
        kills = Counter(one.kill.role for one in mine if one.kill)
        assert kills == {role: counts[place] for role, counts in plan.KILLS.items()}
        assert sum(one.link is not None for one in mine) == plan.LINKED[place]
        assert sum(one.waiting for one in mine) == plan.LINKED[place] + plan.WAITING[place]
    ways = {one.job["strategy"].get("reduction", {}).get("way") for one in made if one.kind == "sync-sgd"}
    assert ways >= {"tree", "ring", "server"}
    assert {one.network for one in made} >= {"convolution", "local"}
    assert max(one.members for one in made) == 1_000
    assert {bool(one.every_s) for one in made if one.kind == plan.COORDINATOR} == {False, True}
    assert any(one.job["strategy"].get("quorum") for one in made)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_configuration_is_a_job(seed: int, tmp_path: Path) -> None:
    for one in plan.make_plan(seed):
        job = build_job(dict(one.job), tmp_path)
        assert plan.Configuration.of(one.to_dict()) == one
        if one.kind == plan.COORDINATOR:
            assert job.replicas == one.members
            continue
        assert 1 <= job.replicas == len(one.waits_s) <= 8
        assert 1 <= job.shards <= 3
        assert plan.travel_s(one) <= plan.LONGEST_TRAVEL_S
        assert all(0.02 <= wait_s <= 0.2 for wait_s in one.waits_s) == one.waiting
        if one.kill is not None:
            assert len(one.waits_s) > 1
            assert (job.replication == 2) == (one.kill.role == "followed shard")


def test_networks_have_their_parameters(tmp_path: Path) -> None:
    one = next(one for one in plan.make_plan(1) if one.kind == "downpour")
    for network in plan.NETWORKS.values():
        model = {"layers": list(network.layers), "loss": plan.LOSS}
        job = build_job({**one.job, "model": model, "data": dict(network.data)}, tmp_path)
        assert sum(shard.parameters for shard in make_plan(job).shards) == network.parameters
