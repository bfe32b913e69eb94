"""The tables are as long as they are said to be, and no row is there twice."""

from __future__ import annotations

from collections import Counter

from tests.negative import test_data_files, test_flags, test_job_files, test_messages, test_snapshots


def test_there_are_many_ways_to_be_wrong() -> None:
    groups = {
        "job files": [str(row) for row in test_job_files.ROWS],
        "data files": [str(row) for row in test_data_files.ROWS],
        "command lines": [str(row) for row in (*test_flags.ROWS, *test_flags.SURROUNDED)],
        "snapshots": [str(row) for row, _ in test_snapshots.ROWS],
        "messages": [*map(str, (*test_messages.TO_A_SHARD, *test_messages.TO_A_COORDINATOR)), *test_messages.IGNORED],
    }
    assert min(map(len, groups.values())) >= 15
    assert sum(map(len, groups.values())) >= 180
    assert [name for rows in groups.values() for name, count in Counter(rows).items() if count > 1] == []
