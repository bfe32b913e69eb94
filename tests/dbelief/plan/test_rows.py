"""Tables in a plan: bytes of real arenas, and of rows as they are really sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.codec import make_codec
from dbelief.core.push import Push, Pusher
from dbelief.errors import UserError
from dbelief.job import Job, parse_job
from dbelief.optim import make_row_rule, make_rule
from dbelief.plan import Speeds
from dbelief.plan.exchange import ROUND_TRIPS, SLOWDOWN
from dbelief.plan.memory import PROCESS, SET, shard_memory
from dbelief.plan.rows import COUNTERS, INDEX, ROWS, PlannedRows, plan_rows
from dbelief.plan.sized_plan import plan_sized
from dbelief.rpc.wire import payloads, row_payloads
from dbelief.sparse.table import number_tables, pack
from ps_server.store.bucket import Bucket
from ps_server.store.shard import Shard

JOB = """
name: clicks
model: {source: script}
data: {source: script, train: 100}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
shards: 2
tables:
  user: {width: 5, rule: {name: RULE, rate: 0.05}, buckets: 3, LIMITS}
  item: {width: 2, rule: {name: sgd, rate: 0.1}}
"""
AT_ONCE = 1_000
"""Keys of a push."""


def job(rule: str = "adagrad", limits: str = "admit: null", more: str = "") -> Job:
    return parse_job(JOB.replace("RULE", rule).replace("LIMITS", limits) + more, Path(), "job")


def planned(made: Job, rows: Mapping[str, int] = {}, keys: Mapping[str, int] = {}, **more: Any) -> PlannedRows:
    return plan_rows(made, 1000, rows, keys, **more)


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "row-adagrad", "lazy-adam", "ftrl"])
@pytest.mark.parametrize("limits", ["admit: null", "admit: {after: 2, counters: 100k}"])
def test_memory_is_that_of_real_arenas(rule: str, limits: str) -> None:
    """Rows spread over buckets by hashes, so that a few more or fewer are in each than is planned."""
    rows, made = 20_000, job(rule, limits)
    table, _ = number_tables(made.tables, made.seed, 0)
    shard = Shard(table.spans(0), make_rule("sgd", {}), tables={table: make_row_rule(rule, {})})
    shard.make_ready()
    for number in range(2 * rows // AT_ONCE):  # by the second push of a key each has a row
        some = np.arange(AT_ONCE) + number // 2 * AT_ONCE
        order, parts = table.split(some)
        for index, own in parts:
            keys = some[order[own]]
            push = Push(Pusher(0, 1), number + 1, np.float32(0.1))
            shard.push(push, index, pack(keys, np.ones((keys.size, 5), np.float32)))
    buckets = [one for one in shard.segments.values() if isinstance(one, Bucket)]
    plan, _ = planned(made, {"user": rows}, {"user": AT_ONCE}).tables
    held = {
        ROWS: sum(values.nbytes for one in buckets for values in one.arena.rows()),
        INDEX: sum(one.arena._slots.nbytes for one in buckets),
        COUNTERS: sum(one.arena.counters.held.nbytes for one in buckets if one.arena.counters is not None),
        SET: sum(part.nbytes for one in buckets for part in one.parts()[0].values()),
    }
    assert sum(one.arena.count for one in buckets) == rows
    assert plan.memory == pytest.approx(held, rel=1e-3)
    assert plan.bytes - plan.memory[SET] == pytest.approx(sum(one.nbytes for one in buckets), rel=1e-3)
    assert plan.row_bytes == (plan.memory[ROWS] + plan.memory[INDEX]) / rows
    assert plan.state == {"sgd": 0, "adagrad": 5, "row-adagrad": 1}.get(rule, 10)


@pytest.mark.parametrize("of_all", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("push", "pull"), [("fp32", "null"), ("fp16", "fp32"), ("bf16", "fp16"), ("int8", "bf16"), ("int8", "null")]
)
def test_traffic_is_that_of_rows_as_they_are_sent(of_all: str, push: str, pull: str) -> None:
    """By bucket, in the payloads that a replica and a shard write."""
    made = job("sgd", f"push: {push}, pull: {pull}", more=f"wire: {{pull: {of_all}}}\n")
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, 700)
    rows = np.random.default_rng(1).standard_normal((700, 5), np.float32)
    table, _ = number_tables(made.tables, made.seed, 0)
    order, parts = table.split(keys)
    encoded, codec = None if push == "fp32" else table, make_codec(of_all if pull == "null" else pull, {})
    own = [(keys[order[part]], rows[order[part]]) for _, part in parts]
    step = Push(Pusher(0, 1), 1, np.float32(0.1))
    pushed = [row_payloads.part_of(0, 0, pack(*some), encoded, step) for some in own]
    fetched = [payloads.part_of(0, 0, some.reshape(-1), codec) for _, some in own]
    found = planned(made, keys={"user": 700})
    of, none = (table.traffic for table in found.tables)
    sizes = [sum(part.data.nbytes for part in way if part.data is not None) for way in (pushed, fetched)]
    assert (of.pushed, of.asked, of.fetched) == (sizes[0], keys.nbytes, sizes[1])
    assert (of.pulls, none.pulls, none.pushed) == (1, 0, 0)
    assert found.traffic == of
    both = planned(made, keys={"user": 700, "item": 10}).traffic
    assert (both.pushed, both.pulls) == (of.pushed + 10 * (8 + 4 * 2), 2)


@pytest.mark.parametrize(
    ("limits", "given", "rows"),
    [
        ("admit: null", None, None),
        ("admit: null", 7, 7),
        ("most_rows: 1M", None, 1_000_000),
        ("most_rows: 1M, evict: {lru: 2k}", None, 2_000),
        ("evict: {lru: 2k, ttl: 7d}", 3_000, 2_000),
        ("evict: {ttl: 7d}", None, None),
    ],
)
def test_rows_are_those_that_are_given_and_allowed(limits: str, given: int | None, rows: int | None) -> None:
    found = planned(job(limits=limits), {} if given is None else {"user": given})
    user, item = found.tables
    assert user.rows == rows
    assert item.rows is None
    assert (found.shard_bytes, found.shards_enough) == (None, None), "those of items are not known"
    assert item.memory == planned(job(), {"item": 1_000_000}).tables[1].memory, "of a million"


def test_shards_that_are_enough_for_the_memory_of_their_machines() -> None:
    made, rows = job(), {"user": 3_000_000, "item": 1}
    user, item = planned(made, rows).tables
    found = planned(made, rows, memory_gib=0.25)
    dense = sum(shard_memory(made, 500).values())
    assert found.shard_bytes == PROCESS["shard"] + dense + user.on_shards(2) + item.on_shards(2)
    assert user.on_shards(2) == 2 * -(-user.bytes // 3), "of three buckets"
    assert found.shards_enough == 3
    assert found.machine_bytes == 1 << 28
    assert planned(made, rows, memory_gib=0.1).shards_enough is None, "more buckets are needed"
    assert planned(made, rows, memory_gib=10).shards_enough == 1


def test_rows_take_their_part_of_the_links() -> None:
    """Two hosts with a shard each: half of what a replica exchanges uses its link."""
    made = job("sgd", more="replicas: 2\n")
    link = Speeds(latency_s=0.01, bandwidth=1e6, step_s=0.5)
    keys = {"user": 10_000, "item": 100}
    without, with_rows = (plan_sized(made, 1000, link, keys=given).exchange for given in ({}, keys))
    of = planned(made, keys=keys).traffic
    assert 10 * (with_rows.pushed_per_sample - without.pushed_per_sample) == pytest.approx(of.pushed + of.asked)
    assert 10 * (with_rows.fetched_per_sample - without.fetched_per_sample) == pytest.approx(of.fetched)
    assert with_rows.waited_s is not None
    assert without.waited_s is not None
    more_s = 2 * ROUND_TRIPS * 2 * 0.01 + 0.5 * SLOWDOWN * (of.pushed + of.asked + of.fetched) / 1e6
    assert with_rows.waited_s - without.waited_s == pytest.approx(more_s)
    busy_s = with_rows.link_s - without.link_s
    assert busy_s == pytest.approx(0.5 * SLOWDOWN * (of.pushed + of.asked + of.fetched) / 1e6)
    assert with_rows.link_share == pytest.approx(with_rows.link_s / (0.5 + with_rows.waited_s))
    assert (with_rows.steps_enough, without.steps_enough is None) == (None, False)


@pytest.mark.parametrize(
    ("rows", "keys", "message"),
    [
        ({"usr": 1}, {}, "--rows: the job has no table 'usr'; tables: user, item"),
        ({}, {"usr": 1}, "--keys: the job has no table 'usr'; tables: user, item"),
        (
            {"user": 100_000_000},
            {},
            "--rows: table 'user' has 3 buckets, and 100,000,000 rows need 6: one has at most 16,777,214",
        ),
    ],
)
def test_counts_that_cannot_be_are_refused(rows: dict[str, int], keys: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        planned(job(), rows, keys)
