"""Plans of jobs whose layers read tables: their keys are those of the training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.errors import DataError, UserError
from dbelief.job import Job, parse_job
from dbelief.plan import Plan, make_plan
from dbelief.plan.bag_keys import BATCHES
from dbelief.plan.memory import process_bytes, shard_memory
from dbelief.sparse.table import assign_buckets, number_tables

JOB = """
name: clicks
model:
  layers: [{embedding_bag: {table: deep, columns: [user]}}, {dense: 1}, {fm: {factors: v, linear: w, join: add}}]
  loss: logistic
data: {source: bags, format: vw, files: clicks.vw, columns: [user, item], validation: 0.2, test: 0}
strategy: {name: downpour, batch: 8, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
shards: 3
replicas: 2
tables:
  deep: {width: 5, rule: {name: adagrad, rate: 0.05}, buckets: 7}
  v: {width: 4, rule: {name: sgd, rate: 0.1}, push: int8, evict: {lru: 30}}
  w: {width: 1, rule: {name: sgd, rate: 0.1}, CACHE}
"""
USERS, SAMPLES = 12, 400


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The job, whose data has a user and two items a sample."""
    drawn = np.random.default_rng(5)
    users, items = drawn.integers(USERS, size=SAMPLES), drawn.integers(40, size=(SAMPLES, 2))
    lines = [
        f"{1 - 2 * (user % 2)} |user u{user} |item i{one} i{two}" for user, (one, two) in zip(users, items, strict=True)
    ]
    (tmp_path / "clicks.vw").write_text("\n".join(lines) + "\n")
    (tmp_path / "job.yaml").write_text(JOB.replace("CACHE", "cache: null"))
    return parse_job(JOB.replace("CACHE", "cache: null"), tmp_path, "job")


def counts(plan: Plan) -> dict[str, tuple[Any, ...]]:
    assert plan.rows is not None
    return {table.name: (table.rows, table.keys) for table in plan.rows.tables}


def test_rows_and_keys_are_those_of_the_training_data(job: Job) -> None:
    """Of batches with replacement, c of k values are there on average: k (1 - (1 - 1 / k)^draws)."""
    plan = make_plan(job)
    found = counts(plan)
    users, items = (k * (1 - (1 - 1 / k) ** draws) for k, draws in ((USERS, 8), (40, 16)))
    assert (found["deep"][0], found["v"][0], found["w"][0]) == (USERS, 30, USERS + 40)
    assert users - 1 < found["deep"][1] < users + 2
    assert users + items - 2 < found["v"][1] == found["w"][1] < users + items + 2
    assert plan.samples * BATCHES <= SAMPLES, "no sample is in two of the batches"
    assert counts(make_plan(job)) == found
    given = counts(make_plan(job, rows={"w": 7, "v": 99}, keys={"deep": 3}))
    assert given == {**found, "deep": (USERS, 3), "w": (7, found["w"][1])}
    text = JOB.replace("validation: 0.2", "validation: 16, streamed: true, unit: 5").replace("CACHE", "cache: null")
    streamed = counts(make_plan(parse_job(text, job.folder, "job")))
    assert {name: rows for name, (rows, _) in streamed.items()} == {"deep": USERS, "v": 30, "w": USERS + 40}
    assert all(abs(keys - found[name][1]) <= 2 for name, (_, keys) in streamed.items())
    with pytest.raises(UserError, match="--keys: the job has no table 'item'; tables: deep, v, w"):
        make_plan(job, keys={"item": 1})


def test_memory_of_shards_has_their_rows(job: Job) -> None:
    plan = make_plan(job, 0.1)
    assert plan.rows is not None
    numbered = number_tables(job.tables, job.seed, 0)
    for shard, owned in zip(plan.shards, assign_buckets(numbered, 3), strict=True):
        own = [(len({*owned} & {*table.indices}), one) for table, one in zip(numbered, plan.rows.tables, strict=True)]
        assert shard.memory["rows of tables"] == sum(count * -(-one.bytes // one.buckets) for count, one in own)
    fullest = max(shard.memory["rows of tables"] for shard in plan.shards)
    dense = sum(shard_memory(job, -(-plan.parameters() // 3)).values())
    assert plan.rows.shard_bytes == process_bytes(job)["shard"] + dense + fullest
    assert plan.rows.machine_bytes == int(0.1 * 2**30)


def test_tables_without_a_cache_are_pulled_at_once(job: Job) -> None:
    plan, cached = (
        make_plan(job),
        make_plan(parse_job(JOB.replace("CACHE", "cache: {rows: 9, age: 1}"), job.folder, "job")),
    )
    for one, pulls in ((plan, [1, 0, 0]), (cached, [1, 0, 1])):
        assert one.rows is not None
        assert [table.traffic.pulls for table in one.rows.tables] == pulls
    assert plan.rows is not None
    without = make_plan(job, keys=dict.fromkeys(job.tables, 0)).communication.exchange
    exchange, of = plan.communication.exchange, plan.rows.traffic
    assert exchange is not None
    assert without is not None
    assert 8 * (exchange.pushed_per_sample - without.pushed_per_sample) == pytest.approx(of.pushed + of.asked)
    assert 8 * (exchange.fetched_per_sample - without.fetched_per_sample) == pytest.approx(of.fetched)


def test_the_command(job: Job) -> None:
    words = ["plan", str(job.folder / "job.yaml")]
    text = CliRunner().invoke(main, words, env={"COLUMNS": "200"}).output
    assert "the fullest shard: " in text
    assert "keys a mini-batch" in text
    rows = json.loads(CliRunner().invoke(main, [*words, "--keys", "deep=4", "--json"]).output)["rows"]
    assert next(table["keys"] for table in rows["tables"]) == 4
    assert rows["traffic"]["pulls"] == 1
    (job.folder / "clicks.vw").unlink()
    with pytest.raises(DataError, match=r"clicks\.vw[^;]*$"):
        make_plan(job)
