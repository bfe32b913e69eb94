"""The event log of a run as objects: pieces of its file, in order, each written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dbelief.process.atomic_file import write_whole
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url

PREFIX = "events"
MOST = 4 << 20
"""Bytes of a piece; one line may be longer."""


class EventPieces:
    """Uploads what is appended to an event file.

    Beside the file there is a record of what was uploaded from it, for another process that goes on with both.

    Parameters
    ----------
    run
        The run's prefix.
    path
        The file.
    confirm
        Raises Deposed where another process writes below the prefix by now.
    """

    def __init__(self, store: ObjectStore, run: Url, path: Path, confirm: Callable[[], None] = lambda: None) -> None:
        self._store, self._prefix, self._path, self._confirm = store, run / PREFIX, path, confirm
        self._position, self._next = _read(path)

    def upload(self) -> None:
        """Upload all whole lines that were appended since the last call.

        Raises
        ------
        Deposed
            Another process writes below the prefix.
        Unavailable, StorageError
            The store does not take it; the next call uploads it.
        """
        while piece := self._piece():
            url = self._prefix / f"{self._next:06d}.jsonl"
            if self._store.create(url, piece):
                self._position += len(piece)
            else:
                self._confirm()
                there = self._store.read(url)
                if self._begins_with(there):  # this process, or the one before, was killed before it recorded it
                    self._position += len(there)
                # Else it is the last one of a process that was suspended: its events stay, and come before these.
            self._next += 1
            _write(self._path, self._position, self._next)

    def _piece(self) -> bytes:
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._position)
            piece = file.read(MOST)
            if b"\n" not in piece and len(piece) == MOST:
                piece += file.readline()
        return piece[: piece.rfind(b"\n") + 1]

    def _begins_with(self, content: bytes) -> bool:
        with self._path.open("rb") as file:
            file.seek(self._position)
            return file.read(len(content)) == content


def fetch_events(store: ObjectStore, run: Url, path: Path) -> None:
    """Write the event file that the pieces make up, and its record; none where there are no pieces."""
    pieces = sorted(store.list(run / PREFIX))
    if pieces:
        with path.open("wb") as file:
            for url in pieces:
                file.write(store.read(url))
        _write(path, path.stat().st_size, int(pieces[-1].name.partition(".")[0]) + 1)


def _record(path: Path) -> Path:
    return path.with_name(f".{path.name}.uploaded")


def _write(path: Path, position: int, following: int) -> None:
    write_whole(_record(path), json.dumps([position, following]).encode())


def _read(path: Path) -> tuple[int, int]:
    try:
        position, following = json.loads(_record(path).read_text())
    except FileNotFoundError:
        return 0, 1
    return position, following
