"""Rows of tables over shards, and the first report of one that is full."""

from __future__ import annotations

from coordinator.monitoring.tables import FullTables, totals
from dbelief.monitor.tables import table_line
from dbelief.rpc.pb import coordination_pb2 as wire


def report(**tables: tuple[int, int, int, int]) -> wire.ShardFigures:
    figures = wire.ShardFigures()
    for name, (rows, size, evicted, refused) in tables.items():
        figures.tables.add(name=name, rows=rows, bytes=size, evicted=evicted, refused=refused)
    return figures


def test_rows_of_the_shards_that_are_there_add_up() -> None:
    reports = {
        0: report(user=(3, 30, 1, 0), item=(5, 50, 0, 2)),
        1: report(user=(4, 41, 2, 0)),
        2: report(user=(9,) * 4),
    }
    user, item = totals(reports, {0, 1}, {"user": (8, 6), "gone": (1, 1)})
    assert (user.name, user.rows, user.bytes, user.evicted, user.refused) == ("user", 7, 71, 3, 0)
    assert (item.name, item.rows, item.bytes, item.evicted, item.refused) == ("item", 5, 50, 0, 2)
    assert [(one.cache_reads, one.cache_hits) for one in (user, item)] == [(8, 6), (0, 0)]
    assert totals(reports, set(), {}) == []


def test_a_table_becomes_full_once() -> None:
    full = FullTables()
    assert list(full.new(report(user=(3, 30, 1, 0)))) == []
    assert list(full.new(report(user=(3, 30, 1, 4), item=(1, 9, 0, 1)))) == ["user", "item"]
    assert list(full.new(report(user=(3, 30, 1, 9), item=(1, 9, 0, 2)))) == []


def test_a_line_has_what_there_is() -> None:
    table = {"name": "user", "rows": 1_234, "bytes": 98_700, "evicted": 0, "refused": 0, "cache_reads": 0}
    assert table_line(table) == "table user: 1,234 rows, 98.7 kB"
    read = {**table, "cache_reads": 4_000, "cache_hits": 3_001}
    assert table_line(read) == "table user: 1,234 rows, 98.7 kB, 75.0% of 4,000 keys found in caches"
    ended = "5 evicted, full, 2,000 gradients of keys without a row dropped"
    assert table_line({**table, "evicted": 5, "refused": 2_000}) == f"table user: 1,234 rows, 98.7 kB, {ended}"
