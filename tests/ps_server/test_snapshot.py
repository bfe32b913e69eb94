"""A shard writes its part of a set while it trains, and any number of shards continue from it.

What may be wrong with a set on disk: tests/dbelief/checkpoint/test_shard_file.py.
"""

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint.checksummed_json import checksum
from dbelief.checkpoint.shard_file import read_segments, verify_shards
from dbelief.core.layout import assign_segments, make_segments
from dbelief.core.push import NO_PUSH, LedgerRow, Push, Pusher
from dbelief.errors import CorruptSnapshot, Rejected, WriteFailed
from dbelief.optim import RULES, make_rule
from dbelief.optim.rules.momentum import Momentum
from ps_server import snapshot
from ps_server.store.admission import MOST_VECTORS
from ps_server.store.shard import Shard
from tests.examples import examples
from tests.traced import traced

Make = Callable[..., Any]
A, B = Pusher(1, 11), Pusher(2, 12, 3)
TABLE = make_segments([(0, 60)], 7)
OPTIONS = {"adagrad": {"a0": 0.1}}
EPOCH = 2


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(60, dtype=np.float32)


def shards_of(number: int, rule: str = "adam", staleness: int | None = None) -> list[Shard]:
    runs = [TABLE[first : first + count] for first, count in assign_segments(TABLE, number)]
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
        send(shards, Push(A, sequence, np.float32(0.1), lease=4, position=16 * sequence), normal(sequence))
    send(shards, Push(B, 1, np.float32(0.1)), normal(9), leave_out=[0, 4])
    send(shards, Push(B, 1, vector="best.0", assign=True), normal(8))
    return shards


def save(shards: Sequence[Shard], folder: Path, set_id: str = "set-7", job: str = "digits") -> Path:
    for number, shard in enumerate(shards):
        manifest, written, needs = snapshot.save(shard, folder, number, set_id, job, shard_epoch=1)
        assert manifest.parent == folder
        assert needs == []
        assert written == manifest.with_suffix(".safetensors").stat().st_size
    return folder


def restore(shards: Sequence[Shard], folder: Path) -> None:
    assert sum(snapshot.restore(shard, folder, "set-7", "digits", EPOCH) for shard in shards) == len(TABLE)


def state(shards: Sequence[Shard]) -> Any:
    """All that a snapshot has to bring back, by segment."""
    return {
        index: (
            {name: values.tobytes() for name, values in segment.vectors.items()},
            [values.tobytes() for values in segment.state],
            segment.applied,
            segment.rounds,
            segment.ledger.last,
        )
        for shard in shards
        for index, segment in shard.segments.items()
    }


