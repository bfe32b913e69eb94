"""A part of a snapshot set gives back every bit of it, or says which file is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from dbelief.checkpoint.checksummed_json import checksum
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import StoredSegment, read_segments, verify_shards, write_shard
from dbelief.core.layout import SegmentSpan, assign_segments, make_segments
from dbelief.core.push import LedgerRow, Pusher
from dbelief.errors import CorruptSnapshot, RuntimeFailure, SnapshotError, WriteFailed
from tests.dbelief.process.test_atomic_file import files_end_at
from tests.examples import examples

TABLE = make_segments([(0, 40), (40, 60)], 7)
ABOUT = {"job": "digits", "set": "set-7", "rule": "momentum", "shard_epoch": 3}


def stored(span: SegmentSpan) -> StoredSegment:
    """A segment that is like no other; its names differ from segment to segment."""
    random = np.random.default_rng(span.index)
    arrays: dict[str, np.ndarray] = {
        name: random.standard_normal(span.length, np.float32) for name in ("w", "rule/velocity", "best.0")
    }
    arrays["accrued"] = random.standard_normal(span.length)
    if span.index % 2:
        del arrays["best.0"]
    ledger = {
        ("w", Pusher(1, 11)): LedgerRow(span.index, 3, 64 + span.index),
        ("w", Pusher(2, 12, 3)): LedgerRow(1 << 40, 1 << 41, 1 << 42),
        ("best.0", Pusher(2, 12, 3)): LedgerRow(7),
    }
    lost_of = {Pusher(2, 12, 3): span.index} if span.index else {}
    return StoredSegment(span, (1 << 40) + span.index, 5 * span.index, 2, span.index, ledger, arrays, lost_of)


def write(folder: Path, number: int, spans: Iterable[SegmentSpan], **about: Any) -> Path:
    """One shard's part."""
    segments = [stored(span) for span in spans]
    table = [(one.span, {name: (values.dtype, values.size) for name, values in one.arrays.items()}) for one in segments]
    manifest, size, _ = write_shard(folder, number, {**ABOUT, **about}, table, segments)
    assert manifest == folder / f"shard-{number}.json"
    assert size == manifest.with_suffix(".safetensors").stat().st_size
    return manifest


def write_all(folder: Path, shards: int, table: Sequence[SegmentSpan] = TABLE) -> Path:
    """All parts of a set."""
    for number, (first, count) in enumerate(assign_segments(table, shards)):
        write(folder, number, table[first : first + count])
    return folder


def plain(one: StoredSegment) -> Any:
    arrays = {name: (values.dtype, values.tobytes()) for name, values in one.arrays.items()}
    return one.version, one.applied, one.rounds, one.lost, dict(one.ledger), dict(one.lost_of), arrays


def read(
    folder: Path, spans: Sequence[SegmentSpan] = TABLE, set_id: str = "set-7", job: str = "digits"
) -> dict[int, Any]:
    return {one.span.index: plain(one) for one in read_segments(folder, set_id, job, "momentum", spans)}


def whole(table: Iterable[SegmentSpan]) -> dict[int, Any]:
    return {span.index: plain(stored(span)) for span in table}


@examples(30)  # each writes a dozen files, durably
@given(before=st.integers(1, 12), after=st.integers(1, 12), size=st.integers(1, 60), nominal=st.integers(1, 25))
def test_any_shard_count_reads_any_shard_count(
    before: int, after: int, size: int, nominal: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = make_segments([(0, size)], nominal)
    folder = write_all(tmp_path_factory.mktemp("set"), before, table)
    verify_shards(folder, "set-7", "digits", "momentum", len(table))
    runs = [table[first : first + count] for first, count in assign_segments(table, after)]
    assert [read(folder, run) for run in runs] == [whole(run) for run in runs]


def test_the_data_file_is_plain_safetensors(tmp_path: Path) -> None:
    write_all(tmp_path, 2)
    found = load_file(tmp_path / "shard-0.safetensors") | load_file(tmp_path / "shard-1.safetensors")
    wanted = {f"{span.index}/{name}": a for span in TABLE for name, a in stored(span).arrays.items()}
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], values) for name, values in wanted.items())


