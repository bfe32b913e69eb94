"""A set shows a shard as it was when the set was begun, independent of later changes."""

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint import shard_file
from dbelief.checkpoint.shard_file import StoredSegment, read_segments, verify_shards
from dbelief.core.layout import make_segments
from dbelief.core.push import NO_PUSH, LedgerRow, Push, Pusher
from dbelief.core.vector_program import Operation, copy, lincomb
from dbelief.errors import Rejected, WriteFailed
from dbelief.optim import make_rule
from dbelief.process.atomic_file import Disk, use_disk
from ps_server import snapshot
from ps_server.programs import ProgramExecutor
from ps_server.store.shard import Shard
from tests.examples import examples
from tests.ps_server.servers import leased

Make = Callable[..., Any]
A, B = Pusher(1, 11), Pusher(2, 12)
TABLE = make_segments([(0, 24)], 5)
SET = ("set-1", "job", 1)
PATIENCE_S = 60.0


def save(shard: Shard, folder: Path) -> None:
    snapshot.save(shard, folder, 0, *SET)


@contextmanager
def between(turns: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Before each segment that is written, and after the last, one of these happens; none once they are over."""
    write = shard_file.write_shard

    def held(
        folder: Path, number: int, about: Any, table: Any, segments: Iterable[StoredSegment]
    ) -> shard_file.Written:
        def each() -> Iterator[StoredSegment]:
            left, source = iter(turns), iter(segments)
            for turn in left:
                turn()
                stored = next(source, None)
                if stored is None:
                    return
                yield stored
                del stored  # as if nobody held it any more
            yield from source

        return write(folder, number, about, table, each())

    with patch.object(snapshot, "write_shard", held):
        yield


def no_marks(shard: Shard) -> bool:
    return all(segment.snapshot_view is None for segment in shard.segments.values())


# -- whatever happens ----------------------------------------------------------------------------------------


class World:
    """A shard and what may be done to it, from numbers that are drawn."""

    def __init__(self, rule: str, staleness: int | None, lock_free: bool, folder: Path) -> None:
        self.shard = Shard(TABLE, make_rule(rule, {}), staleness, lock_free=lock_free)
        self.programs = ProgramExecutor(self.shard)
        self.older = folder / "older"
        self.made = 0
        for index in self.shard.segments:
            self.assign(index, "w")
            self.assign(index, "x")
        self.shard.make_ready()
        self.shard.set_membership(1, [(0, [1, 2])])
        save(self.shard, self.older)

    def numbers(self, index: int) -> np.ndarray:
        """Others each time."""
        self.made += 1
        return np.random.default_rng(self.made).standard_normal(TABLE[index].length, np.float32)

    def next(self, index: int, vector: str, pusher: Pusher) -> int:
        return self.shard.segments[index].ledger.last.get((vector, pusher), NO_PUSH).sequence + 1

    def push(self, index: int, pusher: Pusher) -> None:
        segment = self.shard.segments[index]
        clock = segment.rounds + sum(pusher in round_ for round_ in segment.staged.values())
        push = leased(Push(pusher, self.next(index, "w", pusher), np.float32(0.1), clock=clock))
        self.shard.push(push, index, self.numbers(index))

    def round(self, index: int) -> None:
        self.push(index, A)
        self.push(index, B)

    def assign(self, index: int, vector: str, part: int = 0) -> None:
        values = self.numbers(index)[part:]
        self.shard.push(Push(A, self.next(index, vector, A), vector=vector, assign=True), index, values, part)

    def bundle(self, index: int, clock: int, number: int) -> None:
        push = Push(B, 1, vector="accrued", clock=clock, bundle=number)
        self.shard.push(push, index, self.numbers(index))

    def run(self, operation: Operation) -> None:
        with suppress(Rejected):  # it reads what is not there
            self.programs.run([operation])

    def go_back(self) -> None:
        snapshot.restore(self.shard, self.older, *SET[:2], 1)

    def settle(self, pusher: Pusher) -> None:
        self.shard.forget([pusher.incarnation])


INDEX, PUSHER = st.integers(0, len(TABLE) - 1), st.sampled_from([A, B])
OPERATIONS = [
    copy("x", "w"),
    lincomb("w", (0.5, "w")),
    lincomb("w", (1.0, "w"), (2.0, "x"), (3.0, "y")),
    lincomb("y", (2.0, "w"), (-1.0, "x")),
    lincomb("accrued", (1.1, "w")),
    copy("z", "y"),
]
DEEDS = st.one_of(
    st.tuples(st.just("push"), INDEX, PUSHER),
    st.tuples(st.just("round"), INDEX),
    st.tuples(st.just("assign"), INDEX, st.sampled_from(["x", "y", "best.0"]), st.integers(0, 2)),
    st.tuples(st.just("bundle"), INDEX, st.integers(1, 2), st.integers(1, 3)),
    st.tuples(st.just("run"), st.sampled_from(OPERATIONS)),
    st.tuples(st.just("go_back")),
    st.tuples(st.just("settle"), PUSHER),
)
SOME = st.lists(DEEDS, max_size=8)


@examples(60)
@given(
    rule=st.sampled_from(["sgd", "adam", "elastic"]),
    way=st.sampled_from([(None, False), (None, True), (0, False)]),
    before=SOME,
    meanwhile=st.lists(SOME, min_size=len(TABLE) + 1, max_size=len(TABLE) + 1),
)
def test_a_set_is_the_shard_at_rest_bit_for_bit(
    rule: str,
    way: tuple[int | None, bool],
    before: list[Any],
    meanwhile: list[list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The oracle is a set that is written while nothing else happens."""
    folder = tmp_path_factory.mktemp("sets")
    world = World(rule, *way, folder)
    try:

        def do(deeds: list[Any]) -> None:
            for name, *arguments in deeds:
                getattr(world, name)(*arguments)

        do(before)
        save(world.shard, folder / "still")
        with between([partial(do, deeds) for deeds in meanwhile]):
            save(world.shard, folder / "moving")
        for name in ("shard-0.safetensors", "shard-0.json"):
            assert (folder / "moving" / name).read_bytes() == (folder / "still" / name).read_bytes()
        assert no_marks(world.shard)
    finally:
        world.programs.close()


@pytest.mark.parametrize(
    ("rule", "staleness", "deed", "vector"),
    [
        ("adam", None, ("push", 4, A), "w"),
        ("adam", None, ("push", 4, A), "rule/second_moment"),
        ("momentum", 0, ("round", 4), "w"),
        ("momentum", 0, ("round", 4), "rule/velocity"),
        ("elastic", 0, ("round", 4), "w"),
        ("sgd", None, ("assign", 4, "x"), "x"),
        ("sgd", None, ("bundle", 4, 2, 1), "accrued"),
        ("sgd", None, ("run", lincomb("x", (1.0, "x"), (2.0, "w"))), "x"),
        ("momentum", None, ("go_back",), "w"),
    ],
)
def test_each_way_to_change_an_array_leaves_a_copy(
    rule: str, staleness: int | None, deed: tuple[Any, ...], vector: str, tmp_path: Path
) -> None:
    world, (name, *arguments) = World(rule, staleness, False, tmp_path), deed
    try:
        for index in world.shard.segments:
            world.round(index)
            world.bundle(index, 1, 1)
        save(world.shard, tmp_path / "still")
        segment = world.shard.segments[4]
        held = {
            **segment.vectors,
            **dict(zip((f"rule/{key}" for key in segment.rule.state), segment.state, strict=True)),
        }
        before = held[vector].tobytes()
        with between([partial(getattr(world, name), *arguments)]):
            save(world.shard, tmp_path / "moving")
        assert held[vector].tobytes() != before
        for file in ("shard-0.safetensors", "shard-0.json"):
            assert (tmp_path / "moving" / file).read_bytes() == (tmp_path / "still" / file).read_bytes()
    finally:
        world.programs.close()


# -- one instant ---------------------------------------------------------------------------------------------


def test_migrated_segments_stay_in_the_givers_set(make: Make, tmp_path: Path) -> None:
    subject = make((5, 3, 4))
    before = subject.read()
    shard = subject.shard
    kept = {0: shard.segments[0]}
    with between([lambda: shard.set_segments(kept, {})]):
        save(shard, tmp_path)
    verify_shards(tmp_path, *SET[:2], "sgd", 3)
    stored = {
        one.span.index: one.arrays["w"].tobytes() for one in read_segments(tmp_path, *SET[:2], "sgd", subject.spans)
    }
    assert b"".join(numbers for _, numbers in sorted(stored.items())) == before.tobytes()
    assert no_marks(shard)


def test_lock_free_set_has_at_most_pushes_begun_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger knows of the push under way; the version does not yet."""
    monkeypatch.setattr("dbelief.optim.apply.FEW", 0)  # so that the step is the rule's own `apply`
    begun, go_on = threading.Event(), threading.Event()

    class Slow(type(make_rule("sgd", {}))):  # type: ignore[misc]
        def apply(self, w: np.ndarray, g: np.ndarray, states: Any, rate: np.float32, step: int) -> None:
            half = len(w) // 2
            super().apply(w[:half], g[:half], states, rate, step)
            if not begun.is_set():
                begun.set()
                assert go_on.wait(PATIENCE_S)
            super().apply(w[half:], g[half:], states, rate, step)

    spans = make_segments([(0, 8)], 8)
    shard, one = Shard(spans, Slow(), lock_free=True), np.ones(8, np.float32)
    shard.push(Push(A, 1, assign=True), 0, np.zeros(8, np.float32))
    shard.make_ready()
    under_way = threading.Thread(target=shard.push, args=(Push(A, 2, np.float32(1)), 0, one))
    under_way.start()
    assert begun.wait(PATIENCE_S)
    with between([lambda: shard.push(Push(B, 1, np.float32(1)), 0, one)]):
        save(shard, tmp_path)
    go_on.set()
    under_way.join()
    (stored,) = read_segments(tmp_path, *SET[:2], "sgd", spans)
    assert (stored.version, stored.ledger) == (0, {("w", A): LedgerRow(2)})
    assert stored.arrays["w"].tolist() == [-1] * 4 + [0] * 4
    assert (shard.versions(), shard.pull("w", 0)[1]) == ([2], np.full(8, -2, np.float32).tobytes())


# -- what it takes -------------------------------------------------------------------------------------------


def test_only_changed_segments_are_copied_until_written(make: Make, tmp_path: Path) -> None:
    """Traced before each segment: a copy of the shard at first, and then one segment less each time."""
    subject, count, length = make((50_000,) * 10, "adagrad"), 10, 50_000
    one = 2 * 4 * length
    seen: list[int] = []

    def look() -> None:
        gc.collect()
        seen.append(tracemalloc.get_traced_memory()[0] - before)

    def all_change() -> None:
        subject.push(A, 1.0)
        look()

    subject.push(A, 1.0)  # compiles the rule, which would be traced
    subject.assign(1.0, "best.0")  # held, and not changed: never copied
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with between([all_change, *[look] * count]):
            save(subject.shard, tmp_path)
        gc.collect()
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    buffer = one + 4 * length
    expected = [count * one, *(buffer + (count - number) * one for number in range(count))]  # one is just written
    assert seen == [pytest.approx(size, abs=one / 4) for size in expected]
    assert left < one / 4


def test_an_array_is_copied_once(make: Make, tmp_path: Path) -> None:
    subject = make((50_000,), "adagrad")
    copies: list[int] = []

    def push() -> None:
        subject.push(A, 1.0)
        copies.append(id(subject.shard.segments[0].snapshot_view._arrays["w"]))

    def often() -> None:
        for _ in range(3):
            push()

    with between([often]):
        save(subject.shard, tmp_path)
    assert len(copies) == 3
    assert len(set(copies)) == 1


# -- what goes wrong -----------------------------------------------------------------------------------------


def test_full_disk_fails_the_set_and_clears_its_marks(make: Make, tmp_path: Path) -> None:
    """The kernel's own ENOSPC, of /dev/full."""
    subject = make((50_000,) * 4)
    save(subject.shard, tmp_path / "old")
    full = tmp_path / "new"
    full.mkdir()

    class FullDisk(Disk):
        def create(self, path: Path) -> BinaryIO:
            path.symlink_to("/dev/full")
            return path.open("wb")

    reason = r"^[^\n]*/new/shard-0\.safetensors: cannot be written: No space left on device$"
    with use_disk(FullDisk()), pytest.raises(WriteFailed, match=reason), between([lambda: subject.push(A, 1.0)] * 4):
        save(subject.shard, full)
    assert no_marks(subject.shard)
    assert list(full.iterdir()) == []
    verify_shards(tmp_path / "old", *SET[:2], "sgd", 4)
    subject.push(A, 1.0)
    save(subject.shard, full)  # there is room again
    assert {one.version for one in read_segments(full, *SET[:2], "sgd", subject.spans)} == {subject.shard.versions()[0]}


class NoRoom(np.ndarray[Any, Any]):
    """Numbers that cannot be copied."""

    def copy(self, *_: Any, **__: Any) -> Any:
        raise MemoryError


def test_a_push_does_not_fail_for_a_copy_that_a_set_wants(make: Make, tmp_path: Path) -> None:
    subject = make((5, 3))
    segment = subject.shard.segments[1]
    segment.vectors["w"] = segment.vectors["w"].view(NoRoom)
    reason = "segment 1 changed while the set was written, and there was no memory for a copy of it as it was"
    with pytest.raises(WriteFailed, match=reason), between([lambda: subject.push(A, 1.0)]):
        save(subject.shard, tmp_path)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(subject.read(), -1)
    assert no_marks(subject.shard)
    segment.vectors["w"] = np.asarray(segment.vectors["w"])
    save(subject.shard, tmp_path)


def test_a_shard_that_is_being_loaded_is_in_no_set(make: Make, tmp_path: Path) -> None:
    subject = make((5, 3, 4))
    save(subject.shard, tmp_path / "old")
    subject.shard.empty()
    subject.shard.load(next(read_segments(tmp_path / "old", *SET[:2], "sgd", subject.spans[:1])), 1)
    with pytest.raises(Rejected, match="segment 1 has no initial values"):
        save(subject.shard, tmp_path / "new")
    assert no_marks(subject.shard)
    assert not (tmp_path / "new").exists()
