"""Layers that read tables: jobs that have them, and jobs that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbelief.errors import JobError
from dbelief.job import parse_job

JOB = """
name: clicks
model:
  layers:
    - {embedding_bag: {table: v, columns: [user, item], mode: mean}}
    - {cross: 2}
    - {dense: 1}
    - {embedding_bag: {table: w, join: add}}
  loss: logistic
data: {source: bags, format: vw, files: t.vw, columns: [user, item]}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 1}
tables:
  v: {width: 4, rule: {name: adagrad, rate: 0.05}}
  w: {width: 1, rule: {name: ftrl, rate: 0.1, l1: 0.01}, init: zeros}
"""
BAG = "{embedding_bag: {table: v, columns: [user, item], mode: mean}}"


def test_a_job_with_tables_is_written_and_read() -> None:
    job = parse_job(JOB.replace(BAG, "{embedding_bag: v}"), Path("folder"), "job")
    assert parse_job(job.to_yaml(), Path("folder"), "again") == job
    assert job.computes_on == "cpu"
    place = "model.layers.0.embedding_bag"
    assert job.model.table_layers[place].tables == ("v",)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "strategy",
    [
        "{name: async-sgd, batch: 10, rate: 0.1}",
        "{name: async-msgd, batch: 10, rate: 0.1}",
        "{name: sync-sgd, form: shards, batch: 10, rule: {name: adam, rate: 0.1}}",
        "{name: downpour, staleness: 2, batch: 10, rule: {name: ftrl, rate: 0.1}}",
    ],
)
def test_strategies_with_a_rule_of_the_shards_may_have_them(strategy: str) -> None:
    job = parse_job(JOB.replace("{name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}", strategy), Path(), "job")
    assert list(job.tables) == ["v", "w"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("table: v", "table: u", "model.layers.0.embedding_bag: needs table 'u'; tables: v, w"),
        ("  w: {", "  x: {width: 1, rule: {name: sgd, rate: 1}}\n  w: {", "tables.x: is read by no layer"),
        (BAG, "{fm: {factors: v}}", "model.layers.0.fm.linear: missing"),
        ("source: bags, format: vw, files: t.vw, columns: [user, item]", "source: digits", "data.source bags has"),
        ("10, rule", "10, n_push: 2, n_fetch: 2, rule", "strategy: needs n_push 1, n_fetch 1 and overlap false with"),
        ("10, rule", "10, clip_norm: 1, rule", "strategy.clip_norm: must be null with tables"),
        ("name: downpour, batch: 10, rule", "name: sync-sgd, batch: 10, rule", "needs downpour or sync-sgd with a"),
        ("limits: {epochs: 1}", "limits: {epochs: 1, patience: 3}", "evaluate.keep: must be last with tables"),
        ("limits:", "device: cuda\nlimits:", "device: must be cpu or auto with tables"),
        ("limits:", "grid: [2]\nlimits:", r"grid: must be \[1\] with tables"),
        ("limits:", "record: true\nlimits:", "record: must be false with tables"),
        ("format: vw", "format: libsvm", r"data.columns: must be \[\] with libsvm"),
        ("format: vw", "format: libffm", "data.columns: must be numbers of fields with libffm"),
        ("format: vw", "format: csv", "data.label: must be given with csv: label, and ids or texts"),
        ("columns: [user, item]}\nstr", "columns: [user, user]}\nstr", "each column once, and 'user' is there twice"),
        ("t.vw, columns", "t.vw, unit: 9, columns", "data.streamed: must be true with unit or window: in memory each"),
        (
            "t.vw, columns",
            "t.vw, window: 2, columns",
            "data.streamed: must be true with unit or window: in memory each",
        ),
        (
            "format: vw, files: t.vw, columns: [user, item]",
            "format: parquet, files: t, label: y, ids: user, streamed: true, unit: 9",
            "data.unit: must be null with parquet, whose units are row groups",
        ),
        ("t.vw, columns", "t.vw, ids: user, columns", "data.format: must be csv or parquet where label, ids or texts"),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str, message: str) -> None:
    assert old in JOB
    with pytest.raises(JobError, match=message):
        parse_job(JOB.replace(old, new), Path(), "job")


def test_bags_are_for_layers_that_read_tables() -> None:
    job = JOB[: JOB.index("tables:")].replace(BAG, "{dense: 3}")
    job = job.replace("    - {embedding_bag: {table: w, join: add}}\n", "")
    with pytest.raises(
        JobError, match=r"data\.source: bags is for layers embedding_bag and fm, and the model has none"
    ):
        parse_job(job, Path(), "job")
