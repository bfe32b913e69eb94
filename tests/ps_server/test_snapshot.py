"""A set of snapshots gives back every bit, on any number of shards, or says which file is wrong."""

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.errors import Refused, SnapshotError
from dbelief.layout import Span, cut, place
from dbelief.optim import RULES, make_rule
from dbelief.pushes import Push, Pusher
from ps_server import snapshot
from ps_server.shard import Shard

Make = Callable[..., Any]
A, B = Pusher(1, 11), Pusher(2, 12, 3)
TABLE = cut([(0, 60)], 7)
OPTIONS = {"adagrad": {"a0": 0.1}}


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(60, dtype=np.float32)


def shards_of(number: int, rule: str = "adam", staleness: int | None = None) -> list[Shard]:
    runs = [TABLE[first : first + count] for first, count in place(TABLE, number)]
    return [Shard(run, make_rule(rule, OPTIONS.get(rule, {})), staleness) for run in runs]


def send(shards: Sequence[Shard], push: Push, values: np.ndarray, leave_out: Sequence[int] = ()) -> None:
    for shard in shards:
        for index, segment in shard.segments.items():
            if index not in leave_out:
                shard.push(push, index, values[segment.span.start : segment.span.stop])


def trained(number: int, rule: str = "adam") -> list[Shard]:
    """Shards in the midst of training: a push that has not reached every segment, and a kept vector."""
    shards = shards_of(number, rule)
    send(shards, Push(A, 1, assign=True), normal(0))
    for shard in shards:
        shard.make_ready()
    for sequence in (2, 3):
        send(shards, Push(A, sequence, np.float32(0.1)), normal(sequence))
    send(shards, Push(B, 1, np.float32(0.1)), normal(9), leave_out=[0, 4])
    send(shards, Push(B, 1, vector="best.0", assign=True), normal(8))
    return shards


def save(shards: Sequence[Shard], folder: Path, set_id: str = "set-7", job: str = "digits") -> Path:
    for number, shard in enumerate(shards):
        manifest, written = snapshot.save(shard, folder, number, set_id, job, shard_epoch=1)
        assert manifest.parent == folder
        assert written == manifest.with_suffix(".safetensors").stat().st_size
    return folder


def restore(shards: Sequence[Shard], folder: Path) -> None:
    assert sum(snapshot.restore(shard, folder, "set-7", "digits") for shard in shards) == len(TABLE)


def state(shards: Sequence[Shard]) -> Any:
    """All that a snapshot has to bring back, by segment."""
    return {
        index: (
            {name: values.tobytes() for name, values in segment.vectors.items()},
            [values.tobytes() for values in segment.state],
            segment.version,
            segment.rounds,
            segment.ledger,
        )
        for shard in shards
        for index, segment in shard.segments.items()
    }


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 7), (7, 2), (10, 1), (1, 10)])
def test_every_bit_comes_back_on_any_number_of_shards(rule: str, before: int, after: int, tmp_path: Path) -> None:
    old, new = trained(before, rule), shards_of(after, rule)
    restore(new, save(old, tmp_path))
    assert state(new) == state(old)
    for shards in (old, new):  # and training goes on as if nothing had been
        send(shards, Push(B, 1, np.float32(0.1)), normal(9))  # reaches the segments that it had missed
        send(shards, Push(A, 4, np.float32(0.1)), normal(4))
    assert state(new) == state(old)
    assert [version for shard in new for version in shard.versions()] == [4] * len(TABLE)
    assert all(shard.ready for shard in new)


def test_a_restored_shard_knows_which_pushes_are_missing(tmp_path: Path) -> None:
    new = shards_of(3)
    restore(new, save(trained(1), tmp_path))
    with pytest.raises(Refused, match="push 6 of replica 1 on 'w' came where 4 was expected"):
        send(new, Push(A, 6, np.float32(0.1)), normal(6))
    taken = new[0].push(Push(A, 6, np.float32(0.1), base=6), 0, np.zeros(7, np.float32))
    assert taken.lost == 2


def test_more_shards_than_segments_leave_empty_files_that_load(tmp_path: Path) -> None:
    shards = trained(20)
    assert any(not shard.segments for shard in shards)
    new = shards_of(20)
    restore(new, save(shards, tmp_path))
    assert state(new) == state(shards)


