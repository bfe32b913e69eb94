"""The packed gradients of a step, and rows of several tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import NonFinite
from dbelief.sparse.row_cache import RowCache
from dbelief.sparse.row_gradients import packed_gradients
from dbelief.sparse.row_hash import buckets, hashes
from dbelief.sparse.table import SparseTable, rises, unpack
from dbelief.sparse.table_reader import TableReader

USER, ITEM = SparseTable("user", 2, 5, 0.5, 0.1, 3, 4), SparseTable("item", 1, 6, 0.0, 0.1, 7, 2)


class Shards:
    """Initial rows; it counts the calls, and writes versions as shards do."""

    calls = 0

    def pull_rows(
        self, wanted: Mapping[SparseTable, np.ndarray], versions: np.ndarray, clock: int = 0
    ) -> list[np.ndarray]:
        self.calls += 1
        versions[:] = clock
        return [table.initial(keys) for table, keys in wanted.items()]


def test_rows_of_several_tables_are_read_at_once() -> None:
    shards, versions, keys = Shards(), np.zeros(9, np.int64), np.array([-5, 7])
    reader = TableReader(shards, (USER, ITEM), versions)
    reader.clock = 8
    found = reader.read_all({"item": keys, "user": keys[:1]})
    assert (shards.calls, versions.tolist()) == (1, [0] * 3 + [8] * 6)
    np.testing.assert_array_equal(found["user"], reader.read(USER, keys[:1]))
    np.testing.assert_array_equal(found["item"], ITEM.initial(keys))


def test_versions_of_kept_rows_stay_those_of_their_pull() -> None:
    versions, keys = np.full(9, -1, np.int64), np.array([-5, 7])
    reader = TableReader(Shards(), (USER, ITEM), versions, 9, {"user": RowCache(USER, 10, 5)})
    own = [int(number) + USER.first for number in set(buckets(hashes(keys, USER.salt), USER.count))]
    for clock in (3, 6):
        reader.stepped(clock)
        reader.read_all({"user": keys, "item": keys})
    pulled = 3 + 5  # the last clock that its rows may be read for
    assert versions[own].tolist() == [pulled] * len(own)
    assert versions[ITEM.first :].tolist() == [6, 6]


PART = st.dictionaries(st.integers(-4, 4), st.integers(-9, 9), max_size=5)


@given(st.dictionaries(st.sampled_from(["user", "item"]), st.lists(PART, max_size=3)), st.sampled_from([1.0, 0.5]))
def test_gradients_are_added_by_key_and_packed_by_bucket(found: dict[str, list[dict[int, int]]], scale: float) -> None:
    reader = TableReader(Shards(), (USER, ITEM), np.zeros(9, np.int64))
    given_parts = {
        name: [
            (
                np.array(list(part), np.int64),
                np.repeat(np.array(list(part.values()), np.float32)[:, None], reader.table(name).width, axis=1),
            )
            for part in parts
        ]
        for name, parts in found.items()
    }
    packed = packed_gradients(given_parts, reader, scale)
    sums: dict[tuple[str, int], float] = {}
    for name, parts in found.items():
        for part in parts:
            for key, value in part.items():
                sums[name, key] = sums.get((name, key), 0.0) + value * scale
    seen: dict[tuple[str, int], float] = {}
    for index, values in packed.items():
        table = USER if index < ITEM.first else ITEM
        keys, rows = unpack(values, table.width)
        assert rises(keys)
        assert set(buckets(hashes(keys, table.salt), table.count) + table.first) == {index}
        assert (rows == rows[:, :1]).all()
        seen |= {(table.name, key): row for key, row in zip(keys.tolist(), rows[:, 0].tolist(), strict=True)}
    assert seen == sums


def test_a_gradient_that_is_not_finite_names_table_and_key() -> None:
    reader = TableReader(Shards(), (USER, ITEM), np.zeros(9, np.int64))
    gradients = np.array([[1.0], [np.inf]], np.float32)
    with pytest.raises(NonFinite, match="the gradient of table 'item' is not finite for key 9"):
        packed_gradients({"item": [(np.array([-2, 9]), gradients)]}, reader)
