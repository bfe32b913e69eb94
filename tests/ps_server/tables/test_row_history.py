"""What has changed of a bucket, against rows in plain lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint.row_changes import Piece, changes_of, is_path, with_changes
from ps_server.tables.row_history import FullWrite, RowHistory
from tests.examples import examples

Row = tuple[int, int, float]
STEPS = st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 12), max_size=6)), max_size=12)


def arrays(rows: list[Row]) -> dict[str, np.ndarray]:
    """Of rows with a key, a stamp, and a number that is there twice."""
    keys, stamps, numbers = ([row[part] for row in rows] for part in range(3))
    return {
        "keys": np.array(keys, np.int64).view(np.float32),
        "stamps": np.array(stamps, np.int64).astype(np.uint32).view(np.float32),
        "rows of 2 by sgd": np.repeat(np.array(numbers, np.float32), 2),
        "counters": np.full(3, len(rows), np.float32),
    }


def after(rows: list[Row], number: int, steps: list[tuple[bool, set[int]]], writes: list[FullWrite]) -> int:
    """Push to some keys at each step, or remove some; returns the number of the last push."""
    for push, keys in steps:
        if push:
            number += 1
            held = [key for key, _, _ in rows]
            for key in sorted(keys):
                row = (key, number % 2**32, float(number))
                if key in held:
                    rows[held.index(key)] = row
                else:
                    rows.append(row)
        else:
            for write in writes:
                write.removed(np.array([key in keys for key, _, _ in rows], np.bool_))
            rows[:] = [row for row in rows if row[0] not in keys]
    return number


@examples(200)
@given(STEPS, STEPS, STEPS, st.sampled_from([0, 2**32 - 4, 2**32 + 7]))
def test_rows_of_a_set_and_its_changes_are_the_rows(
    first: list[tuple[bool, set[int]]],
    then: list[tuple[bool, set[int]]],
    last: list[tuple[bool, set[int]]],
    start: int,
) -> None:
    """Of two sets with all rows: each counts its own."""
    rows: list[Row] = []
    writes: list[FullWrite] = []
    stored = []
    number = start
    for steps in (first, then):
        number = after(rows, number, steps, writes)
        writes.append(FullWrite(number, len(rows)))
        stored.append(({name: values.copy() for name, values in arrays(rows).items()}, dict.fromkeys(rows)))
    number = after(rows, number, last, writes)
    for write, (earlier, known) in zip(writes, stored, strict=True):
        now = arrays(rows)
        changed, updated, removed = write.changes(now["stamps"].view(np.uint32), number)
        changes = changes_of(now, changed, updated, removed)
        assert changed.size == len([row for row in rows if row not in known])
        assert write.count(now["stamps"].view(np.uint32), number) == changed.size + removed.size
        found = with_changes(earlier, changes)
        assert {name: values.tobytes() for name, values in found.items()} == {
            name: values.tobytes() for name, values in now.items()
        }


def test_after_2_to_the_32_pushes_all_rows_have_changed() -> None:
    write = FullWrite(5, 3)
    stamps = np.array([1, 5, 2**32 - 1], np.uint32)
    assert write.count(stamps, 5) == 0
    assert write.count(stamps, 5 + 2**32) == 3


def piece(place: str) -> Piece:
    return Piece(place, "shard-0.safetensors", 0, 0, [])


def test_a_set_that_failed_leaves_the_one_before() -> None:
    history = RowHistory()
    for place, complete in (("a", ["a"]), ("b", []), ("c", ["c"])):
        history.begin(0, 0)
        history.end(piece(place))
        history.settle(complete)
        assert history.newest == place
        assert history.base is not None
        assert history.base.piece == piece("a" if place == "b" else place)
    history.begin(0, 0)
    history.end(None)
    assert [write.piece for write in history.writes] == [piece("c")]
    history.clear()
    assert history.base is None


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("1-1/shard-0.safetensors", True),
        ("1-1/a7/shard-0.safetensors", True),
        ("shard-0.safetensors", False),
        ("../shard-0.safetensors", False),
        ("1-1/../../shard-0.safetensors", False),
        ("/shard-0.safetensors", False),
        ("1-1/./x", False),
        (7, False),
    ],
)
def test_a_piece_is_below_the_place_of_the_sets(path: object, good: bool) -> None:
    assert is_path(path) is good
