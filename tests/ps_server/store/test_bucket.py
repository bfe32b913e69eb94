"""Tables on shards: exactly once, in any number of shards, in rounds, followers, migrations and sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint.shard_file import StoredSegment, write_shard
from dbelief.core.absent import EVERYTHING
from dbelief.core.layout import Kind, SegmentSpan
from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected
from dbelief.optim import make_row_rule, make_rule
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.sparse.row_hash import table_salt
from dbelief.sparse.row_limits import RowLimits
from dbelief.sparse.table import SparseTable, pack
from ps_server import snapshot
from ps_server.replication.apply import apply
from ps_server.replication.segment_state import capture, install
from ps_server.replication.wire import Decoder, encode
from ps_server.store.bucket import Bucket, held
from ps_server.store.journal import JournalRecord
from ps_server.store.segment import Outcome
from ps_server.store.shard import Shard
from tests.examples import examples

WIDTH, IDS = 3, 50
DENSE = SegmentSpan(0, 0, 4)
USER = SparseTable("user", WIDTH, table_salt(1, "user"), 0.5, 0.1, 1, 9)
SPANS = [DENSE, *USER.spans(4)]
A, B, C = Pusher(0, 1), Pusher(1, 2), Pusher(2, 3)
EVERY = np.arange(IDS)


class Served:
    """Shards that hold the segments in turn, ready, and replicas that push to them."""

    def __init__(
        self, shards: int, rule: str = "adagrad", staleness: int | None = None, limits: RowLimits | None = None
    ) -> None:
        owned = [[span for span in SPANS if span.index % shards == number] for number in range(shards)]
        tables = {replace(USER, limits=limits or RowLimits()): make_row_rule(rule, {})}
        self.shards = [Shard(spans, make_rule("sgd", {}), staleness, tables=tables) for spans in owned]
        self.sequences: dict[Pusher, int] = {}
        self.shards[0].push(Push(Pusher(9, 9), 1, assign=True), 0, np.zeros(4, np.float32))
        for shard in self.shards:
            shard.make_ready()

    def push(
        self, pusher: Pusher, keys: np.ndarray, rows: np.ndarray, clock: int = 0, samples: int = 1
    ) -> list[Outcome]:
        """Push rows, each to its bucket, and nothing to the others."""
        sequence = self.sequences[pusher] = self.sequences.get(pusher, 0) + 1
        push = Push(pusher, sequence, np.float32(0.1), samples, clock=clock)
        return self.send(push, keys, rows)

    def send(self, push: Push, keys: np.ndarray, rows: np.ndarray) -> list[Outcome]:
        order, parts = USER.split(keys)
        packed = {index: pack(keys[order][own], rows[order][own]) for index, own in parts}
        none = np.zeros(0, np.float32)
        outcomes = [shard.push(push, 0, np.ones(4, np.float32)).outcome for shard in self.shards if 0 in shard.segments]
        for shard in self.shards:
            buckets = [index for index in shard.segments if index]
            outcomes += [shard.push(push, index, packed.get(index, none)).outcome for index in buckets]
        return outcomes

    def read(self, keys: np.ndarray = EVERY) -> np.ndarray:
        rows = np.full((keys.size, WIDTH), np.nan, np.float32)
        order, parts = USER.split(keys)
        for index, own in parts:
            (shard,) = (shard for shard in self.shards if index in shard.segments)
            rows[order[own]] = shard.read_rows(index, keys[order][own])[1]
        return rows


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    keys = rng.choice(IDS, rng.integers(0, 20), replace=False)
    return keys, rng.standard_normal((keys.size, WIDTH), dtype=np.float32)


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "ftrl"])
def test_it_is_a_dense_table_bit_for_bit_in_any_number_of_shards(rule: str) -> None:
    """These rules leave a row as it is whose gradient is 0."""
    rng = np.random.default_rng(0)
    made = [Served(shards, rule) for shards in (1, 2, 7)]
    dense = USER.initial(EVERY)
    state = tuple(np.full_like(dense, value) for value in make_row_rule(rule, {}).state.values())
    for step in range(1, 40):
        keys, rows = drawn(rng)
        whole = np.zeros_like(dense)
        whole[keys] = rows
        make_row_rule(rule, {}).apply_reference(np, dense, whole, state, np.float32(0.1), step)
        for served in made:
            assert set(served.push(A, keys, rows)) == {Outcome.APPLIED}
    for served in made:
        np.testing.assert_array_equal(served.read(), dense)


@pytest.mark.parametrize("rule", ["lazy-adam", "row-adagrad"])
def test_rows_have_the_same_bits_in_any_number_of_shards(rule: str) -> None:
    rng, made = np.random.default_rng(0), [Served(shards, rule) for shards in (1, 2, 7)]
    for _ in range(30):
        keys, rows = drawn(rng)
        for served in made:
            served.push(A, keys, rows)
    first, *others = (served.read() for served in made)
    assert (first != USER.initial(EVERY)).any()
    assert all((first == other).all() for other in others)


def test_a_push_counts_once_in_every_bucket() -> None:
    served, (keys, rows) = Served(2), drawn(np.random.default_rng(3))
    served.push(A, keys, rows)
    after = served.read()
    push = Push(A, 1, np.float32(0.1))
    assert set(served.send(push, keys, rows)) == {Outcome.DUPLICATE}
    np.testing.assert_array_equal(served.read(), after)
    with pytest.raises(Rejected, match="push 3 of replica 0 on 'w' was received where 2 was expected"):
        served.send(replace(push, sequence=3), keys, rows)
    held = [row for shard in served.shards for row in shard.ledgers().values()]
    assert [(low.sequence, high.sequence) for low, high in held if low.sequence] == [(1, 1)] * 2
    versions = [version for shard in served.shards for version in shard.versions()]
    assert versions == [1] * len(SPANS)


@examples(40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["sgd", "adagrad", "lazy-adam"]))
def test_a_round_is_the_mean_of_its_pushes_in_any_order(seed: int, rule: str) -> None:
    """As of a dense table, in which a row that a push lacks has the gradient 0."""
    rng = np.random.default_rng(seed)
    pushed = [(pusher, *drawn(rng), int(rng.integers(1, 5))) for pusher in (A, B, C)]
    made = []
    for order in (pushed, pushed[::-1]):
        served = Served(2, rule, staleness=0)
        for shard in served.shards:
            shard.set_membership(1, [(0, [0, 1, 2])])
        for pusher, keys, rows, samples in order:
            assert set(served.push(pusher, keys, rows, samples=samples)) == {Outcome.STAGED}
        made.append(served.read())
    np.testing.assert_array_equal(made[0], made[1])
    mean, total = np.zeros((IDS, WIDTH), np.float32), sum(samples for *_, samples in pushed)
    for _, keys, rows, samples in pushed:
        mean[keys] += rows * np.float32(samples / total)
    one = Served(1, rule)
    touched = np.unique(np.concatenate([keys for _, keys, _, _ in pushed]))
    one.push(A, touched, mean[touched])
    np.testing.assert_array_equal(made[0], one.read())


def some_shard(rule: str = "lazy-adam", pushes: int = 5, staleness: int | None = None) -> Served:
    served, rng = Served(1, rule, staleness), np.random.default_rng(5)
    for _ in range(pushes):
        served.push(A, *drawn(rng))
    return served


def carried(source: Shard, target: Shard, indices: Sequence[int], journal: list[JournalRecord] | None = None) -> None:
    """Send segments as a migration does, or as to a follower, whose records go into `journal`."""
    decoder = Decoder()
    for index in indices:
        segment = source.segments[index]
        with segment.lock:
            state = capture(segment, None, {}, copy=True)
            segment.journal = journal.append if journal is not None else None
        for message in encode(state):
            if (received := decoder.take(wire.CarryRequest.FromString(message))) is not None:
                install(received, target.segments[index])


@pytest.mark.parametrize("rule", ["lazy-adam", "row-adagrad", "sgd"])
def test_a_bucket_that_has_moved_goes_on_as_it_would_have(rule: str) -> None:
    stays, moves, target = some_shard(rule), some_shard(rule), Served(1, rule)
    carried(moves.shards[0], target.shards[0], range(len(SPANS)))
    target.sequences = moves.sequences
    rng = np.random.default_rng(6)
    for _ in range(5):
        keys, rows = drawn(rng)
        assert stays.push(A, keys, rows) == target.push(A, keys, rows)
    np.testing.assert_array_equal(target.read(), stays.read())
    assert target.shards[0].versions() == stays.shards[0].versions()


@pytest.mark.parametrize("staleness", [None, 0])
def test_a_follower_that_applies_the_records_has_the_leaders_bits(staleness: int | None) -> None:
    leader, follower = some_shard(pushes=0, staleness=staleness), Served(1, "lazy-adam", staleness)
    records: list[JournalRecord] = []
    leader.shards[0].set_membership(1, [(0, [0, 1])])
    carried(leader.shards[0], follower.shards[0], range(len(SPANS)), records)
    rng = np.random.default_rng(7)
    for clock in range(4):
        for pusher in (A, B):
            leader.push(pusher, *drawn(rng), clock=clock)
    for record in records:
        apply(follower.shards[0], follower.shards[0].segments[record.index], record)
    np.testing.assert_array_equal(follower.read(), leader.read())
    assert follower.shards[0].versions() == leader.shards[0].versions()


@pytest.mark.parametrize("rule", ["lazy-adam", "row-adagrad"])
def test_a_set_has_the_rows_of_its_beginning_and_loads_on_any_number_of_shards(rule: str, tmp_path: Path) -> None:
    served = some_shard(rule)
    (shard,) = served.shards
    before = served.read()

    def writing(files: Any, number: int, about: Any, table: Any, segments: Iterator[StoredSegment]) -> Any:
        return write_shard(files, number, about, table, pushed_between(served, segments))

    with patch("ps_server.snapshot.write_shard", writing):
        snapshot.save(shard, tmp_path, 0, "s", "job", 1)
    assert (served.read() != before).any()
    again = Served(3, rule)
    for other in again.shards:
        snapshot.restore(other, tmp_path, "s", "job", 2)
    np.testing.assert_array_equal(again.read(), before)
    same, rng = some_shard(rule), np.random.default_rng(8)
    again.sequences = {A: same.sequences[A]}
    keys, rows = drawn(rng)
    again.push(A, keys, rows)
    same.push(A, keys, rows)
    np.testing.assert_array_equal(again.read(), same.read())


def pushed_between(served: Served, segments: Iterator[StoredSegment]) -> Iterator[StoredSegment]:
    """Pushes come when three segments are written."""
    rng = np.random.default_rng(9)
    for number, one in enumerate(segments):
        yield one
        if number == 2:
            served.push(A, *drawn(rng))
            served.push(A, EVERY, np.ones((IDS, WIDTH), np.float32))


def test_rows_that_do_not_fit_are_refused_and_change_nothing() -> None:
    served = some_shard()
    (shard,), before = served.shards, served.read()
    push = Push(A, 6, np.float32(0.1))
    for keys, match in [([2, 1], "segment 1: keys of rows that are not strictly rising"), ([1, 1], "not strictly")]:
        with pytest.raises(Rejected, match=match):
            shard.push(push, 1, pack(np.array(keys), np.ones((2, WIDTH), np.float32)))
    with pytest.raises(Rejected, match="segment 1: 4 numbers at 0 are no rows of its table"):
        shard.push(push, 1, np.ones(WIDTH + 1, np.float32))
    with pytest.raises(Rejected, match="segment 1: rows of a table are not assigned"):
        shard.segments[1].assign(Push(B, 1, assign=True), np.zeros(2 + WIDTH, np.float32), 0)
    with pytest.raises(Rejected, match="segment 0: positions outside of its"):
        shard.read_rows(0, np.array([1 << 40]))
    with pytest.raises(Rejected, match="segment 1 is a bucket of a table"):
        shard.pull("w", 1)
    np.testing.assert_array_equal(served.read(), before)


def test_a_table_has_buckets_and_no_place_in_the_flat_vector() -> None:
    assert {span.kind for span in SPANS[1:]} == {Kind.TABLE}
    assert Served(1).shards[0].size == 4
    with pytest.raises(ValueError, match="table 'user': 0 buckets, must be 1 to 65536"):
        replace(USER, count=0)


LIMITS = RowLimits(after=2, counters=9 * 1024, recent=27, ttl_s=50)


@pytest.mark.parametrize("staleness", [None, 0])
@pytest.mark.parametrize("way", ["follower", "moved", "set"])
def test_limits_act_on_a_copy_as_on_the_bucket(
    way: str, staleness: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each push comes three seconds after the one before it; a follower's come with its leader's times."""
    now = [0.0]
    monkeypatch.setattr("ps_server.store.bucket.runtime", SimpleNamespace(wall=lambda: now[0]))
    one, other = (Served(1, "adagrad", staleness, LIMITS) for _ in range(2))
    for served in (one, other):
        served.shards[0].set_membership(1, [(0, [0])])
    rng, records = np.random.default_rng(11), list[JournalRecord]()

    def push(some: list[Served], first: int) -> None:
        for clock in range(first, first + 25):
            now[0] += 3
            keys, rows = drawn(rng)
            for served in some:
                served.push(A, keys, rows, clock=clock)

    push([one], 0)
    if way == "set":
        snapshot.save(one.shards[0], tmp_path, 0, "s", "job", 1)
        snapshot.restore(other.shards[0], tmp_path, "s", "job", 1)
    else:
        carried(one.shards[0], other.shards[0], range(len(SPANS)), records if way == "follower" else None)
    other.sequences = dict(one.sequences)
    push([one] if way == "follower" else [one, other], 25)
    now[0] = -1.0
    for record in records:
        apply(other.shards[0], other.shards[0].segments[record.index], record)
    buckets = [[served.shards[0].segments[index] for index in range(1, len(SPANS))] for served in (one, other)]
    for mine, its in zip(*buckets, strict=True):
        assert isinstance(mine, Bucket)
        assert isinstance(its, Bucket)
        assert 0 < mine.arena.count <= 3
        assert mine.evicted
        for name, values in mine.parts()[0].items():
            np.testing.assert_array_equal(values.view(np.uint32), its.parts()[0][name].view(np.uint32), name)
    np.testing.assert_array_equal(other.read(), one.read())


