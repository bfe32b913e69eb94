"""A job that resumes with other tables than its set has is refused, by the name of the first that differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dbelief.job import Job, parse_job
from dbelief.sparse.kept_tables import kept_tables, tables_difference
from dbelief.sparse.tables_read import tables_read, with_tables
from tests.dbelief.job.test_tables import JOB

ITEM = "  item: {width: 2, rule: {name: ftrl, rate: 0.1, l1: 0.01}, init: zeros}\n"


def made(text: str) -> Job:
    return parse_job(text, Path(), "job")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("rate: 0.05", "rate: 0.5", ""),
        ("buckets: 3", "buckets: 3, most_rows: 7", ""),
        ("width: 16", "width: 8", "table 'user' has rows of 16 numbers in it, and width 8 in the job file"),
        ("row-adagrad", "adagrad", "table 'user' has rows by row-adagrad in it, and rule adagrad in the job file"),
        ("buckets: 3", "buckets: 4", "table 'user' has 3 buckets in it, and 4 in the job file"),
        ("limits:", "seed: 5\nlimits:", "table 'user' has keys hashed by another seed in it than that of the job file"),
        ("user:", "person:", "table 'user' is in it, and not in the job file, whose tables are: person, item"),
        (ITEM, "", "table 'item' is in it, and not in the job file, whose tables are: user"),
        (ITEM, ITEM + ITEM.replace("item", "a"), "table 'a' of the job file is not in it; its tables are: user, item"),
        ("tables:\n", f"tables:\n{ITEM}", "its tables are in another order: user, item, and not item, user"),
    ],
)
def test_what_differs_is_named(old: str, new: str, what: str) -> None:
    assert old in JOB
    before = made(JOB)
    kept = json.loads(json.dumps(kept_tables(before.tables, before.seed)))
    assert tables_difference(kept, before.tables, before.seed) == ""
    changed = JOB.replace(ITEM, "") if new == f"tables:\n{ITEM}" else JOB
    job = made(changed.replace(old, new))
    assert tables_difference(kept, job.tables, job.seed) == what


def test_a_set_without_tables() -> None:
    job = made(JOB)
    assert tables_difference([], job.tables, job.seed) == (
        "table 'user' of the job file is not in it; its tables are: none"
    )


@pytest.mark.parametrize("count", [1, 40])
def test_a_digest_has_the_tables_of_a_module(count: int) -> None:
    names = {f"a-table-of-features-{number}" for number in range(count)}
    digest = with_tables("frozen " + 64 * "a", names)
    assert len(digest) <= 512
    assert digest == with_tables("frozen " + 64 * "a", sorted(names))
    assert tables_read(digest).startswith("a-table-of-features-0" if count == 1 else "40 tables (")
    assert tables_read(with_tables("", names)) == tables_read(digest) != tables_read(with_tables("", {*names, "b"}))
    assert with_tables("abc", set()) == "abc"
    assert tables_read("abc") == tables_read("") == "no table"
