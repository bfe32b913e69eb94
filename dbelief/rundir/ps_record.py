"""Log of applied pushes, from which a run can be replayed in one thread."""

from __future__ import annotations

import json
from pathlib import Path

from dbelief.core.push import Pusher
from dbelief.process.atomic_file import atomic_write


class Recorder:
    """Recorder of (segment, replica, incarnation, sequence, rate) in the order of application.

    `recorded.py` reads its files. Per segment the order is that of application, for the caller holds the segment's
    lock; the list's own append is atomic. Across segments no order is defined, and none is needed.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, float]] = []

    def note(self, segment: int, pusher: Pusher, sequence: int, rate: float) -> None:
        """Record one applied push."""
        self._rows.append((segment, pusher.replica, pusher.incarnation, sequence, rate))

    def write(self, folder: Path | None, shard: int) -> None:
        """Write the rows as JSON lines to `folder`/shard-N.jsonl, if there are any."""
        if folder is None or not self._rows:
            return
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"shard-{shard}.jsonl") as file:
            file.writelines(f"{json.dumps(row)}\n".encode() for row in self._rows)