def test_a_set_is_whole_files_and_nothing_else(tmp_path: Path) -> None:
    folder = save(trained(2), tmp_path / "sets" / "set-7")
    (folder / "shard-0.writing").write_bytes(b"what a crash left behind")
    save(trained(2), folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["shard-0.json", "shard-0.safetensors", "shard-1.json", "shard-1.safetensors"]
    manifest = json.loads((folder / "shard-1.json").read_text())
    assert (manifest["format"], manifest["job"], manifest["set"], manifest["shard"]) == (1, "digits", "set-7", 1)
    assert [row["index"] for row in manifest["segments"]] == [4, 5, 6, 7, 8]


# -- rounds --------------------------------------------------------------------------------------------------


def test_gradients_that_wait_for_their_round_do_not_count_as_applied(tmp_path: Path) -> None:
    old = shards_of(2, "momentum", staleness=0)
    send(old, Push(A, 1, assign=True), normal(0))
    for shard in old:
        shard.make_ready()
        shard.set_membership(1, [(0, [1, 2])])
    send(old, Push(A, 2, np.float32(0.1)), normal(1))
    send(old, Push(B, 1, np.float32(0.1)), normal(2))
    send(old, Push(A, 3, np.float32(0.1), clock=1), normal(3))  # staged everywhere
    send(old, Push(B, 2, np.float32(0.1), clock=1), normal(4), leave_out=[0, 1, 5])  # the round is open in three
    new = shards_of(3, "momentum", staleness=0)
    restore(new, save(old, tmp_path))
    for shard in new:
        shard.set_membership(1, [(0, [1, 2])])
    low = min(row[0] for shard in new for (vector, pusher), row in shard.ledgers().items() if pusher == A)
    assert low == 2  # push 3 comes again
    for shards in (old, new):
        send(shards, Push(A, 3, np.float32(0.1), clock=1), normal(3))
        send(shards, Push(B, 2, np.float32(0.1), clock=1), normal(4))
    assert state(new) == state(old)
    assert {segment.rounds for shard in new for segment in shard.segments.values()} == {2}


def test_several_rounds_that_wait_are_all_taken_off_the_ledger(make: Make, tmp_path: Path) -> None:
    subject = make(staleness=0, rule="sgd")
    subject.shard.set_membership(1, [(0, [1, 2])])
    for clock in range(3):
        subject.push(A, 1.0, clock=clock)
    snapshot.save(subject.shard, tmp_path, 0, "set", "job", 1)
    again = make(staleness=0, rule="sgd", initial=None)
    snapshot.restore(again.shard, tmp_path, "set", "job")
    assert again.shard.ledgers()["w", A] == (0, 0)


# -- while training goes on ----------------------------------------------------------------------------------


def test_each_segment_is_caught_between_two_pushes(make: Make, tmp_path: Path, eager_threads: None) -> None:
    subject, stop = make((300,) * 6), threading.Event()

    def replica() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            subject.push(A, 1.0)
            subject.assign(float(number), f"best.{number}", A)  # vectors come to be meanwhile

    thread = threading.Thread(target=replica)
    thread.start()
    try:
        folders = [tmp_path / str(number) for number in range(5)]
        for folder in folders:
            snapshot.save(subject.shard, folder, 0, "set", "job", 1)
    finally:
        stop.set()
        thread.join(10)
    for folder in folders:
        for one in snapshot.read(folder, "set", "job", subject.spans, subject.shard.rule):
            assert one.ledger.get(("w", A), 0) == one.version
            assert set(one.vectors["w"].tolist()) == {-float(one.version)}


# -- what is wrong with a set --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(trained(2, "momentum"), tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "set-7"))


def refused(folder: Path, reason: str, rule: str = "momentum") -> None:
    with pytest.raises(SnapshotError, match=reason):
        restore(shards_of(3, rule), folder)


@pytest.mark.parametrize("name", ["shard-0.safetensors", "shard-1.json"])
@pytest.mark.parametrize("flip", [0xFF, 0x01])
def test_a_flipped_byte_is_noticed_or_harmless(name: str, flip: int, folder: Path) -> None:
    """Harmless: in the spacing, or in the labels for people that the data file carries."""
    path, wanted = folder / name, state(trained(1, "momentum"))
    whole, reasons = path.read_bytes(), []
    positions = range(0, len(whole), 13)
    for position in positions:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :])
        shards = shards_of(1, "momentum")
        try:
            restore(shards, folder)
        except SnapshotError as error:
            reasons.append(str(error))
        else:
            assert state(shards) == wanted, position
    assert [reason for reason in reasons if path.name not in reason] == []
    assert len(reasons) > 0.8 * len(positions)


def test_a_flipped_number_is_named(folder: Path) -> None:
    path = folder / "shard-1.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x10
    path.write_bytes(content)
    refused(folder, r"shard-1\.safetensors: segment \d does not match its checksum")


@pytest.mark.parametrize("name", ["shard-0.safetensors", "shard-0.json"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_torn_file_is_named(name: str, share: float, folder: Path) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    refused(folder, rf"{name}: cannot be read")


def test_a_missing_data_file_is_named(folder: Path) -> None:
    (folder / "shard-1.safetensors").unlink()
    refused(folder, r"shard-1\.safetensors: cannot be read")


def test_a_missing_manifest_leaves_segments_out(folder: Path) -> None:
    (folder / "shard-0.json").unlink()
    refused(folder, r"set-7: set set-7 lacks segment 0 \(\d missing\)")


def test_an_empty_folder_is_no_set(tmp_path: Path) -> None:
    refused(tmp_path, r"lacks segment 0 \(\d missing\)")


@pytest.mark.parametrize(
    ("set_id", "job", "reason"),
    [
        ("set-8", "digits", "belongs to job digits, set set-7; wanted digits, set-8"),
        ("set-7", "mnist", "belongs to job digits, set set-7; wanted mnist, set-7"),
    ],
)
def test_another_job_or_set_is_named(set_id: str, job: str, reason: str, folder: Path) -> None:
    with pytest.raises(SnapshotError, match=rf"shard-0\.json: {reason}"):
        snapshot.restore(shards_of(1, "momentum")[0], folder, set_id, job)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": 2}', "format 2 is newer than 1, which this version reads"),
        ("{}", "cannot be read as a manifest"),
        ("[]", "cannot be read as a manifest"),
        ('{"format": "one"}', "cannot be read as a manifest"),
    ],
)
def test_a_manifest_that_this_version_cannot_read_is_named(text: str, reason: str, folder: Path) -> None:
    (folder / "shard-0.json").write_text(text)
    refused(folder, rf"shard-0\.json: {reason}")


def test_the_state_of_another_rule_is_not_taken_for_this_ones(folder: Path) -> None:
    for rule in ("sgd", "adagrad"):
        refused(folder, rf"shard-0\.json: holds the state of rule momentum; the job's is {rule}", rule)


def test_another_segment_table_is_named(folder: Path) -> None:
    shard = Shard([Span(0, 0, 6)], make_rule("momentum", {}))
    with pytest.raises(SnapshotError, match=r"shard-0\.json: segment 0 holds 7 numbers from 0; the job's table has 6"):
        snapshot.restore(shard, folder, "set-7", "digits")