def test_a_part_is_two_files_and_nothing_else(tmp_path: Path) -> None:
    write_all(tmp_path, 2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["shard-0.json", "shard-0.safetensors", "shard-1.json", "shard-1.safetensors"]
    manifest = json.loads((tmp_path / "shard-1.json").read_text())
    assert (manifest["format"], manifest["shard"], manifest["shard_epoch"]) == (2, 1, 3)
    assert [row["index"] for row in manifest["segments"]] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("room", [0, 100, 1200, 2000])
def test_full_disk_is_named_and_old_files_stay(room: int, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    before = write_all(tmp_path / "before", 1)
    (tmp_path / "now").mkdir()
    with (
        files_end_at(room),
        pytest.raises(RuntimeFailure, match=r"now/shard-0\.\w+: cannot be written: File too large"),
    ):
        write_all(tmp_path / "now", 1)
    assert [path.name for path in (tmp_path / "now").iterdir() if path.suffix != ".safetensors"] == []
    with pytest.raises(CorruptSnapshot, match="set set-7 lacks segment 0"):
        read(tmp_path / "now")
    assert read(before) == whole(TABLE)


# -- what is wrong with a set --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("good"), 2)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "set-7"))


Change = Callable[[dict[str, Any]], Any]


def rewrite(path: Path, change: Change, sealed: bool = True) -> None:
    """Change a manifest; `sealed`: with a checksum that agrees, as if a program had written it so."""
    content = json.loads(path.read_text())
    crc = content.pop("crc32")
    change(content)
    path.write_text(json.dumps({**content, "crc32": checksum(content) if sealed else crc}))


def tear(name: str, share: float) -> Callable[[Path], None]:
    """Keep the first part of a file."""

    def damage(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(share * len(whole))])

    return damage


def flip(name: str, position: int) -> Callable[[Path], None]:
    """Flip one bit of a byte."""

    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[position] ^= 0x10
        (folder / name).write_bytes(content)

    return damage


def edit(change: Change, sealed: bool = True) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder / "shard-0.json", change, sealed)


def row(name: str, value: Any) -> Callable[[Path], None]:
    return edit(lambda content: content["segments"][2].__setitem__(name, value))