def test_what_a_key_is_pushed_before_it_has_a_row_is_dropped() -> None:
    served, keys = Served(2, "sgd", limits=RowLimits(after=3, counters=9 << 10)), np.arange(4)
    rows = np.ones((4, WIDTH), np.float32)
    for number, moved in ((1, 0), (2, 0), (3, 0.1), (4, 0.2)):
        served.push(A, keys, rows)
        served.send(Push(A, number, np.float32(0.1)), keys, rows)  # a duplicate is not counted
        np.testing.assert_allclose(served.read(keys), USER.initial(keys) - np.float32(moved), atol=1e-6)


def test_rows_kept_without_limits_are_loaded_with_them(tmp_path: Path) -> None:
    served = some_shard("adagrad")
    snapshot.save(served.shards[0], tmp_path, 0, "s", "job", 1)
    limited = Served(1, "adagrad", limits=LIMITS)
    snapshot.restore(limited.shards[0], tmp_path, "s", "job", 2)
    np.testing.assert_array_equal(limited.read(), served.read())


@pytest.mark.parametrize("piece", [1, 5, 64])
def test_long_arrays_are_carried_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = some_shard(), Served(1, "lazy-adam")
    monkeypatch.setattr("ps_server.replication.wire._PIECE", piece)
    carried(source.shards[0], target.shards[0], range(1, len(SPANS)))
    np.testing.assert_array_equal(target.read(), source.read())


