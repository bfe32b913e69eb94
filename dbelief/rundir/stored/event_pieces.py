"""The event log of a run as objects: pieces of its file, in order, each written once."""

from __future__ import annotations

from pathlib import Path

from dbelief.errors import Deposed
from dbelief.storage.object_store import ObjectStore
from dbelief.url import Url

PREFIX = "events"
MOST = 4 << 20
"""Bytes of a piece; one line may be longer."""


class EventPieces:
    """Uploads what is appended to an event file.

    Parameters
    ----------
    run
        The run's prefix.
    path
        The file. It begins with what the pieces hold by now.
    """

    def __init__(self, store: ObjectStore, run: Url, path: Path) -> None:
        self._store, self._prefix, self._path = store, run / PREFIX, path
        held = store.list(self._prefix)
        self._position, self._next = sum(held.values()), len(held) + 1

    def upload(self) -> None:
        """Upload all whole lines that were appended since the last call.

        Raises
        ------
        Deposed
            Another coordinator has written the next piece.
        Unavailable, StorageError
            The store does not take it; the next call uploads it.
        """
        while piece := self._piece():
            url = self._prefix / f"{self._next:06d}.jsonl"
            if not self._store.create(url, piece):
                raise Deposed(f"{url}: another coordinator writes the events of this run")
            self._position += len(piece)
            self._next += 1

    def _piece(self) -> bytes:
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._position)
            piece = file.read(MOST)
            if b"\n" not in piece and len(piece) == MOST:
                piece += file.readline()
        return piece[: piece.rfind(b"\n") + 1]


def fetch_events(store: ObjectStore, run: Url, path: Path) -> None:
    """Write the event file that the pieces make up; none where there are none."""
    pieces = sorted(store.list(run / PREFIX))
    if pieces:
        with path.open("wb") as file:
            for url in pieces:
                file.write(store.read(url))
