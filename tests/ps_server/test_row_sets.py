"""Sets with what has changed of tables: each complete one has all rows as they were, whatever came between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dbelief.checkpoint.object_sets import ObjectSets
from dbelief.checkpoint.set_storage import LocalSets, SetStorage, latest_valid, needed_by
from dbelief.checkpoint.shard_file import StoredSegment, write_shard
from dbelief.errors import CorruptSnapshot, SnapshotError, WriteFailed
from dbelief.sparse.row_limits import RowLimits
from dbelief.storage.backends import MemoryBackend
from dbelief.storage.object_store import ObjectStore
from dbelief.url import parse_url
from ps_server import snapshot
from ps_server.store.bucket import Bucket
from tests.examples import examples
from tests.ps_server.store.test_bucket import SPANS, WIDTH, A, Served, carried, pushed_between

RULE = "adagrad"
KEYS = 300
LIMITS = (RowLimits(), RowLimits(recent=135), RowLimits(after=2, counters=9 * 1024, recent=135, ttl_s=3600))
STEPS = ("push", "push", "complete", "complete", "complete", "fail", "repeat", "die", "move", "tear")


def rows_of(served: Served) -> dict[int, Any]:
    """All that a set has of the buckets."""
    return {
        index: (segment.applied, {name: values.tobytes() for name, values in segment.parts()[0].items()})
        for shard in served.shards
        for index, segment in shard.segments.items()
        if isinstance(segment, Bucket)
    }


class Run:
    """A job's shards and sets, and what each set must bring back."""

    def __init__(self, sets: SetStorage, limits: RowLimits = LIMITS[0], seed: int = 0) -> None:
        self.sets, self.limits, self.rng = sets, limits, np.random.default_rng(seed)
        self.served = Served(2, RULE, limits=limits)
        self.count = 0
        self.taken: dict[str, tuple[dict[int, Any], dict[Any, int]]] = {}
        for _ in range(4):
            self.push(200)

    def push(self, most: int = 25) -> None:
        keys = self.rng.choice(KEYS, self.rng.integers(0, most), replace=False)
        self.served.push(A, keys, self.rng.standard_normal((keys.size, WIDTH), dtype=np.float32))

    def begin(self) -> str:
        self.count += 1
        set_id = f"{0:012d}-{self.count:04d}"
        assert self.sets.claim(set_id)
        return set_id

    def write(self, set_id: str) -> dict[str, Any]:
        """What the coordinator commits of it."""
        files = self.sets.files_at(str(self.sets.place(set_id)))
        assert files is not None
        saved = [snapshot.save(shard, files, n, set_id, "job", 1) for n, shard in enumerate(self.served.shards)]
        self.taken[set_id] = rows_of(self.served), dict(self.served.sequences)
        needs = sorted({name for one in saved for name in one.needs})
        return {"segments": len(SPANS), "parts": {one.manifest.name: 1 for one in saved}, "needs": needs}

    def complete(self) -> str:
        set_id = self.begin()
        self.sets.commit(set_id, "job", self.write(set_id))
        self.sets.prune(keep=2)
        return set_id

    def fail(self) -> None:
        set_id = self.begin()
        self.write(set_id)
        self.sets.abort(set_id)

    def repeat(self) -> None:
        """The answer to a first call is lost."""
        set_id = self.begin()
        self.write(set_id)
        self.push()
        state = self.write(set_id)
        assert state["needs"] == [], "a call that comes late may write after the commit of what another one needed"
        self.sets.commit(set_id, "job", state)

    def restored(self, set_id: str, shards: int) -> Served:
        served = Served(shards, RULE, limits=self.limits)
        for shard in served.shards:
            snapshot.restore(shard, self.sets.files(set_id), set_id, "job", 2)
        served.sequences = dict(self.taken[set_id][1])
        return served

    def die(self) -> None:
        """All shards fail, and other ones are restored."""
        if self.sets.complete():
            self.served = self.restored(latest_valid(self.sets, "job", "sgd")[0], int(self.rng.integers(1, 4)))

    def move(self) -> None:
        """All buckets move to other processes, or followers are promoted."""
        there = Served(len(self.served.shards), RULE, limits=self.limits)
        for source, target in zip(self.served.shards, there.shards, strict=True):
            carried(source, target, list(source.segments))
        there.sequences, self.served = self.served.sequences, there

    def tear(self) -> None:
        if complete := self.sets.complete():
            self.sets.quarantine(complete[-1])

    def check(self) -> None:
        for set_id in self.sets.complete():
            for shards in (1, 3):
                assert rows_of(self.restored(set_id, shards)) == self.taken[set_id][0]