def test_pieces_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps_server.replication.wire._PIECE", 4)
    head, first, _, third, *_ = encode(capture(some_shard().shards[0].segments[1], None, {}, copy=True))
    decoder = Decoder()
    for message in (head, first):
        decoder.take(wire.CarryRequest.FromString(message))
    with pytest.raises(Rejected, match="segment 1: a piece of an array that does not follow the one before it"):
        decoder.take(wire.CarryRequest.FromString(third))


@pytest.mark.parametrize("rule", ["sgd", "ftrl", "adagrad"])
def test_rows_of_another_rule_are_not_loaded(rule: str, tmp_path: Path) -> None:
    """Adam's take as much memory as FTRL's."""
    snapshot.save(some_shard().shards[0], tmp_path, 0, "s", "job", 1)
    other = Served(1, rule).shards[0]
    with pytest.raises(
        Rejected, match=f"segment 1: its table has rows of 3 by {rule}, and .* has .*rows of 3 by lazy-adam"
    ):
        snapshot.restore(other, tmp_path, "s", "job", 2)
    with pytest.raises(Rejected, match="segment 1 has no initial values"):
        other.make_ready()
    with pytest.raises(Rejected, match="its table has rows of 3 by"):
        carried(some_shard().shards[0], other, [1])


@pytest.mark.parametrize("name", ["keys", "stamps", "rows of 3 by lazy-adam"])
def test_arrays_that_do_not_fit_each_other_are_not_loaded(name: str) -> None:
    target = Served(1, "lazy-adam").shards[0].segments[1]
    state = capture(some_shard().shards[0].segments[1], None, {}, copy=True)
    state.vectors[name] = state.vectors[name][:-1]
    with pytest.raises(Rejected, match=r"segment 1: \d+ numbers and \d+ stamps are not \d+ rows"):
        install(state, target)


