"""Arenas against a dictionary: rows made, read, stepped and removed in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.arrays.row_index import slots_for
from dbelief.optim import Rule, make_row_rule, make_rule
from dbelief.optim.rules.row_adagrad import RowAdagrad
from dbelief.sparse.row_form import RowForm
from dbelief.sparse.row_hash import buckets, hashes, table_salt, uniform_rows
from dbelief.sparse.row_limits import RowLimits
from ps_server.tables.arena import Arena, RowArrays
from ps_server.tables.step import form_of, step_rows
from tests.examples import examples

SALT, WIDTH, LIMIT = table_salt(7, "user"), 3, 0.5
KEYS = st.one_of(st.integers(0, 40), st.integers(-(2**63), 2**63 - 1))
KEY_SETS = st.sets(KEYS, min_size=0, max_size=30)
STEPS = st.tuples(st.sampled_from(["push", "push", "push", "read", "remove", "load"]), KEY_SETS)


def initial(keys: np.ndarray) -> np.ndarray:
    return uniform_rows(keys, SALT, WIDTH, LIMIT)


def make(rule: Rule | None = None) -> Arena:
    return Arena(form_of(rule, WIDTH) if rule else RowForm(WIDTH, {"sum": (1, 2.0)}), SALT, initial, RowLimits())


def rising(keys: set[int]) -> np.ndarray:
    return np.array(sorted(keys), np.int64)


class Reference:
    """Rows by key in a dictionary, each stepped by the formula of its rule, as float32."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.rows: dict[int, tuple[np.ndarray, list[np.ndarray], int]] = {}

    def push(self, keys: np.ndarray, gradients: np.ndarray, step: int) -> None:
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            if key not in self.rows:
                each = [1 if isinstance(self.rule, RowAdagrad) else WIDTH] * len(self.rule.state)
                starts = zip(each, self.rule.state.values(), strict=True)
                state = [np.full(count, value, np.float32) for count, value in starts]
                self.rows[key] = initial(np.array([key]))[0], state, 0
            w, state, _ = self.rows[key]
            self.rule.apply_reference(np, w, gradient, tuple(state), np.float32(0.1), step)
            self.rows[key] = w, state, step

    def read(self, keys: np.ndarray) -> np.ndarray:
        rows = [self.rows[key][0] if key in self.rows else initial(np.array([key]))[0] for key in keys.tolist()]
        return np.array(rows, np.float32).reshape(-1, WIDTH)


@examples(60)
@given(
    st.lists(STEPS, max_size=25),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["sgd", "adagrad", "ftrl", "row-adagrad", "lazy-adam"]),
)
def test_any_order_of_steps_is_that_of_a_dictionary(steps: list[tuple[str, set[int]]], seed: int, name: str) -> None:
    rule = make_row_rule(name, {})
    arena, reference, rng = make(rule), Reference(rule), np.random.default_rng(seed)
    for number, (what, chosen) in enumerate(steps, 1):
        keys = rising(chosen)
        if what == "push":
            gradients = rng.standard_normal((keys.size, WIDTH), dtype=np.float32)
            step_rows(arena, rule, keys, gradients, np.float32(0.1), number, number)
            reference.push(keys, gradients, number)
        elif what == "remove":
            gone = np.isin(arena.rows().keys, keys)
            assert set(arena.remove(gone)) == chosen & reference.rows.keys()
            reference.rows = {key: row for key, row in reference.rows.items() if key not in chosen}
        elif what == "load":
            taken = [values.copy() for values in arena.rows()]
            arena = make(rule)
            arena.load(RowArrays(*taken))
        mixed = rng.permutation(keys)
        np.testing.assert_array_equal(arena.read(mixed), reference.read(mixed))
    rows = arena.rows()
    assert set(rows.keys) == reference.rows.keys()
    for key, stamp, numbers in zip(*rows, strict=True):
        w, state, step = reference.rows[int(key)]
        np.testing.assert_array_equal(numbers, np.concatenate([w, *state]))
        assert stamp == step


