"""Exchanges on slow links: their bytes, their time, and what they leave for computing, by strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dbelief.job import Job
from dbelief.plan import Speeds
from dbelief.plan.exchange import ROUND_TRIPS, SLOWDOWN, Exchange, Hosts, exchange_of
from tests.jobs import SGD, small_job

SIZE = 1_000_000
LINK = Speeds(latency_s=0.01, bandwidth=1e6)
STEP_S = 0.5
LATENCY_S = ROUND_TRIPS * 0.02
VECTOR_S = SLOWDOWN * 4.0
"""Seconds of all parameters in float32 on a link."""

SCRIPT: dict[str, Any] = {"model": {"source": "script"}, "data": {"source": "script", "train": 1000}}
ADD = {"name": "downpour", "rule": {"name": "add"}, "n_push": 4, "n_fetch": 4}
DILOCO = {"name": "diloco", "batch": 10, "steps": 20}


def job(strategy: dict[str, Any], hosts: int = 2, **fields: Any) -> Job:
    return small_job(strategy=strategy, **{"shards": hosts, "replicas": hosts, **fields})


def planned(strategy: dict[str, Any], hosts: int = 2, step_s: float | None = STEP_S, **fields: Any) -> Exchange:
    found = exchange_of(job(strategy, hosts, **fields), SIZE, LINK, step_s)
    assert found is not None
    return found


@pytest.mark.parametrize("hosts", [1, 2, 3, 8])
def test_a_shard_on_each_host_loads_all_links_alike(hosts: int) -> None:
    """A host exchanges all but its own shard's part, and serves that part to all others."""
    found = Hosts.of(hosts, hosts)
    assert [found.own, found.served, found.beside] == pytest.approx([1 - 1 / hosts] * 3)


@pytest.mark.parametrize(("replicas", "shards"), [(4, 1), (4, 3), (3, 5), (2, 4), (5, 5), (1, 3)])
def test_links_carry_what_is_counted_transfer_by_transfer(replicas: int, shards: int) -> None:
    """Every replica pushes 1 to all shards, and fetches 0.25: sums over single transfers of the busiest host."""
    sent, received = [0.0] * replicas, [0.0] * replicas
    for replica in range(replicas):
        for shard in range(shards):
            host = shard % replicas
            if host != replica:
                sent[replica] += 1 / shards
                received[host] += 1 / shards
    busiest = max(*sent, *received)
    assert Hosts.of(replicas, shards).busiest == pytest.approx(busiest)


def test_one_replica_beside_its_shards_waits_for_no_link() -> None:
    alone = planned(DILOCO | {"steps": 1}, 1, **SCRIPT)
    assert (alone.travel_s, alone.share, alone.gain) == (0.0, 1.0, 1.0)


def test_bytes_of_a_sample_by_codec() -> None:
    """Whole numbers are 1 byte and a scale of 4 for each 256."""
    small = planned(DILOCO, wire={"push": "int8", "pull": "bf16"}, **SCRIPT)
    assert small.pushed_per_sample == pytest.approx(SIZE * (1 + 4 / 256) / 200)
    assert small.fetched_per_sample == pytest.approx(SIZE * 2 / 200)
    seldom = planned({**SGD, "n_push": 2, "n_fetch": 6})
    assert (seldom.steps, seldom.pushed_per_sample) == (6, 4 * SIZE / (2 * 32))
    assert seldom.fetched_per_sample == 4 * SIZE / (6 * 32)


ROUND_S = LATENCY_S + 0.5 * 2 * VECTOR_S
"""Of two hosts with a shard each: half of a push, then half of a fetch."""


