"""Sets in a store of objects: only what was committed is ever loaded, and of two that commit one set, one does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dbelief.checkpoint.object_sets import ObjectSets, sets_at
from dbelief.checkpoint.set_storage import LocalSets, SetStorage, complete_until, latest_valid, newest_count
from dbelief.checkpoint.shard_file import read_segments, verify_shards, write_shard
from dbelief.core.layout import SegmentSpan
from dbelief.errors import CorruptSnapshot, Unavailable, UserError, WriteFailed
from dbelief.storage.backends import MemoryBackend
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url, parse_url
from tests.dbelief.checkpoint.test_shard_file import ABOUT, plain, stored, whole

SPANS = (SegmentSpan(0, 0, 7), SegmentSpan(1, 7, 7), SegmentSpan(2, 14, 4))
IDS = [f"000000000100-000{number}" for number in range(1, 7)]


class Away(MemoryBackend):
    """A store that can be taken away."""

    away = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("read", "write", "begin", "list", "delete") and object.__getattribute__(self, "away"):
            raise ConnectionRefusedError
        return object.__getattribute__(self, name)


@pytest.fixture
def backend() -> Away:
    return Away()


@pytest.fixture
def where(tmp_path: Path) -> Url:
    return parse_url(f"memory://sets/{tmp_path.parent.name}/{tmp_path.name}")


@pytest.fixture
def opened(backend: Away, where: Url) -> Callable[[], ObjectSets]:
    """The same sets, as another process opens them."""
    return lambda: ObjectSets(ObjectStore(backend, patience_s=0.0), where)


@pytest.fixture
def sets(opened: Callable[[], ObjectSets]) -> ObjectSets:
    return opened()


def write_parts(sets: SetStorage, set_id: str, epoch: int = 3) -> dict[str, int]:
    """Two shards write their parts where the coordinator has them write; the parts' epochs by manifest."""
    files, parts = sets.files_at(str(sets.place(set_id))), {}
    assert files is not None
    for number, spans in enumerate((SPANS[:2], SPANS[2:])):
        segments = [stored(span) for span in spans]
        table = [
            (one.span, {name: (values.dtype, values.size) for name, values in one.arrays.items()}) for one in segments
        ]
        about = {**ABOUT, "set": set_id, "shard_epoch": epoch}
        manifest = write_shard(files, number, about, table, segments).manifest
        parts[manifest.name] = epoch
    return parts


def complete(sets: SetStorage, set_id: str, **more: Any) -> None:
    assert sets.claim(set_id)
    parts = write_parts(sets, set_id)
    sets.commit(set_id, "digits", {"segments": len(SPANS), "parts": parts, **more})


def read(sets: SetStorage, set_id: str) -> dict[int, Any]:
    files = sets.files_at(str(sets.place(set_id)))
    assert files is not None
    return {one.span.index: plain(one) for one in read_segments(files, set_id, "digits", "momentum", SPANS)}


def test_one_interface_for_folders_and_stores(sets: ObjectSets, tmp_path: Path) -> None:
    found = []
    for one in (LocalSets(tmp_path / "snapshots"), sets):
        with pytest.raises(UserError, match="no complete snapshot set to resume from"):
            latest_valid(one, "digits", "momentum")
        for set_id in IDS[:3]:
            complete(one, set_id, samples=set_id)
        assert one.claim(IDS[3])
        write_parts(one, IDS[3])
        set_id, state, skipped = latest_valid(one, "digits", "momentum")
        before = one.complete(), one.started(), newest_count(one), complete_until(one, IDS[1])
        one.abort(IDS[3])
        one.quarantine(IDS[2])
        after = one.complete(), latest_valid(one, "digits", "momentum")[0], one.read(IDS[1])["samples"]
        assert read(one, IDS[1]) == whole(SPANS)
        one.prune(keep=1)
        found.append((set_id, state["samples"], skipped, before, after, one.complete()))
    assert found[0] == found[1]
    assert found[0][0] == IDS[2]


def test_nothing_without_a_commit_is_loaded(
    sets: ObjectSets, opened: Callable[[], ObjectSets], backend: Away, where: Url
) -> None:
    assert sets.claim(IDS[0])
    write_parts(sets, IDS[0])
    other = opened()
    assert (other.complete(), other.started(), newest_count(other)) == ([], [IDS[0]], 1)
    with pytest.raises(CorruptSnapshot, match=r"/set\.json: does not exist: the set was not completed$"):
        read(other, IDS[0])
    (attempt,) = {url.parent for url in backend.list(where)}
    files = other.files_at(attempt)
    assert files is not None
    with pytest.raises(CorruptSnapshot, match=r"does not exist: the set was not completed"):
        verify_shards(files, IDS[0], "digits", "momentum", len(SPANS))


def test_of_two_coordinators_one_completes_a_set(sets: ObjectSets, opened: Callable[[], ObjectSets]) -> None:
    other = opened()
    for one in (sets, other):
        assert one.claim(IDS[0])
    parts = write_parts(sets, IDS[0], epoch=3)
    late = write_parts(other, IDS[0], epoch=4)
    sets.commit(IDS[0], "digits", {"segments": 3, "parts": parts})
    with pytest.raises(WriteFailed, match=rf"{IDS[0]}/set\.json: another coordinator has completed this set$"):
        other.commit(IDS[0], "digits", {"segments": 3, "parts": late})
    other.abort(IDS[0])
    for one in (sets, other):
        assert one.read(IDS[0])["parts"] == parts
        assert read(one, IDS[0]) == whole(SPANS)


