"""The event log in pieces: their concatenation is the log, whatever was lost between two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import Deposed, Unavailable
from dbelief.rundir.stored import event_pieces
from dbelief.rundir.stored.event_pieces import EventPieces, fetch_events
from dbelief.storage.backends import MemoryBackend
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url, parse_url
from tests.dbelief.rundir.stored.memory_store import FaultyMemory
from tests.examples import examples


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


@examples(30)
@given(
    steps=st.lists(
        st.one_of(st.binary(min_size=1, max_size=9), st.sampled_from(["upload", "killed", "unrecorded", "new disk"]))
    ),
    most=st.integers(1, 20),
)
def test_pieces_are_the_whole_lines_in_order(
    steps: list[bytes | str], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("events")
    store, run = ObjectStore(MemoryBackend()), parse_url(f"memory://pieces/{folder.name}")
    path, number = folder / "events.jsonl", 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_pieces, "MOST", most)
        pieces = EventPieces(store, run, path)
        for step in steps:
            if isinstance(step, bytes):
                append(path, step.replace(b"\r", b"") + b"\n" * (step[0] % 2))
            elif step == "upload":
                pieces.upload()
            elif step == "unrecorded":
                record = path.with_name(".events.jsonl.uploaded")
                before = record.read_bytes() if record.exists() else None
                pieces.upload()
                record.unlink(missing_ok=True)
                if before is not None:
                    record.write_bytes(before)
                pieces = EventPieces(store, run, path)
            else:
                if step == "new disk":
                    number += 1
                    path = folder / str(number) / "events.jsonl"
                    path.parent.mkdir()
                    fetch_events(store, run, path)
                pieces = EventPieces(store, run, path)
        pieces.upload()
    held = store.list(run / "events")
    assert [url.name for url in sorted(held)] == [f"{n:06d}.jsonl" for n in range(1, len(held) + 1)]
    text = path.read_bytes() if path.exists() else b""
    assert b"".join(store.read(url) for url in sorted(held)) == text[: text.rfind(b"\n") + 1]


def test_a_piece_is_uploaded_once_the_store_is_back(
    store: ObjectStore, backend: FaultyMemory, run: Url, folder: Path
) -> None:
    path = folder / "events.jsonl"
    pieces = EventPieces(store, run, path)
    append(path, b"one\n")
    backend.error = ConnectionRefusedError()
    with pytest.raises(Unavailable):
        pieces.upload()
    append(path, b"two\nto")
    backend.error = None
    pieces.upload()
    assert store.read(run / "events" / "000001.jsonl") == b"one\ntwo\n"
    pieces.upload()
    assert len(store.list(run / "events")) == 1


def test_a_writer_that_was_replaced_learns_it(store: ObjectStore, run: Url, folder: Path) -> None:
    def confirm() -> None:
        raise Deposed("another one writes there now")

    pieces = EventPieces(store, run, folder / "events.jsonl", confirm)
    append(folder / "events.jsonl", b"of the first\n")
    store.replace(run / "events" / "000001.jsonl", b"of the second\n")
    with pytest.raises(Deposed):
        pieces.upload()
    assert store.read(run / "events" / "000001.jsonl") == b"of the second\n"


def test_the_last_piece_of_a_suspended_writer_stays(store: ObjectStore, run: Url, folder: Path) -> None:
    """It is written after the next one has fetched the log, and before that one writes."""
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    suspended = EventPieces(store, run, first)
    append(first, b"one\n")
    suspended.upload()
    fetch_events(store, run, second)
    following = EventPieces(store, run, second)
    append(first, b"two, of the first\n")
    suspended.upload()
    append(second, b"two, of the second\n")
    following.upload()
    held = store.list(run / "events")
    assert [store.read(url) for url in sorted(held)] == [b"one\n", b"two, of the first\n", b"two, of the second\n"]