@examples(30)  # each writes a dozen files, durably
@given(rule=st.sampled_from(RULES), before=st.integers(1, 14), after=st.integers(1, 14))
def test_restore_is_exact_on_any_shard_count(
    rule: str, before: int, after: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """More shards than the table's nine segments leave some empty."""
    old, new = trained(before, rule), shards_of(after, rule)
    restore(new, save(old, tmp_path_factory.mktemp("set")))
    assert state(new) == state(old)
    for shards in (old, new):  # and training goes on as if nothing had been
        send(shards, Push(B, 1, np.float32(0.1)), normal(9))  # reaches the segments that it had missed
        send(shards, Push(A, 4, np.float32(0.1), lease=7, position=16), normal(4))
    assert state(new) == state(old)
    assert all(shard.ready for shard in new)


def test_versions_after_recovery_exceed_all_earlier_ones(tmp_path: Path) -> None:
    """A replica asks for what is newer than it holds; at the set's own versions it would get nothing."""
    old = trained(1)
    folder = save(old, tmp_path)
    for sequence in range(4, 9):  # gone with the old life
        send(old, Push(A, sequence, np.float32(0.1)), normal(sequence))
    held = old[0].versions()
    (new,) = shards_of(1)
    restore([new], folder)
    for index, version in enumerate(held):
        found, data = new.pull("w", index, newer_than=version)
        assert found == new.segments[index].first_version == EPOCH << 40
        assert data is not None
        assert new.pull("w", index, newer_than=found) == (found, None)


def test_rollback_within_an_epoch_raises_versions(tmp_path: Path) -> None:
    (shard,) = shards = trained(1)
    folder = save(shards, tmp_path)
    restore(shards, folder)
    for sequence in range(4, 9):
        send(shards, Push(A, sequence, np.float32(0.1)), normal(sequence))
    held, before = shard.versions(), state(trained(1))
    restore(shards, folder)
    assert state(shards) == before
    assert all(version > seen for version, seen in zip(shard.versions(), held, strict=True))


# -- what goes wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_shards", [shards_of, trained])
def test_half_restored_shard_cannot_be_read_or_made_ready(
    make_shards: Callable[[int], list[Shard]], tmp_path: Path
) -> None:
    folder, (_, shard) = save(trained(1), tmp_path), make_shards(2)
    older = save(trained(3), tmp_path / "older")
    data = folder / "shard-0.safetensors"
    content = bytearray(data.read_bytes())
    content[-3] ^= 0x10  # in the last segment: all before it are whole
    data.write_bytes(content)
    with pytest.raises(CorruptSnapshot, match=r"shard-0\.safetensors: segment 8 does not match its checksum"):
        snapshot.restore(shard, folder, "set-7", "digits", EPOCH)
    with pytest.raises(Rejected, match=r"segment 8 has no initial values \(1 of 5 miss them\)"):
        shard.make_ready()
    with pytest.raises(Rejected, match="segment 8: a snapshot set is being loaded"):
        shard.pull("w", 8)
    with pytest.raises(Rejected, match="a snapshot set is being loaded"):
        shard.push(Push(A, 4, np.float32(0.1)), 5, np.zeros(7, np.float32))
    assert snapshot.restore(shard, older, "set-7", "digits", EPOCH) == 5
    assert state([shard]) == {index: held for index, held in state(trained(1)).items() if index >= 4}


def test_a_set_without_some_of_the_rules_state_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Momentum, "state", ())
    save(trained(1, "sgd"), tmp_path)
    manifest = tmp_path / "shard-0.json"
    content = json.loads(manifest.read_text().replace('"sgd"', '"momentum"'))
    del content["crc32"]
    manifest.write_text(json.dumps({**content, "crc32": checksum(content)}))
    monkeypatch.undo()
    with pytest.raises(CorruptSnapshot, match="segment 0 lacks 'rule/velocity'"):
        restore(shards_of(1, "momentum"), tmp_path)


# -- named vectors -------------------------------------------------------------------------------------------


def test_set_holds_only_complete_named_vectors(tmp_path: Path) -> None:
    """A replica may die while it stores one."""
    old, new = trained(2), shards_of(3)
    send(old, Push(B, 1, vector="best.1", assign=True), normal(7), leave_out=[1, 6])
    restore(new, save(old, tmp_path))
    held = [index for shard in new for index, segment in shard.segments.items() if "best.1" in segment.vectors]
    assert held == [0, 2, 3, 4, 5, 7, 8]
    with pytest.raises(Rejected, match=r"segment 1: no vector 'best\.1' yet"):
        new[0].pull("best.1", 1)
    send(new, Push(B, 1, vector="best.1", assign=True), normal(7))  # it comes again: the rest is stored
    values = b"".join(shard.pull("best.1", index)[1] or b"" for shard in new for index in shard.segments)
    assert values == normal(7).tobytes()


# -- memory --------------------------------------------------------------------------------------------------


def test_a_set_is_written_and_loaded_through_one_segment(make: Make, tmp_path: Path) -> None:
    subject = make((50_000,) * 20, "adam")
    one = 3 * 4 * 50_000  # w and two moments
    assert traced(lambda: snapshot.save(subject.shard, tmp_path, 0, "set", "job", 1)).peak < 2 * one
    again = make((50_000,) * 20, "adam", initial=None)
    assert traced(lambda: snapshot.restore(again.shard, tmp_path, "set", "job", 1)).peak < 2 * one


# -- rounds --------------------------------------------------------------------------------------------------


