"""The `tables` section: what it says, and jobs that cannot have tables."""

from pathlib import Path

import pytest

from dbelief.errors import JobError
from dbelief.job import parse_job
from dbelief.job.tables import CacheSection
from dbelief.sparse.row_limits import RowLimits
from dbelief.sparse.table import number_tables

JOB = """
name: clicks
model: {source: script}
data: {source: script, train: 100}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
tables:
  user: {width: 16, rule: {name: row-adagrad, rate: 0.05}, init: uniform(0.5), buckets: 3}
  item: {width: 2, rule: {name: ftrl, rate: 0.1, l1: 0.01}, init: zeros}
"""
BUILT_IN = JOB.replace("model: {source: script}", "model: {layers: [{dense: 1}], loss: softmax_cross_entropy}").replace(
    "data: {source: script, train: 100}",
    "data: {source: synthetic, kind: classes, samples: 100, features: 3, classes: 2, noise: 1}",
)
DOWNPOUR = "{name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}"


def test_tables_are_numbered_behind_the_dense_segments() -> None:
    user, item = number_tables(parse_job(JOB, Path(), "job").tables, 4, 7)
    assert (user.name, user.width, user.limit, user.rate, user.first, user.count) == ("user", 16, 0.5, 0.05, 7, 3)
    assert (item.name, item.width, item.limit, item.rate, item.first, item.count) == ("item", 2, 0.0, 0.1, 10, 32)
    assert user.salt != item.salt
    again, _ = number_tables(parse_job(JOB, Path(), "job").tables, 5, 7)
    assert again.salt != user.salt, "another seed"


def test_limits_of_rows_may_have_units() -> None:
    given = "width: 16, admit: {after: 3, counters: 2M}, evict: {lru: 50M, ttl: 7d}, most_rows: 1.5G"
    user, item = number_tables(parse_job(JOB.replace("width: 16", given), Path(), "job").tables, 4, 7)
    assert user.limits == RowLimits(3, 2_000_000, 1_500_000_000, 50_000_000, 604_800)
    assert item.limits == RowLimits()


def test_codecs_and_a_cache_of_each_table() -> None:
    given = "width: 16, push: int8, pull: bf16, cache: {rows: 100k, age: 4}"
    tables = parse_job(JOB.replace("width: 16", given), Path(), "job").tables
    user, item = number_tables(tables, 4, 7)
    assert (user.push, user.pull, item.push, item.pull) == ("int8", "bf16", "fp32", None)
    assert tables["user"].cache == CacheSection(rows=100_000, age=4)
    assert tables["item"].cache is None
    bounded = JOB.replace("batch: 10,", "batch: 10, staleness: 4,").replace("width: 16", given)
    assert parse_job(bounded, Path(), "job").strategy.staleness == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width: 16", "width: 16, push: int4", "tables.user.push: must be one of fp32, fp16, bf16, int8, not 'int4'"),
        ("width: 16", "width: 16, pull: int8", "user.pull: must be one of fp32, fp16, bf16, or null, not 'int8'"),
        ("width: 16", "width: 16, cache: {rows: 100k}", "tables.user.cache.age: missing"),
        ("width: 16", "width: 16, cache: {rows: 100M, age: 1}", "tables.user.cache.rows: must be a whole number"),
        ("width: 16", "width: 16, admit: {after: 1}", "user.admit.after: must be a whole number from 2 to 255, not 1"),
        ("width: 16", "width: 16, evict: {}", "tables.user.evict: needs lru or ttl"),
        ("width: 16", "width: 16, evict: {ttl: 7x}", "user.evict.ttl: '7x' is no time: wanted seconds, or a unit"),
        ("width: 16", "width: 16, evict: {lru: 5.5}", "user.evict.lru: must be a whole number"),
        ("width: 16", "width: 16, most_rows: 1e2x", "user.most_rows: '1e2x' is no number"),
        (
            DOWNPOUR,
            "{name: diloco, batch: 10}",
            "tables: needs downpour or sync-sgd with a rule of the shards, not diloco",
        ),
        (DOWNPOUR, "{name: async-easgd, batch: 10, rate: 0.1}", "not async-easgd: where replicas step on their own"),
        (DOWNPOUR, "{name: downpour, batch: 10, rule: {name: add}}", "needs downpour or sync-sgd with a rule of the"),
        (DOWNPOUR, "{name: hogwild-sgd, batch: 10, rate: 0.1}", "tables: needs pushes in an order"),
        ("limits:", "start_from: other\nlimits:", "start_from: must be null with tables"),
        (
            "uniform(0.5)",
            "normal(0.5)",
            r"tables.user.init: must be zeros or uniform\(LIMIT\), such as uniform\(0.01\)",
        ),
        ("width: 16", "width: 0", "line 8: tables.user.width: must be a whole number from 1 to 4,096, not 0"),
        (
            "name: row-adagrad",
            "name: momentum",
            "line 8: tables.user.rule.name: must be one of sgd, adagrad, row-adagrad",
        ),
        ("buckets: 3", "bucket: 3", "tables.user.bucket: no such field, did you mean buckets"),
        ("  user:", "  us er:", "line 8: tables.us er: the name must be 1 to 64 letters, .* not 'us er'"),
        (
            "{width: 2, rule: {name: ftrl, rate: 0.1, l1: 0.01}, init: zeros}",
            "5",
            "tables.item: must be a mapping, not 5",
        ),
    ],
)
def test_jobs_that_cannot_have_tables(old: str, new: str, message: str) -> None:
    assert old in JOB
    with pytest.raises(JobError, match=message):
        parse_job(JOB.replace(old, new), Path(), "job")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (DOWNPOUR.replace("downpour", "sync-sgd, form: shards"), "tables.user.cache: must be null with staleness 0"),
        (DOWNPOUR.replace("batch", "staleness: 0, batch"), "line 8: tables.user.cache: must be null with staleness 0"),
        (DOWNPOUR.replace("batch", "staleness: 3, batch"), "cache.age: must be at most strategy.staleness, 3, not 4"),
    ],
)
def test_a_bound_on_staleness_is_of_kept_rows_too(strategy: str, message: str) -> None:
    kept = JOB.replace("width: 16", "width: 16, cache: {rows: 10, age: 4}")
    with pytest.raises(JobError, match=message):
        parse_job(kept.replace(DOWNPOUR, strategy), Path(), "job")


def test_built_in_models_have_no_tables() -> None:
    with pytest.raises(JobError, match="tables: needs model source: script"):
        parse_job(BUILT_IN, Path(), "job")