def test_a_suspended_shard_changes_nothing(sets: ObjectSets) -> None:
    """Its attempt was begun anew meanwhile, and completed."""
    assert sets.claim(IDS[0])
    place = str(sets.place(IDS[0]))
    complete(sets, IDS[0])
    files = sets.files_at(place)
    assert files is not None
    write_shard(files, 0, {**ABOUT, "set": IDS[0], "shard_epoch": 9}, [], [])
    assert read(sets, IDS[0]) == whole(SPANS)


def test_a_commit_needs_its_manifests(sets: ObjectSets) -> None:
    assert sets.claim(IDS[0])
    parts = write_parts(sets, IDS[0])
    with pytest.raises(WriteFailed, match=r"shard-7\.json: does not exist"):
        sets.commit(IDS[0], "digits", {"segments": 3, "parts": {**parts, "shard-7.json": 3}})
    assert sets.complete() == []


@pytest.mark.parametrize("what", ["shard-0.json", "shard-0.safetensors", "set.json"])
@pytest.mark.parametrize("way", ["absent", "short", "changed"])
def test_damage_is_found_and_an_older_set_is_taken(
    what: str, way: str, sets: ObjectSets, backend: Away, where: Url
) -> None:
    for set_id in IDS[:2]:
        complete(sets, set_id)
    (url,) = [url for url in backend.list(where / IDS[1]) if url.name == what]
    content = bytearray(backend.read(url))
    content[len(content) // 2] ^= 1
    backend.delete([url])
    store = ObjectStore(backend)
    if way != "absent":
        store.replace(url, bytes(content) if way == "changed" else bytes(content[:-1]))
    set_id, _, skipped = latest_valid(sets, "digits", "momentum")
    assert set_id == IDS[0]
    if (what, way) == ("set.json", "absent"):
        assert skipped == []
    else:
        ((damaged, reason),) = skipped
        assert damaged == IDS[1]
        assert what in reason or "checksum" in reason


def test_a_manifest_that_the_commit_does_not_name_is_damage(
    sets: ObjectSets, opened: Callable[[], ObjectSets], backend: Away, where: Url
) -> None:
    """It may be whole, and of a process that was suspended."""
    complete(sets, IDS[0])
    (manifest,) = [url for url in backend.list(where / IDS[0]) if url.name == "shard-0.json"]
    suspended = opened()
    assert suspended.claim(IDS[0])
    write_parts(suspended, IDS[0], epoch=4)
    store = ObjectStore(backend)
    store.replace(manifest, store.read(Url(f"{suspended.place(IDS[0])}/shard-0.json")))
    with pytest.raises(CorruptSnapshot, match=r"shard-0\.json: is not the one that its set\.json names$"):
        read(sets, IDS[0])


def test_the_newest_set_is_the_one_that_was_taken_last(sets: ObjectSets) -> None:
    """It has fewer samples where an older set was resumed from."""
    ids = ["000000000200-0001", "000000000100-0002"]
    for set_id in ids:
        complete(sets, set_id)
    assert sets.complete() == ids
    assert latest_valid(sets, "digits", "momentum")[0] == ids[1]


def test_a_store_that_is_away_is_no_damage(sets: ObjectSets, backend: Away) -> None:
    """Else a set that is whole would be quarantined, and an older one taken."""
    complete(sets, IDS[0])
    backend.away = True
    for act in (lambda: latest_valid(sets, "digits", "momentum"), lambda: read(sets, IDS[0]), sets.complete):
        with pytest.raises(Unavailable):
            act()


def test_a_store_that_is_away_fails_a_set_as_a_full_disk_does(sets: ObjectSets, backend: Away) -> None:
    assert sets.claim(IDS[0])
    backend.away = True
    with pytest.raises(WriteFailed, match=r"/shard-0\.\w+: cannot connect, in 1 attempt$"):
        write_parts(sets, IDS[0])
    backend.away = False
    parts = write_parts(sets, IDS[0])
    backend.away = True
    with pytest.raises(WriteFailed):
        sets.commit(IDS[0], "digits", {"parts": parts})
    sets.abort(IDS[0])
    backend.away = False
    assert sets.complete() == []


def test_pruning_removes_the_commit_first(
    sets: ObjectSets, backend: Away, where: Url, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for set_id in IDS[:4]:
        complete(sets, set_id)
        sets.claim(IDS[4])
    write_parts(sets, IDS[4])
    removed: list[Url] = []
    delete = backend.delete

    def once(urls: list[Url], below: Url) -> None:
        if len(removed) == 2:
            raise PermissionError
        removed.extend(urls)
        delete(urls, below)

    monkeypatch.setattr(backend, "delete", once)
    with caplog.at_level(logging.WARNING):
        sets.prune(keep=2)
    assert removed[0] == where / IDS[0] / "set.json"
    (message,) = caplog.messages
    assert message.startswith(f"old snapshot sets could not be removed, and are next time: {where / IDS[0]}/")
    assert message.endswith(": access denied")
    monkeypatch.setattr(backend, "delete", delete)
    sets.prune(keep=2)
    assert sets.started() == IDS[2:5]
    assert sets.complete() == IDS[2:4]


def test_shards_write_only_below_the_place_of_the_sets(sets: ObjectSets, where: Url, tmp_path: Path) -> None:
    for place in (where, where.parent / "other" / IDS[0], f"{where}/../{IDS[0]}", tmp_path / IDS[0], "", "s3://x/y"):
        assert sets.files_at(str(place)) is None
    local = LocalSets(tmp_path)
    for place in (where / IDS[0], tmp_path, tmp_path / ".." / "x", ""):
        assert local.files_at(str(place)) is None


def test_the_kind_of_a_place_decides(tmp_path: Path, where: Url) -> None:
    assert isinstance(sets_at(str(where)), ObjectSets)
    assert isinstance(sets_at(str(tmp_path)), LocalSets)