SINCE = {"place": "set-7", "file": "shard-0.safetensors", "offset": 0, "crc32": 0, "vectors": []}
UNREADABLE = r"shard-0\.json: cannot be read"
MANIFEST = r"shard-0\.json: is no manifest of a shard's part"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an empty data file": (tear("shard-0.safetensors", 0), r"shard-0\.safetensors: is 0 bytes long, and was written"),
    "a torn data file": (tear("shard-0.safetensors", 0.7), r"shard-0\.safetensors: is \d+ bytes long, and was"),
    "a missing data file": (lambda f: (f / "shard-1.safetensors").unlink(), r"shard-1\.safetensors: .* No such file"),
    "a flipped number": (flip("shard-1.safetensors", -3), r"shard-1\.safetensors: segment 8 does not match its"),
    "a flipped header": (flip("shard-1.safetensors", 30), r"shard-1\.safetensors: its header does not match its"),
    "a flipped header length": (flip("shard-1.safetensors", 6), r"shard-1\.safetensors: its header does not match"),
    "an empty manifest": (tear("shard-0.json", 0), UNREADABLE),
    "a torn manifest": (tear("shard-0.json", 0.5), UNREADABLE),
    "a manifest that is binary": (flip("shard-0.json", 3), r"shard-0\.json: "),
    "a manifest of nothing": (lambda f: (f / "shard-0.json").write_text("{}"), UNREADABLE),
    "a manifest that is a list": (lambda f: (f / "shard-0.json").write_text("[]"), UNREADABLE),
    "a manifest that is a folder": (lambda f: _to_folder(f / "shard-0.json"), UNREADABLE),
    "a format in words": (edit(lambda c: c.update(format="one")), UNREADABLE),
    "a wrong checksum": (edit(lambda c: c.update(shard_epoch=4), sealed=False), r"shard-0\.json: does not match its"),
    "another job": (edit(lambda c: c.update(job="mnist")), r"shard-0\.json: belongs to job mnist, set set-7; wanted"),
    "another set": (edit(lambda c: c.update(set="set-8")), r"shard-0\.json: belongs to job digits, set set-8; wanted"),
    "a missing manifest": (lambda f: (f / "shard-0.json").unlink(), r"set set-7 lacks segment 0 \(4 missing\)"),
    "a data file elsewhere": (edit(lambda c: c.update(file="../shard-0.safetensors")), MANIFEST),
    "a segment without a number": (row("index", None), MANIFEST),
    "a segment before the first": (row("index", -1), MANIFEST),
    "a length in words": (row("length", "7"), MANIFEST),
    "an offset beyond the end": (row("offset", 10**9), r"shard-0\.safetensors: segment 2 does not match its checksum"),
    "a vector of another type": (row("vectors", [["w", "BF16"]]), MANIFEST),
    "vectors without types": (row("vectors", ["w"]), MANIFEST),
    "a ledger row of words": (row("ledger", [["w", 1, 11, 0, "5", 3, 64]]), MANIFEST),
    "a ledger row of a negative push": (row("ledger", [["w", 1, 11, 0, -5, 3, 64]]), MANIFEST),
    "a ledger row without a vector": (row("ledger", [[None, 1, 11, 0, 5, 3, 64]]), MANIFEST),
    "a ledger of no rows": (row("ledger", 7), MANIFEST),
    "changes since rows elsewhere": (row("since", {**SINCE, "place": "../x"}), MANIFEST),
    "changes since rows without a place": (row("since", {**SINCE, "place": 7}), MANIFEST),
    "changes since rows of another type": (row("since", {**SINCE, "vectors": [["keys", "I64", 1]]}), MANIFEST),
    "changes since rows of a negative length": (row("since", {**SINCE, "vectors": [["keys", "F32", -1]]}), MANIFEST),
    "changes since nothing": (row("since", {}), MANIFEST),
    "changes of a vector": (row("since", SINCE), r"shard-0\.safetensors: segment 2, which set set-7 needs, has other"),
    "a segment that lacks its ledger": (edit(lambda c: c["segments"][2].pop("ledger")), MANIFEST),
}


def _to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_that_names_the_file(damage: str, folder: Path) -> None:
    do, reason = DAMAGE[damage]
    do(folder)
    for look in (lambda: read(folder), lambda: verify_shards(folder, "set-7", "digits", "momentum", len(TABLE))):
        with pytest.raises(CorruptSnapshot, match=reason) as caught:
            look()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["shard-0.safetensors", "shard-1.json"])
@pytest.mark.parametrize("flipped", [0xFF, 0x01])
def test_a_flipped_byte_is_noticed_or_harmless(name: str, flipped: int, folder: Path) -> None:
    """Harmless: in the spacing of a manifest."""
    path, wanted = folder / name, whole(TABLE)
    content, unnoticed, reasons = path.read_bytes(), [], []
    for position in range(0, len(content), 3):
        path.write_bytes(content[:position] + bytes([content[position] ^ flipped]) + content[position + 1 :])
        try:
            found = read(folder)
        except SnapshotError as error:
            reasons.append(str(error))
        else:
            assert found == wanted, position
            unnoticed.append(content[position : position + 1])
    assert set(unnoticed) <= {b" "}
    assert [reason for reason in reasons if path.name not in reason] == []


@pytest.mark.parametrize("count", range(12))
def test_ledger_rows_have_five_or_seven_fields(count: int, folder: Path) -> None:
    row("ledger", [["w", 1, 11, 0, 5, 3, 64, 1, 1, 1, 1, 1][:count]])(folder)
    if count in (5, 7):
        verify_shards(folder, "set-7", "digits", "momentum", len(TABLE))
    else:
        with pytest.raises(CorruptSnapshot, match=MANIFEST):
            read(folder)


