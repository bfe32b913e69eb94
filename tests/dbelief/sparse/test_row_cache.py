"""A cache of rows against a list: what is read, how many there are, and which go first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dbelief.sparse.row_cache import RowCache
from dbelief.sparse.row_hash import buckets, hashes
from dbelief.sparse.table import SparseTable
from tests.examples import examples

TABLE = SparseTable("user", 2, 77, 0.5, 0.1, 3, 4)
KEYS = st.sets(st.one_of(st.integers(0, 12), st.integers(-(2**63), 2**63 - 1)), max_size=9)
CALLS = st.lists(st.tuples(st.sampled_from(["read", "read", "keep", "drop", "step"]), KEYS), max_size=40)


@dataclass
class Entry:
    key: int
    row: float
    version: int
    due: int
    clock: int
    used: int


class Listed:
    """The same by a plain list, in the order in which keys came."""

    def __init__(self, most: int, age: int) -> None:
        self.most, self.age, self.calls, self.entries = most, age, 0, list[Entry]()

    def find(self, key: int) -> Entry | None:
        return next((one for one in self.entries if one.key == key), None)

    def read(self, keys: list[int], step: int, clock: int) -> dict[int, Entry]:
        self.calls += 1
        found = {one.key: one for one in self.entries if one.key in keys and one.due >= step and one.clock >= clock}
        for one in found.values():
            one.used = self.calls
        return found

    def keep(self, rows: dict[int, tuple[float, int]], step: int, clock: int) -> None:
        self.calls += 1
        rows = dict(list(rows.items())[-self.most :])
        held = [one for one in self.entries if one.key in rows]
        for one in held:
            one.used, one.due = self.calls, step
        new = len(rows) - len(held)
        if len(self.entries) + new > self.most:
            stay = max(len(held), self.most - max(new, self.most // 8))
            ranked = sorted(self.entries, key=lambda one: -1 if one.due < 0 else one.used)
            gone = ranked[: len(ranked) - stay]
            self.entries = [one for one in self.entries if one not in gone]
        for key, (row, version) in rows.items():
            entry = Entry(key, row, version, step + self.age, clock, self.calls)
            if (before := self.find(key)) is not None:
                self.entries[self.entries.index(before)] = entry
            else:
                self.entries.append(entry)

    def drop(self, keys: list[int]) -> None:
        for one in self.entries:
            if one.key in keys:
                one.due = -1


def bucket(keys: list[int]) -> list[int]:
    found: list[int] = buckets(hashes(np.array(keys, np.int64), TABLE.salt), TABLE.count).tolist()
    return found


@examples(150)
@given(CALLS, st.integers(1, 20), st.integers(1, 3), st.integers(0, 2))
def test_it_is_a_list_of_so_many_rows(calls: list[tuple[str, set[int]]], most: int, age: int, lag: int) -> None:
    cache, listed = RowCache(TABLE, most, age), Listed(most, age)
    step = number = 0
    for what, chosen in calls:
        keys = sorted(chosen)
        arrays = np.array(keys, np.int64)
        if what == "step":
            step += 1
        elif what == "drop":
            cache.drop(arrays)
            listed.drop(keys)
        elif what == "keep":
            number += 1
            versions = np.arange(TABLE.count) + 10 * number
            rows = {key: (number + 100.0 * place, int(versions[own])) for place, (key, own) in places(keys)}
            values = np.array([[row, -row] for row, _ in rows.values()], np.float32).reshape(-1, 2)
            cache.keep(arrays, values, versions, step, step + age - lag)
            listed.keep(rows, step, step + age - lag)
        else:
            found, expected = cache.read(arrays, step, step), listed.read(keys, step, step)
            assert found.missing.tolist() == [key not in expected for key in keys]
            rows_found = {key: row for key, row in zip(keys, found.rows.tolist(), strict=True) if key in expected}
            assert rows_found == {key: [one.row, -one.row] for key, one in expected.items()}
            oldest = [-1] * TABLE.count
            for one, own in zip(expected.values(), bucket(list(expected)), strict=True):
                oldest[own] = one.version if oldest[own] < 0 else min(oldest[own], one.version)
            assert found.versions.tolist() == oldest
        assert cache.count == len(listed.entries) <= most


def places(keys: list[int]) -> enumerate[tuple[int, int]]:
    return enumerate(zip(keys, bucket(keys), strict=True))


def test_keys_found_are_counted() -> None:
    cache, keys = RowCache(TABLE, 10, 1), np.arange(4)
    cache.keep(keys, np.zeros((4, 2), np.float32), np.zeros(4, np.int64), 0, 0)
    cache.read(np.arange(6), 1, 0)
    cache.read(keys, 2, 0)
    assert (cache.hits, cache.reads) == (4, 10)
