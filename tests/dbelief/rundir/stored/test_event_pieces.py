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
    steps=st.lists(st.one_of(st.binary(min_size=1, max_size=9), st.sampled_from(["upload", "killed", "new disk"]))),
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
            else:
                if step == "new disk":
                    number += 1
                    path = folder / f"events-{number}.jsonl"
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


def test_of_two_writers_one_learns_that_it_is_replaced(store: ObjectStore, run: Url, folder: Path) -> None:
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    writers = EventPieces(store, run, first), EventPieces(store, run, second)
    append(first, b"of the first\n")
    append(second, b"of the second\n")
    writers[1].upload()
    with pytest.raises(Deposed, match=r"events/000001\.jsonl: another coordinator writes the events of this run$"):
        writers[0].upload()
    assert store.read(run / "events" / "000001.jsonl") == b"of the second\n"