def test_a_push_for_which_memory_is_short_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    served, keys = some_shard(pushes=1), np.arange(1000, 3000)
    rows, before = np.ones((keys.size, WIDTH), np.float32), served.read()

    def short(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr("ps_server.tables.arena.Arena._resize", short)
        with pytest.raises(MemoryError):
            served.push(A, keys, rows)
    np.testing.assert_array_equal(served.read(), before)
    assert Outcome.APPLIED in served.send(Push(A, 2, np.float32(0.1)), keys, rows)
    assert (served.read(keys) != USER.initial(keys)).all()


def test_rows_of_a_push_without_dense_numbers_are_stepped() -> None:
    served, (keys, rows) = Served(2, "sgd"), drawn(np.random.default_rng(3))
    served.send(Push(A, 1, np.float32(0.1), absent=EVERYTHING), keys, rows)
    expected = USER.initial(EVERY)
    expected[keys] -= np.float32(0.1) * rows
    np.testing.assert_array_equal(served.read(), expected)


def test_staleness_is_that_of_the_buckets_that_have_rows() -> None:
    (shard,) = Served(1).shards
    packed = pack(np.array([1]), np.ones((1, WIDTH), np.float32))
    shard.push(Push(A, 1, np.float32(0.1)), 1, packed)
    shard.push(Push(B, 1, np.float32(0.1)), 1, packed)
    assert shard.push(Push(A, 2, np.float32(0.1)), 1, packed, read_version=1).staleness == 1
    assert shard.push(Push(A, 3, np.float32(0.1)), 1, packed[:0]).staleness == 0
    with pytest.raises(Rejected, match="segment 1: 0 numbers of 0 to exchange"):
        shard.exchange(Push(B, 2), [(1, packed[:0])])


def test_what_is_held_of_a_table_is_counted() -> None:
    served = Served(2, "sgd", limits=RowLimits(most=18))
    for shard in served.shards:
        assert all(one.rows == 0 for one in held(shard.tables, shard.segments.values()).values())
    served.push(A, EVERY, np.ones((IDS, WIDTH), np.float32))
    found = [held(shard.tables, shard.segments.values())["user"] for shard in served.shards]
    buckets = np.bincount([index for index, own in USER.split(EVERY)[1] for _ in range(own.stop - own.start)])[1:]
    assert sum(one.rows for one in found) == np.minimum(buckets, 2).sum()
    assert sum(one.refused for one in found) == IDS - np.minimum(buckets, 2).sum()
    assert all(one.nbytes > one.rows * (8 + 4 * WIDTH) for one in found)
    assert sum(one.evicted for one in found) == 0