def test_a_hundred_thousand_rows_are_all_found() -> None:
    """Through every growth of rows and index, and after half of them were removed."""
    keys = np.unique(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 100_000))
    arena = make()
    for some in np.array_split(np.random.default_rng(1).permutation(keys), 37):
        arena.touch(np.sort(some), 5)
    assert arena.count == keys.size
    np.testing.assert_array_equal(arena.rows().keys[arena.find(keys)], keys)
    assert (arena.find(keys + 1)[~np.isin(keys + 1, keys)] == -1).all()
    gone = arena.rows().keys % 2 == 0
    removed = arena.remove(gone)
    assert (removed % 2 == 0).all()
    np.testing.assert_array_equal(arena.find(keys) == -1, keys % 2 == 0)
    np.testing.assert_array_equal(arena.read(keys[keys % 2 == 0]), initial(keys[keys % 2 == 0]))


def test_a_row_takes_at_most_16_bytes_beside_key_row_and_state() -> None:
    arena, keys = make(), np.arange(200_000)
    most = 0.0
    for number in range(0, keys.size, 500):
        arena.touch(keys[number : number + 500], 1)
        if arena.count > 2000:
            most = max(most, arena.nbytes / arena.count - 8 - 4 * arena.form.stride)
    assert 12 < most <= 16


def test_a_full_arena_makes_no_more_rows_and_steps_those_it_has() -> None:
    rule = make_rule("sgd", {})
    arena = Arena(form_of(rule, WIDTH), SALT, initial, RowLimits(most=5))
    arena.touch(np.arange(4), 1)
    keys = np.arange(2, 8)
    step_rows(arena, rule, keys, np.ones((6, WIDTH), np.float32), np.float32(0.5), 1, 2)
    assert arena.rows().keys.tolist() == [0, 1, 2, 3, 4]
    assert arena.rows().stamps.tolist() == [1, 1, 2, 2, 2]
    assert arena.refused == 3
    moved = np.array([[0.5], [0.5], [0.5], [0], [0], [0]], np.float32)
    np.testing.assert_array_equal(arena.read(keys), initial(keys) - moved)
    step_rows(arena, rule, keys[:3], np.ones((3, WIDTH), np.float32), np.float32(0.5), 2, 3)
    assert arena.rows().stamps.tolist() == [1, 1, 3, 3, 3]
    assert arena.refused == 3


def test_the_index_has_at_most_three_of_four_slots_in_use() -> None:
    for rows in [1, 12, 13, 48, 49, 3 << 20, (3 << 20) + 1]:
        assert rows <= 0.75 * slots_for(rows)
        assert slots_for(rows) == 16 or rows > 0.375 * slots_for(rows)


def test_hashes_are_splitmix64() -> None:
    """By whole numbers of Python, for keys of both signs."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    keys = [0, 1, -1, 2**63 - 1, -(2**63), 12345]
    starts = [mix((key + SALT) % 2**64) for key in keys]
    assert hashes(np.array(keys), SALT).tolist() == [mix(start) for start in starts]


def test_keys_spread_over_buckets_and_rows_over_their_range() -> None:
    keys = np.arange(100_000)
    counts = np.bincount(buckets(hashes(keys, SALT), 7), minlength=7)
    assert abs(counts / keys.size - 1 / 7).max() < 0.005
    rows = uniform_rows(keys, SALT, WIDTH, LIMIT)
    assert rows.min() >= -LIMIT
    assert rows.max() < LIMIT
    assert abs(rows.mean()) < 0.003
    assert rows.std() == pytest.approx(LIMIT / 3**0.5, rel=0.01)
    assert abs(np.corrcoef(rows.T) - np.eye(WIDTH)).max() < 0.02
    other = uniform_rows(keys, table_salt(7, "item"), WIDTH, LIMIT)
    assert abs(np.corrcoef(rows[:, 0], other[:, 0])[0, 1]) < 0.02
