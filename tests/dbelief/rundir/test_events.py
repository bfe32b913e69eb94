import errno
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dbelief.errors import DataError
from dbelief.process.clock import ManualClock
from dbelief.rundir.events import EventLog, read_events
from tests.threads import at_once


def test_an_event_is_a_line_with_its_time(tmp_path: Path) -> None:
    clock = ManualClock(start_s=100.0, wall_start_s=1_700_000_000.0)
    with EventLog(tmp_path / "events.jsonl", clock) as log:
        clock.advance(1.5)
        log.write("state", state="training", reason="")
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:21.500Z",
        "elapsed_s": 1.5,
        "event": "state",
        "state": "training",
        "reason": "",
    }


def test_numbers_become_json_and_nan_null(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, ManualClock()) as log:
        log.write(
            "progress",
            samples=np.int64(64),
            loss=np.float32("nan"),
            rate=float("inf"),
            members=["a", {"b": np.float64(0.5)}],
            folder=Path("runs"),
        )
    (event,) = read_events(path)
    assert event["samples"] == 64
    assert event["loss"] is None
    assert event["rate"] is None
    assert event["members"] == ["a", {"b": 0.5}]
    assert event["folder"] == "runs"


def test_a_line_can_be_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, ManualClock()) as log:
        log.write("snapshot", set="1")
        assert [event["set"] for event in read_events(path)] == ["1"]


@pytest.mark.parametrize("torn", [b'{"event": "prog', b'{"event": "\xc3', b"\x00\x00\x00", b"17"])
def test_a_torn_last_line_is_left_out_and_then_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, ManualClock()) as log:
        log.write("state", state="training")
    with path.open("ab") as file:
        file.write(torn)
    assert [event["state"] for event in read_events(path)] == ["training"]
    with EventLog(path, ManualClock()) as log:
        log.write("state", state="done")
    assert [event["state"] for event in read_events(path)] == ["training", "done"]


@pytest.mark.parametrize("length", [10, 65_536, 200_000])
def test_a_file_of_one_torn_line_is_emptied(tmp_path: Path, length: int) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"x" * length)
    EventLog(path, ManualClock()).close()
    assert path.read_bytes() == b""
    path.write_bytes(b"{}\n" + b"x" * length)
    EventLog(path, ManualClock()).close()
    assert path.read_bytes() == b"{}\n"


def test_a_broken_line_before_the_last_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "a"}\nbroken\n{"event": "b"}\n')
    with pytest.raises(DataError, match=r"events\.jsonl, line 2: not an event"):
        list(read_events(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"events\.jsonl: No such file"):
        list(read_events(tmp_path / "events.jsonl"))


@pytest.mark.parametrize("name", ["time", "elapsed_s", "event"])
def test_the_names_every_event_has_are_taken(tmp_path: Path, name: str) -> None:
    with (
        EventLog(tmp_path / "events.jsonl", ManualClock()) as log,
        pytest.raises(ValueError, match=f"'{name}' is taken"),
    ):
        log.write("state", **{name: "x"})


def test_unserializable_event_is_refused_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, ManualClock()) as log:
        with pytest.raises(ValueError, match="type object cannot"):
            log.write("state", state=object())
        log.close()
        log.write("state", state="late")
    assert path.read_text() == ""


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, ManualClock()) as log:

        def talk(who: int) -> None:
            for number in range(200):
                log.write("progress", who=who, number=number, padding="x" * 300)

        at_once(talk, range(4))
    events = list(read_events(path))
    for who in range(4):
        assert [event["number"] for event in events if event["who"] == who] == list(range(200))


class Full:
    """A file on a disk that takes so many bytes, and then no more."""

    def __init__(self, path: Path, room: int) -> None:
        self._file, self.room, self.closed = path.open("ab", buffering=0), room, False

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(content[: self.room]) or 0
        self.room -= written
        return written

    def close(self) -> None:
        self.closed = True
        self._file.close()


@pytest.mark.parametrize("more", [0, 10_000])
def test_events_of_a_full_disk_are_appended_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, ManualClock())
    log._file.close()
    log._file = full = cast(Any, Full(path, 100))
    for number in range(4):
        log.write("snapshot", set=str(number))
    assert [event["set"] for event in read_events(path)] == ["0"]  # the next is torn
    full.room = more
    log.close()
    assert [event["set"] for event in read_events(path)] == ["0", "1", "2", "3"][: 4 if more else 1]
    lost = [f"{path}: lacks the last 3 events, for which there was no room"] * (not more)
    assert caplog.messages == [f"{path}: No space left on device; events are kept in memory until there is room", *lost]