def test_waiting_gradients_do_not_count_as_applied(tmp_path: Path) -> None:
    old = shards_of(2, "momentum", staleness=0)
    send(old, Push(A, 1, assign=True), normal(0))
    for shard in old:
        shard.make_ready()
        shard.set_membership(1, [(0, [1, 2])])
    send(old, Push(A, 2, np.float32(0.1), lease=5, position=30), normal(1))
    send(old, Push(B, 1, np.float32(0.1)), normal(2))
    send(old, Push(A, 3, np.float32(0.1), clock=1, lease=6, position=10), normal(3))  # staged everywhere
    send(old, Push(B, 2, np.float32(0.1), clock=1), normal(4), leave_out=[0, 1, 5])  # the round is open in three
    new = shards_of(3, "momentum", staleness=0)
    restore(new, save(old, tmp_path))
    for shard in new:
        shard.set_membership(1, [(0, [1, 2])])
    low = min(row[0] for shard in new for (vector, pusher), row in shard.ledgers().items() if pusher == A)
    assert low == LedgerRow(2, 5, 30)  # push 3 comes again
    for shards in (old, new):
        send(shards, Push(A, 3, np.float32(0.1), clock=1, lease=6, position=10), normal(3))
        send(shards, Push(B, 2, np.float32(0.1), clock=1), normal(4))
    assert state(new) == state(old)
    assert {segment.rounds for shard in new for segment in shard.segments.values()} == {2}


def test_rollback_within_an_epoch_keeps_the_rows_that_were_acknowledged(make: Make, tmp_path: Path) -> None:
    subject = make()
    subject.push(A, 1.0, lease=3, position=32)
    snapshot.save(subject.shard, tmp_path, 0, "set", "job", 1)
    subject.push(A, 1.0, lease=6, position=16)
    snapshot.restore(subject.shard, tmp_path, "set", "job", 1, again=True)
    assert subject.shard.ledgers()["w", A] == (LedgerRow(2, 6, 16),) * 2
    other = make(initial=None)
    snapshot.restore(other.shard, tmp_path, "set", "job", EPOCH)
    assert other.shard.ledgers()["w", A] == (LedgerRow(1, 3, 32),) * 2


def test_all_waiting_rounds_leave_the_ledger(make: Make, tmp_path: Path) -> None:
    subject = make(staleness=0, rule="sgd")
    subject.shard.set_membership(1, [(0, [1, 2])])
    for clock in range(3):
        subject.push(A, 1.0, clock=clock)
    snapshot.save(subject.shard, tmp_path, 0, "set", "job", 1)
    again = make(staleness=0, rule="sgd", initial=None)
    snapshot.restore(again.shard, tmp_path, "set", "job", EPOCH)
    assert again.shard.ledgers()["w", A] == (NO_PUSH, NO_PUSH)


# -- while training goes on ----------------------------------------------------------------------------------


def test_each_segment_is_caught_between_two_pushes(make: Make, tmp_path: Path, eager_threads: None) -> None:
    subject, stop = make((300,) * 6), threading.Event()

    def replica() -> None:
        for number in itertools.count(1):
            if stop.is_set():
                return
            subject.push(A, 1.0)
            if number < MOST_VECTORS:
                subject.assign(float(number), f"best.{number}", A)  # vectors come to be meanwhile

    thread = threading.Thread(target=replica)
    thread.start()
    try:
        folders = [tmp_path / str(number) for number in range(5)]
        for folder in folders:
            snapshot.save(subject.shard, folder, 0, "set", "job", 1)
    finally:
        stop.set()
        thread.join(60)
    for folder in folders:
        for one in read_segments(folder, "set", "job", "sgd", subject.spans):
            assert one.ledger.get(("w", A), NO_PUSH).sequence == one.version == one.applied
            assert set(one.arrays["w"].tolist()) == {-float(one.version)}
            for name, values in one.arrays.items():
                assert name == "w" or set(values.tolist()) == {float(name.removeprefix("best."))}
            assert {vector for vector, _ in one.ledger} <= set(one.arrays)


def test_set_requested_twice_while_written_is_whole(make: Make, tmp_path: Path, eager_threads: None) -> None:
    subject = make((300,) * 40)
    go, errors = threading.Barrier(3), []

    def write() -> None:
        go.wait(60)
        try:
            snapshot.save(subject.shard, tmp_path, 0, "set", "job", 1)
        except WriteFailed as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    go.wait(60)
    for _ in range(20):
        subject.push(A, 1.0)
    for thread in threads:
        thread.join(60)
    assert errors == []
    verify_shards(tmp_path, "set", "job", "sgd", 40)