@pytest.mark.parametrize(
    ("strategy", "fields", "computed_s", "waited_s"),
    [
        (SGD, {}, STEP_S, ROUND_S),
        ({**SGD, "n_push": 4, "n_fetch": 4}, {}, 4 * STEP_S, ROUND_S),
        ({**SGD, "staleness": 0}, {}, STEP_S, ROUND_S),
        ({"name": "sync-sgd", "form": "shards", "rule": {"name": "sgd", "rate": 1}}, {}, STEP_S, ROUND_S),
        ({**SGD, "n_push": 40, "n_fetch": 40, "overlap": True}, {}, 20.0, 0.0),
        ({**SGD, "n_push": 4, "n_fetch": 4, "overlap": True}, {}, 2.0, ROUND_S - 2.0),
        ({**SGD, "n_push": 4}, {}, 2.0, 4 * LATENCY_S + 0.5 * (1 + 4) * VECTOR_S),
        ({**SGD, "n_fetch": 40}, {}, 20.0, 0.5 * 41 * VECTOR_S - 20.0),  # pushes alone fill the link
        ({"name": "async-easgd", "rate": 0.1, "period": 4}, {}, 2.0, ROUND_S - STEP_S),  # beside one mini-batch
        ({"name": "async-easgd", "rate": 0.1, "period": 4}, SCRIPT, 2.0, ROUND_S),
        ({"name": "async-easgd", "rate": 0.1, "period": 4, "overlap": True}, SCRIPT, 2.0, ROUND_S - 2.0),
        (ADD, SCRIPT, 2.0, ROUND_S),
        ({**ADD, "overlap": True}, SCRIPT, 2.0, ROUND_S - 2.0),
        ({"name": "easgd", "rate": 0.1}, {}, STEP_S, ROUND_S + (STEP_S + ROUND_S)),
        (DILOCO, SCRIPT, 10.0, ROUND_S),
        ({**DILOCO, "delay": 5}, SCRIPT, 10.0, ROUND_S - 2.5),
        ({**DILOCO, "delay": 20}, SCRIPT, 10.0, 0.0),
        ({**DILOCO, "fragments": 4}, SCRIPT, 10.0, ROUND_S + 3 * LATENCY_S),
    ],
)
def test_what_a_strategy_waits_for(
    strategy: dict[str, Any], fields: dict[str, Any], computed_s: float, waited_s: float
) -> None:
    found = planned(strategy, **fields)
    assert found.computed_s == pytest.approx(computed_s)
    assert found.waited_s == pytest.approx(waited_s)
    assert found.gain == pytest.approx(2 * computed_s / (computed_s + waited_s))


def test_one_shard_serves_all() -> None:
    """Where all exchange at once its host's link carries what three others push; one that is free waits for its own."""
    strategy = {**SGD, "n_push": 100, "n_fetch": 100}
    assert planned(strategy, replicas=4, shards=1).waited_s == pytest.approx(LATENCY_S + 2 * VECTOR_S)
    assert planned(DILOCO, replicas=4, shards=1, **SCRIPT).waited_s == pytest.approx(LATENCY_S + 3 * 2 * VECTOR_S)
    often = planned(SGD, replicas=8, shards=1)
    assert often.waited_s == pytest.approx(7 * VECTOR_S - STEP_S)  # its link is in use all the time


@pytest.mark.parametrize("delayed", [False, True])
def test_the_smallest_steps_are_the_smallest(delayed: bool) -> None:
    """One step less computes for less than 95 %, or waits."""

    def share(steps: int) -> float:
        found = planned({**DILOCO, "steps": steps, "delay": steps * delayed}, **SCRIPT)
        assert found.share is not None
        return found.share

    found = planned(DILOCO, **SCRIPT)
    least, wanted = (found.steps_hidden, 1.0) if delayed else (found.steps_enough, 0.95)
    assert least is not None
    assert share(least) >= wanted > share(least - 1)


def test_the_time_of_a_mini_batch_may_be_unknown() -> None:
    found = planned(DILOCO, step_s=None, **SCRIPT)
    assert found.travel_s == pytest.approx(ROUND_S)
    assert (found.share, found.gain, found.steps_enough, found.steps_hidden) == (None, None, None, None)
    assert found.described()["share"] is None


@pytest.mark.parametrize(
    "of",
    [
        lambda: job({"name": "sandblaster", "iterations": 3}),
        lambda: job({**SGD, "name": "sync-sgd"}),
        lambda: job(SGD, replicas=0),
    ],
)
def test_jobs_without_exchanges_through_shards(of: Callable[[], Job]) -> None:
    assert exchange_of(of(), SIZE, LINK, STEP_S) is None
