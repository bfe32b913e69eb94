"""Rows read ahead, or kept: which step's they are, what a bound on staleness permits, and what a push makes old."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event

import numpy as np
import pytest

from dbelief.errors import Unavailable
from dbelief.sparse.row_cache import RowCache
from dbelief.sparse.table import SparseTable
from dbelief.sparse.table_reader import TableReader

TABLE = SparseTable("user", 2, 77, 0.5, 0.1, 3, 4)
KEYS = np.array([-5, 1, 9])


class Shards:
    """Rows of which each number is the version of all buckets; a pull of no keys fails."""

    def __init__(self) -> None:
        self.version = 0
        self.pulls: list[tuple[list[int], int]] = []
        self.made, self.free = Event(), Event()  # rows, and the way back
        self.free.set()

    def pull_rows(
        self, wanted: Mapping[SparseTable, np.ndarray], versions: np.ndarray, clock: int = 0
    ) -> list[np.ndarray]:
        ((table, keys),) = wanted.items()
        rows = np.full((keys.size, table.width), self.version, np.float32)
        versions[table.first : table.first + table.count] = self.version
        self.pulls.append((keys.tolist(), clock))
        self.made.set()
        assert self.free.wait(60)
        if not keys.size:
            raise Unavailable("pull: shard 0")
        return [rows]


def ahead(rows: TableReader, shards: Shards) -> None:
    """Begin a pull, which is under way when this returns."""
    shards.free.clear()
    rows.prefetch(TABLE, KEYS)
    assert shards.made.wait(60)
    shards.free.set()


def reader(staleness: int | None = None, age: int = 0) -> tuple[TableReader, Shards, np.ndarray]:
    """`age`: above 0 with a cache."""
    shards, versions = Shards(), np.full(8, -1, np.int64)
    caches = {TABLE.name: RowCache(TABLE, 10, age)} if age else {}
    return TableReader(shards, [TABLE], versions, staleness, caches), shards, versions


def read(rows: TableReader, keys: np.ndarray = KEYS) -> list[float]:
    """The first number of each row: the version that it is from."""
    found: list[float] = rows.read(TABLE, keys)[:, 0].tolist()
    return found


def test_a_pull_ahead_is_read_once_and_counts_as_a_pull_of_its_time() -> None:
    rows, shards, versions = reader()
    shards.version = 3
    ahead(rows, shards)
    shards.version = 5
    rows.stepped(0)
    assert read(rows) == [3, 3, 3]
    assert versions.tolist() == [-1] * 3 + [3] * 4 + [-1]
    assert read(rows) == [5, 5, 5]
    assert versions.tolist() == [-1] * 3 + [5] * 4 + [-1]


def test_other_keys_and_later_steps_are_pulled() -> None:
    rows, shards, _ = reader()
    ahead(rows, shards)
    rows.stepped(0)
    rows.read(TABLE, KEYS[1:])
    rows.stepped(0)
    shards.version = 4
    assert read(rows) == [4, 4, 4]
    assert shards.pulls == [(KEYS.tolist(), 0), (KEYS[1:].tolist(), 0), (KEYS.tolist(), 0)]


@pytest.mark.parametrize(("staleness", "clocks"), [(None, [0]), (0, [7]), (2, [7])])
def test_what_a_bound_lets_be_read_ahead(staleness: int | None, clocks: list[int]) -> None:
    """With 0 no pull is made before the round has ended; with N it is made for the clock that reads it."""
    rows, shards, _ = reader(staleness)
    rows.clock = 0 if staleness is None else 6
    rows.prefetch(TABLE, KEYS)
    assert staleness == 0 or shards.made.wait(60)
    rows.stepped(0 if staleness is None else 7)
    shards.version = 1
    found = read(rows)
    assert [clock for _, clock in shards.pulls] == clocks
    assert found == ([1, 1, 1] if staleness == 0 else [0, 0, 0])


def test_a_pull_ahead_for_an_earlier_clock_is_not_read() -> None:
    rows, shards, _ = reader(2)
    ahead(rows, shards)
    rows.stepped(2)  # the replica went on at a later clock
    shards.version = 1
    assert read(rows) == [1, 1, 1]
    assert shards.pulls[-1] == (KEYS.tolist(), 2)


def test_a_pull_ahead_that_failed_fails_where_it_is_read() -> None:
    rows, _, _ = reader()
    rows.prefetch(TABLE, KEYS[:0])
    with pytest.raises(Unavailable):
        rows.read(TABLE, KEYS[:0])


@pytest.mark.parametrize("staleness", [None, 3])
def test_kept_rows_are_read_for_so_many_steps(staleness: int | None) -> None:
    rows, shards, versions = reader(staleness, age=2)
    ages = []
    for step in range(7):
        shards.version = step
        ages += [step - version for version in read(rows)]
        assert versions[3] == step - ages[-1], "a push is as stale as its oldest row"
        rows.stepped(0 if staleness is None else step + 1)
    assert ages == [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3
    assert [clock for _, clock in shards.pulls] == ([0, 0, 0] if staleness is None else [2, 5, 8])


def test_rows_that_were_pushed_to_are_pulled_again() -> None:
    rows, shards, versions = reader(age=9)
    read(rows)
    rows.pushed(TABLE, KEYS[:2])
    shards.version = 1
    assert read(rows) == [1, 1, 0]
    assert shards.pulls[1:] == [(KEYS[:2].tolist(), 0)]
    oldest = versions[3:7]
    assert oldest.min() == 0, "the bucket of the row that was kept"
    assert read(rows) == [1, 1, 0]
    assert len(shards.pulls) == 2
