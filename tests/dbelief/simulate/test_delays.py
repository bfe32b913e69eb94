"""The delays file: what is written is read, and what cannot happen is refused by file and event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.delay_traces import drawn, trace_of
from dbelief.errors import DataError
from dbelief.simulate.replay.delays import DOWNPOUR, ELASTIC, FETCH, LOST, PUSH, ROUND, ROUNDS, DelayTrace
from tests.equivalence.delayed import events_of


def arrays(**fields: Any) -> dict[str, Any]:
    """Arrays of a small file, with some in place of its own."""
    kind, replica = np.array([FETCH, PUSH], np.uint8), np.array([0, 0], np.int32)
    return {"kind": kind, "replica": replica, "replicas": np.int64(1), "strategy": "downpour"} | fields


def saved(folder: Path, **fields: Any) -> Path:
    path = folder / "d.npz"
    np.savez(path, **{name: value for name, value in arrays(**fields).items() if value is not None})
    return path


@pytest.mark.parametrize("strategy", [DOWNPOUR, ELASTIC, ROUNDS])
def test_what_is_written_is_read(tmp_path: Path, strategy: str) -> None:
    trace = drawn(strategy, 7, 100, seed=3)
    trace.write(tmp_path / "d.npz")
    found = DelayTrace.read(tmp_path / "d.npz")
    assert (found.strategy, found.replicas, len(found)) == (strategy, 7, len(trace))
    assert list(found.events()) == list(trace.events())
    assert found.pushes == sum(kind == PUSH for kind, _ in trace.events()) >= 100


def test_events_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = drawn(DOWNPOUR, 3, 50)
    whole = list(trace.events())
    monkeypatch.setattr("dbelief.simulate.replay.delays._AT_ONCE", 7)
    assert list(trace.events()) == whole


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": None}, "has no kind; a delays file has kind, replica, replicas, strategy"),
        ({"more": np.zeros(1)}, "has 'more'; a delays file has kind, replica, replicas, strategy, and no more"),
        ({"strategy": "sgd"}, "strategy is 'sgd', must be one of downpour, elastic, rounds"),
        ({"strategy": np.int64(3)}, "strategy is int64 of shape (), must be text"),
        ({"replicas": np.array([1, 2])}, "replicas is int64 of shape (2,), must be one whole number"),
        ({"replicas": np.int64(0)}, "replicas is 0, must be from 1 to 16,777,216"),
        ({"kind": np.array([0.0, 1.0])}, "kind is float64 of shape (2,), must be uint8 of one axis"),
        ({"replica": np.zeros((2, 1), np.int32)}, "replica is int32 of shape (2, 1), must be int32 of one axis"),
        ({"replica": np.zeros(3, np.int32)}, "kind has 2 events, and replica 3"),
        ({"kind": np.zeros(0, np.uint8), "replica": np.zeros(0, np.int32)}, "kind has no events"),
        ({"kind": np.zeros(2, np.uint8)}, "kind has no PUSH: nothing would be trained"),
        ({"kind": np.array([0, 1], object)}, "is no .npz file of plain arrays (Object arrays cannot be loaded when"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    path = saved(tmp_path, **fields)
    with pytest.raises(DataError) as found:
        DelayTrace.read(path)
    assert str(found.value).startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    ("strategy", "events", "words"),
    [
        (DOWNPOUR, "F0 P1", "event 1 is a PUSH of replica 1, which has never fetched"),
        (DOWNPOUR, "F0 P0 L1 F1", "event 2 is a LOST of replica 1, which has never fetched"),
        (DOWNPOUR, "F0 F1 P1 L0 P1 P0", "event 5 is a PUSH of replica 0, which has not fetched since it was lost"),
        (DOWNPOUR, "F0 P0 L0 L0", "event 3 is a LOST of replica 0, which has not fetched since it was lost"),
        (DOWNPOUR, "F0 P0 R", "event 2 is a ROUND, and strategy is downpour, which has none"),
        (ELASTIC, "F0 R P0", "event 1 is a ROUND, and strategy is elastic, which has none"),
        (ROUNDS, "F0 P0 P0 R", "event 2 is a PUSH of replica 0, which has not fetched since it pushed"),
        (ROUNDS, "F0 P0", "kind has no ROUND, and strategy is rounds: no push would be applied"),
        (ROUNDS, "F0 P0 R1", "event 2 replica is 1, must be -1 for a ROUND"),
        (DOWNPOUR, "F0 P0 F2", "event 2 replica is 2, must be 0 to 1"),
    ],
)
def test_events_that_cannot_happen_are_refused(strategy: str, events: str, words: str) -> None:
    with pytest.raises(DataError) as found:
        trace_of(strategy, 2, events_of(events))
    assert str(found.value) == words


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(DataError, match="event 1 kind is 4, must be 0 to 3"):
        trace_of(DOWNPOUR, 1, [(FETCH, 0), (4, 0), (PUSH, 0)])


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    with pytest.raises(DataError, match="no such file"):
        DelayTrace.read(path)
    path.write_bytes(b"PK, and no archive")
    with pytest.raises(DataError, match=r"d.npz: is no .npz file of plain arrays"):
        DelayTrace.read(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"one.npy: is no .npz file of plain arrays"):
        DelayTrace.read(tmp_path / "one.npy")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        DelayTrace.read(tmp_path)


words = st.lists(st.tuples(st.sampled_from([FETCH, PUSH, LOST]), st.integers(0, 3)), min_size=1, max_size=30)


@given(words)
def test_a_trace_is_accepted_where_each_replica_begins_with_a_fetch(events: list[tuple[int, int]]) -> None:
    """Against a loop over the events."""
    begun, wrong = set[int](), None
    for at, (kind, number) in enumerate(events):
        if kind != FETCH and number not in begun and wrong is None:
            wrong = at
        begun = begun - {number} if kind == LOST else begun | {number}
    if all(kind != PUSH for kind, _ in events):
        with pytest.raises(DataError, match="no PUSH"):
            trace_of(DOWNPOUR, 4, events)
    elif wrong is None:
        assert len(trace_of(DOWNPOUR, 4, events)) == len(events)
    else:
        with pytest.raises(DataError, match=rf"^event {wrong} is a"):
            trace_of(DOWNPOUR, 4, events)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 5), st.integers(1, 9))
def test_drawn_rounds_have_their_quorum(replicas: int, pushes: int, seed: int, quorum: int) -> None:
    quorum = min(quorum, replicas)
    trace = drawn(ROUNDS, replicas, pushes, seed, quorum=quorum)
    own, round_, in_time = dict[int, int](), 0, 0
    for kind, number in trace.events():
        if kind == FETCH:
            own[number] = round_
        elif kind == PUSH:
            in_time += own[number] == round_
        else:
            assert kind == ROUND
            assert in_time == quorum
            round_, in_time = round_ + 1, 0
    assert trace.pushes >= pushes