def test_set_that_an_earlier_version_wrote_is_read() -> None:
    """Written before ledgers had leases and positions; see tests/golden."""
    folder = Path(__file__).parents[2] / "golden" / "set_without_parts" / "000000000040-0007"
    found = list(read_segments(folder, "000000000040-0007", "test", "sgd", make_segments([(0, 4096)], 1024)))
    assert len(found) == 4
    for one in found:
        assert one.ledger == {("w", Pusher(0, 3)): LedgerRow(3), ("w", Pusher(1, 4)): LedgerRow(2)}


def test_another_rules_state_is_no_damage(folder: Path) -> None:
    """An older set would hold the same."""
    with pytest.raises(
        SnapshotError, match=r"shard-0\.json: holds the state of rule momentum; the job's is sgd"
    ) as caught:
        list(read_segments(folder, "set-7", "digits", "sgd", TABLE))
    assert not isinstance(caught.value, CorruptSnapshot)


def test_another_segment_table_is_named(folder: Path) -> None:
    with pytest.raises(SnapshotError, match=r"shard-0\.json: segment 0 holds 7 numbers from 0; the job's table has 6"):
        read(folder, [SegmentSpan(0, 0, 6)])


def test_a_segment_that_two_manifests_hold_is_named(folder: Path) -> None:
    write(folder, 2, TABLE[3:4])
    with pytest.raises(
        CorruptSnapshot, match=r"shard-2\.json: holds segment 3, which another shard's manifest holds too"
    ):
        verify_shards(folder, "set-7", "digits", "momentum", len(TABLE))


def test_missing_last_segments_are_detected_without_layout(folder: Path) -> None:
    (folder / "shard-1.json").unlink()
    with pytest.raises(CorruptSnapshot, match=r"set set-7 lacks segment 4 \(5 missing\)"):
        verify_shards(folder, "set-7", "digits", "momentum", len(TABLE))


# -- writers that were stopped -------------------------------------------------------------------------------


def test_stopped_writer_does_not_overwrite_its_successor(tmp_path: Path) -> None:
    """It wakes half-way, or once it has written its data file."""
    spans, late = TABLE[:3], {**ABOUT, "shard_epoch": 2}
    segments = [stored(span) for span in spans]
    table = [(one.span, {name: (values.dtype, values.size) for name, values in one.arrays.items()}) for one in segments]

    def stopped() -> Iterator[StoredSegment]:
        yield segments[0]
        write(tmp_path, 0, spans)  # another process took its place meanwhile
        yield from segments[1:]

    for rows in (stopped(), iter(segments)):
        with pytest.raises(
            WriteFailed, match=r"shard-0\.json: was written in shard epoch 3, and stays; this shard is in 2"
        ):
            write_shard(tmp_path, 0, late, table, rows)
        assert read(tmp_path, spans) == whole(spans)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-0.json", "shard-0.safetensors"]


def test_part_of_another_shard_epoch_is_detected(folder: Path) -> None:
    """Those that the set does not name are not read."""
    write(folder, 2, TABLE[:2])
    sets, parts = LocalSets(folder.parent), {"shard-0.json": 3, "shard-1.json": 3}
    sets.commit(folder.name, "digits", {"parts": parts})
    verify_shards(folder, "set-7", "digits", "momentum", len(TABLE))
    sets.commit(folder.name, "digits", {"parts": {**parts, "shard-1.json": 4}})
    with pytest.raises(CorruptSnapshot, match=r"shard-1\.json: of shard epoch 3; the set has that of 4"):
        read(folder)
    sets.commit(folder.name, "digits", {"parts": {**parts, "shard-9.json": 3}})
    with pytest.raises(CorruptSnapshot, match=r"shard-9\.json: cannot be read"):
        read(folder)