def in_store(path: Path) -> ObjectSets:
    where = parse_url(f"memory://rows/{path.parent.name}/{path.name}")
    return ObjectSets(ObjectStore(MemoryBackend(), patience_s=0.0), where)


EVICTING = ["complete", "push", "complete", "push", "fail", "push", "complete", "die", "complete", "push", "complete"]


@examples(60)
@example(steps=EVICTING, store=False, limits=LIMITS[1], seed=3)
@example(steps=EVICTING, store=True, limits=LIMITS[2], seed=4)
@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=18),
    store=st.booleans(),
    limits=st.sampled_from(LIMITS),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_complete_set_has_all_rows_as_they_were(
    steps: list[str], store: bool, limits: RowLimits, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("sets")
    run = Run(in_store(path) if store else LocalSets(path), limits, seed)
    for step in steps:
        getattr(run, step)()
    run.check()
    if run.sets.complete():
        set_id, _, skipped = latest_valid(run.sets, "job", "sgd")
        assert (set_id, skipped) == (run.sets.complete()[-1], [])


# -- what is written -----------------------------------------------------------------------------------------


MANY = 3000


def large(sets: SetStorage) -> Run:
    """A run with a complete set of many rows."""
    run = Run(sets)
    run.served.push(A, np.arange(MANY), np.ones((MANY, WIDTH), np.float32))
    run.complete()
    return run


def written(folder: Path) -> dict[str, int]:
    """Numbers in a set of the buckets, by array."""
    sizes: dict[str, int] = {}
    for manifest in folder.glob("shard-*.json"):
        for row in json.loads(manifest.read_text())["segments"]:
            for name, _, *size in row["vectors"]:
                sizes[name] = sizes.get(name, 0) + sum(size)
    return sizes


def test_few_changes_are_few_rows(tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    assert written(tmp_path / "000000000000-0001")["stamps"] == MANY
    for keys in (np.arange(30), np.arange(20, 40), np.arange(MANY, MANY + 5)):
        run.served.push(A, keys, np.ones((keys.size, WIDTH), np.float32))
    for _ in range(2):
        found = written(tmp_path / run.complete())
        assert found["changes/stamps"] == 45
        assert found["changes/updated"] == 40
        assert found["changes/keys"] == 2 * 5
        assert found[f"changes/rows of {WIDTH} by {RULE}"] == 45 * 2 * WIDTH
        assert found.get("changes/removed", 0) == found.get("keys", 0) == 0
    run.check()


@pytest.mark.parametrize("store", [False, True])
def test_files_that_a_kept_set_needs_stay_until_all_rows_are_written_again(store: bool, tmp_path: Path) -> None:
    sets = in_store(tmp_path) if store else LocalSets(tmp_path)
    run = large(sets)
    for _ in range(3):
        run.push()
        run.complete()
    assert len(sets.complete()) == 2
    assert sets.started()[0] == "000000000000-0001"
    state = sets.read(sets.complete()[-1])
    assert [name.split("/")[0] for name in state["needs"]] == ["000000000000-0001"] * 2
    if isinstance(sets, LocalSets):
        assert sorted(path.name for path in (tmp_path / "000000000000-0001").iterdir()) == [
            "shard-0.safetensors",
            "shard-1.safetensors",
        ]
    run.check()
    run.served.push(A, np.arange(MANY), np.ones((MANY, WIDTH), np.float32))
    for needs in (0, 2):
        run.push()
        assert len(sets.read(run.complete())["needs"]) == needs
    assert sets.started() == sets.complete()
    run.check()


@pytest.mark.parametrize("way", ["move", "die"])
def test_buckets_of_another_process_are_written_whole(way: str, tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    getattr(run, way)()
    run.push()
    assert run.sets.read(run.complete())["needs"] == []
    run.check()


def test_a_set_of_changes_has_the_rows_of_its_beginning(tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    run.push()

    def writing(files: Any, number: int, about: Any, table: Any, segments: Iterator[StoredSegment]) -> Any:
        return write_shard(files, number, about, table, pushed_between(run.served, segments))

    before = rows_of(run.served)
    (shard, _), set_id = run.served.shards, run.begin()
    with patch("ps_server.snapshot.write_shard", writing):
        saved = snapshot.save(shard, tmp_path / set_id, 0, set_id, "job", 1)
    assert saved.needs == ["000000000000-0001/shard-0.safetensors"]
    again = Served(1, RULE).shards[0]
    again.segments = {index: again.segments[index] for index in shard.segments}
    snapshot.restore(again, tmp_path / set_id, set_id, "job", 2)
    for index, segment in again.segments.items():
        if index:
            found = {name: values.tobytes() for name, values in segment.parts()[0].items()}
            assert (segment.applied, found) == before[index]


def test_without_memory_for_what_has_changed_all_rows_are_written(tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    run.push()
    with patch("ps_server.store.bucket.changes_of", side_effect=MemoryError):
        assert run.sets.read(run.complete())["needs"] == []
    run.check()


def test_a_complete_set_is_not_written_again(tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    with pytest.raises(WriteFailed, match="000000000000-0001: the set is complete, and is not written again"):
        run.write("000000000000-0001")


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["absent", "short", "changed"])
def test_damage_of_a_file_that_is_needed_names_it_and_the_set(way: str, tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    run.push()
    newer = run.complete()
    data = tmp_path / "000000000000-0001" / "shard-1.safetensors"
    content = bytearray(data.read_bytes())
    content[-3] ^= 1
    data.unlink()
    if way != "absent":
        data.write_bytes(content if way == "changed" else content[:-1])
    named = rf"{data}: segment \d, which set {newer} needs, (does not match its checksum|cannot be read: No such file)"
    with pytest.raises(CorruptSnapshot, match=named):
        run.restored(newer, 1)
    with pytest.raises(SnapshotError, match=f"no snapshot set is whole; {named}"):
        latest_valid(run.sets, "job", "sgd")
    run.tear()
    run.push()
    set_id = run.complete()
    assert run.sets.read(set_id)["needs"] == [], "what was found damaged is needed no more"
    assert rows_of(run.restored(set_id, 1)) == run.taken[set_id][0]


def test_a_copy_of_a_set_has_the_files_that_it_needs(tmp_path: Path) -> None:
    run = large(sets := in_store(tmp_path))
    run.push()
    newer = run.complete()
    (tmp_path / newer).mkdir()
    sets.fetch(newer, tmp_path / newer)
    run.sets = LocalSets(tmp_path)
    assert run.sets.complete() == [newer]
    run.check()


@pytest.mark.parametrize("needs", ["../../etc/x", "x", 7])
def test_nothing_is_removed_where_needs_are_no_files(needs: object, tmp_path: Path) -> None:
    run = large(LocalSets(tmp_path))
    for _ in range(2):
        set_id = run.begin()
        run.sets.commit(set_id, "job", run.write(set_id) | {"needs": [needs]})
    with pytest.raises(CorruptSnapshot, match=r"set\.json: needs .*, which is no file of a set"):
        needed_by(run.sets, [set_id])
    run.sets.prune(keep=1)
    assert len(run.sets.complete()) == 3
